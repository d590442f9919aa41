"""What each rule rewrites, that it computes the same, and what it must not touch."""

from __future__ import annotations

import logging
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from compilewatch.extras.fixes.rewriting import Site, site_at
from compilewatch.extras.fixes.rules import RULES

BY_NAME = {rule.name: rule for rule in RULES}

PAGE = (Path(__file__).parents[4] / "docs" / "fixes-rewrites.md").read_text()
EXAMPLES = {
    name: re.findall(
        r"```python\n(.*?)```",
        PAGE.partition(f"### {name[0].upper()}{name[1:]}\n")[2].partition("\n##")[0],
        re.DOTALL,
    )
    for name in BY_NAME
}
"""The documentation has an example of each rule: the lines before and after."""

BEFORE = {name: before for name, (before, _) in EXAMPLES.items()}
AFTER = {name: after for name, (_, after) in EXAMPLES.items()}

AT = {
    "check of numbers in the graph": 2,
    "assigned where a mask is true": 2,
    "numbers gathered in a tensor": 4,
    "segments attended in one call": 2,
}
"""The line of an example that has the break, if it is not the first."""


def function(body: str, names: str = "*given") -> str:
    return f"def function({names}):\n" + textwrap.indent(body, "    ")


def site(source: str, line: int) -> Site:
    found = site_at(source, "library/module.py", line)
    assert found is not None
    return found


def rewritten(name: str, body: str, at: int) -> str:
    """The body after a rule was applied at one of its lines, from 1; empty if it does not apply."""
    source = function(body)
    edits = BY_NAME[name].apply(site(source, at + 1))
    for each in edits:
        assert source.count(each.old) == 1
        source = source.replace(each.old, each.new)
    return textwrap.dedent(source.partition("\n")[2]) if edits else ""


def attend(_: Any, q: Any, k: Any, v: Any, attention_mask: Any, scaling: float) -> Any:
    weights = q @ k.transpose(-1, -2) * scaling
    weights = weights if attention_mask is None else weights + attention_mask
    return (weights.softmax(-1) @ v).transpose(1, 2), weights


def segments() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(3, 1, 2, 7, 4, generator=generator).unbind(0)
    names = dict(zip(("query", "key", "value"), states, strict=True))
    return {**names, "cu_seqlens": torch.tensor([0, 3, 3, 7]), "attend": attend, "self": None}


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "message guarded": lambda: {"x": torch.ones(2), "logger": logging.getLogger("test")},
    "check in the graph": lambda: {"x": torch.ones(2)},
    "check of numbers in the graph": lambda: {
        "mask": torch.tensor([True, False, True]),
        "limit": 2,
        "x": torch.arange(3),
    },
    "chosen instead of branched": lambda: {"x": torch.tensor([1.0, float("inf"), 3.0])},
    "list instead of a generator": lambda: {"x": [torch.ones(2), torch.zeros(2)]},
    "all rows visited": lambda: {
        "mask": torch.tensor([[[1, 0]], [[0, 0]], [[1, 1]]]),
        "hidden": torch.randn(2, 4, generator=torch.Generator().manual_seed(0)),
        "weights": torch.tensor([2.0, 3.0, 4.0]),
        "output": torch.zeros(2, 4),
    },
    "assigned where a mask is true": lambda: {"x": torch.tensor([1, 5, 3, 7])},
    "numbers gathered in a tensor": lambda: {
        "tensors": [torch.tensor([1, 2]), torch.tensor([3])],
        "device": "cpu",
    },
    "segments attended in one call": segments,
}
"""What the example of each rule is called with."""


def run(body: str, given: dict[str, Any]) -> Any:
    names: dict[str, Any] = {"torch": torch}
    exec(function(body, ", ".join(given)), names)
    return names["function"](**given)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_example_of_a_rule_computes_the_same_and_is_one_graph(name: str) -> None:
    before, after = EXAMPLES[name]
    assert rewritten(name, before, AT.get(name, 1)) == after
    given, expected = CALLS[name](), run(before, CALLS[name]())
    torch.testing.assert_close(run(after, CALLS[name]()), expected)
    names: dict[str, Any] = {"torch": torch, "attend": attend}
    if name == "message guarded":
        names["logger"] = given.pop("logger")
    exec(function(after, ", ".join(given)), names)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        compiled = torch.compile(names["function"], backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(**given), expected)


UNTOUCHED = {
    "segments attended in one call": [
        # another dimension is split
        (BEFORE["segments attended in one call"].replace("dim=2", "dim=1"), 2),
        # the outputs are used afterwards
        (BEFORE["segments attended in one call"] + "len(outputs)\n", 2),
        # the model has a mask of its own
        (BEFORE["segments attended in one call"].replace("=None", "=mask"), 2),
        # what is attended depends on the segment in another way
        (BEFORE["segments attended in one call"].replace("scaling=2", "scaling=len(k)"), 2),
        # keys and values are exchanged
        (
            BEFORE["segments attended in one call"].replace("q, k, v, att", "q, v, k, att"),
            2,
        ),
    ],
    "numbers gathered in a tensor": [
        # the list itself is returned
        ("ends = [0]\nends.extend(x.tolist())\nreturn ends\n", 2),
        # without a type, that of the numbers would be another
        ("ends = [0]\nends.extend(x.tolist())\nends = torch.tensor(ends)\nreturn ends\n", 2),
        # an empty tensor has another type than an empty list
        ("e = []\ne.extend(x.tolist())\ne = torch.tensor(e, dtype=torch.int)\nreturn e\n", 2),
        # another use of the list
        ("e = [0]\ne.extend(x.tolist())\ne.pop()\ne = torch.tensor(e, dtype=torch.int)\n", 2),
        # what is read from a tensor is evaluated once
        ("e = [0]\ne.extend(x.add_(1).tolist())\ne = torch.tensor(e, dtype=torch.int)\n", 2),
    ],
    "assigned where a mask is true": [
        # integers choose elements by their positions
        ("mask = x.argmax(0)\nif x.any():\n    x[mask] = 0\n", 2),
        # the other branch
        ("if (x > 1).any():\n    x[x > 1] = 0\nelse:\n    x[x > 1] = 1\n", 1),
        # more than the assignment
        ("if (x > 1).any():\n    x[x > 1] = 0\n    x = x + 1\n", 1),
        # a value with an effect, such as a random draw
        ("if (x > 1).any():\n    x[x > 1] = torch.rand(1)\n", 1),
        # the condition is a number, for which & has another meaning
        ("if x.sum():\n    x[x > 1] = 0\n", 1),
        # the mask may be anything in one of its assignments
        ("mask = x > 1\nmask = given\nif mask.any():\n    x[mask] = 0\n", 3),
    ],
    "message guarded": [
        # a method of something that is no logger
        ("self.history.warning(x)\n", 1),
        # an argument with an effect
        ("logger.warning(self.count_calls(x))\n", 1),
        # an error is raised, not reported
        ("raise ValueError(x)\n", 1),
        # the result is used
        ("y = logger.warning(x)\n", 1),
    ],
    "check in the graph": [
        # more than the error
        ("if x.max() > 1:\n    self.errors += 1\n    raise ValueError()\n", 1),
        # the other branch
        ("if x.max() > 1:\n    raise ValueError()\nelse:\n    x = x + 1\n", 1),
        # evaluated only if the first is true
        ("if x is not None and x.max() > 1:\n    raise ValueError()\n", 1),
        # a value that is no tensor
        ("assert isinstance(x, torch.Tensor)\n", 1),
        ("assert x is not None\n", 1),
        ("if x > 1:\n    y = 1\n", 1),
    ],
    "check of numbers in the graph": [
        # a truth, not a comparison
        ("if x.any():\n    raise ValueError()\n", 1),
        # what is in something is no number
        ("if x in y:\n    raise ValueError()\n", 1),
        # the other branch
        ("if x > 1:\n    raise ValueError()\nelse:\n    x = x + 1\n", 1),
        # two comparisons
        ("assert 0 < x < 1\n", 1),
    ],
    "chosen instead of branched": [
        # two tensors
        ("if x.any():\n    z = x + 1\nelse:\n    z = y - 1\n", 1),
        ("return x if x.any() else y\n", 1),
        # other names
        ("if x.any():\n    y = x + 1\nelse:\n    z = x - 1\n", 1),
        # a value that is not there in the other branch
        ("if x.any():\n    y = x + 1\n", 1),
        # more than a value
        ("if x.any():\n    self.calls += 1\n    return x + 1\nreturn x\n", 1),
        ("if x.any():\n    return x + 1\ny = x * 2\nreturn y\n", 1),
        ("if x.any():\n    return x + 1\nreturn\n", 1),
        # an attribute, which others see
        ("self.last = x + 1 if x.any() else x\n", 1),
        # a shape that depends on the branch
        ("return x if x.any() else x.sum()\n", 1),
        # a condition that is evaluated only sometimes
        ("return x + 1 if x is not None and x.any() else x\n", 1),
        # another tensor, which may have another shape
        ("if x.any():\n    x = x + y\n", 1),
        ("if x.any():\n    x = y\n", 1),
        # a change in place, which others see
        ("if x.any():\n    x.add_(1)\n", 1),
        ("if x.any():\n    x += 1\n", 1),
        # a random draw
        ("if x.any():\n    x = torch.rand_like(x)\n", 1),
        # a condition of many elements, or no tensor
        ("if x > 1:\n    x = x + 1\n", 1),
        ("if self.training:\n    x = x + 1\n", 1),
        # a division, which may be NaN
        ("if x.any():\n    x = x / 2\n", 1),
    ],
    "list instead of a generator": [
        # these stop before the end
        ("return any(each > 1 for each in x)\n", 1),
        ("return all(each > 1 for each in x)\n", 1),
        ("return next(each for each in x if each > 1)\n", 1),
        # consumed later
        ("numbers = (each for each in x)\nreturn numbers\n", 1),
        ("return self.consume(each for each in x)\n", 1),
    ],
    "all rows visited": [
        # the row as a tensor
        (BEFORE["all rows visited"].replace("    slot", "    n = row + 1\n    slot"), 2),
        # rows are counted
        (BEFORE["all rows visited"].replace("    output.", "    n += 1\n    output."), 2),
        # a row is assigned, and not only added to
        (
            BEFORE["all rows visited"].replace("    states", "    last[0] = row\n    states", 1),
            2,
        ),
        # rows are remembered
        (
            BEFORE["all rows visited"].replace("    states", "    seen.append(row)\n    states"),
            2,
        ),
        # the rows are used afterwards
        (BEFORE["all rows visited"] + "len(hit)\n", 2),
        # added to places that do not come from the mask
        (BEFORE["all rows visited"].replace("(0, token,", "(0, row,"), 2),
    ],
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_rule_must_not_touch(name: str) -> None:
    for body, at in UNTOUCHED[name]:
        assert rewritten(name, body, at) == "", body


def test_a_check_is_as_strict_as_before() -> None:
    after = AFTER["check in the graph"]
    with pytest.raises(RuntimeError, match="a check of the model failed"):
        run(after, {"x": torch.tensor([1.0, 20.0])})


def test_segments_that_do_not_fit_the_sequence_are_an_error() -> None:
    after = AFTER["segments attended in one call"]
    for ends in ([0, 3], [0, 8], [0, 8, 7]):
        with pytest.raises(RuntimeError):
            run(after, {**segments(), "cu_seqlens": torch.tensor(ends)})


def test_a_row_without_parameters_is_checked_and_not_visited() -> None:
    mask = "mask = torch.nn.functional.one_hot(index, num_classes=count + 1).permute(2, 1, 0)\n"
    body = mask + BEFORE["all rows visited"]
    after = rewritten("all rows visited", body, 2)
    assert "range(mask.shape[0] - 1)" in after
    given = {**CALLS["all rows visited"](), "count": 3}
    del given["mask"]
    index = torch.tensor([[0, 2], [1, 2]])
    torch.testing.assert_close(
        run(after, {**given, "index": index, "output": torch.zeros(2, 4)}),
        run(body, {**given, "index": index, "output": torch.zeros(2, 4)}),
    )
    with pytest.raises(RuntimeError):
        run(after, {**given, "index": torch.tensor([[0, 3], [1, 2]])})


def test_a_row_is_a_number_and_its_elements_are_not_counted() -> None:
    before = BEFORE["all rows visited"]
    body = before.replace(
        "(mask[row[0]])\n", "(mask[row.item()])\n    if token.numel() == 0:\n        continue\n"
    )
    assert "if token" in body
    assert rewritten("all rows visited", body, 2) == AFTER["all rows visited"]
    other = body.replace("if token.numel()", "if weights.numel()")
    assert "if weights.numel() == 0:" in rewritten("all rows visited", other, 2)


CHOSEN = [
    ("return x if x.sum() > 0 else -x\n", "return torch.where(x.sum() > 0, x, -x)\n"),
    (
        "if x.mean().item() < -1:\n    return 2 * x\nreturn x - 1\n",
        "return torch.where(x.mean() < -1, 2 * x, x - 1)\n",
    ),
    (
        "if x.any():\n    return x.abs()\nelse:\n    return x\n",
        "return torch.where(x.any(), x.abs(), x)\n",
    ),
    (
        "if x.max() > 1:\n    y = x + 1\nelse:\n    y = x * 0.5\nreturn y\n",
        "y = torch.where(x.max() > 1, x + 1, x * 0.5)\nreturn y\n",
    ),
    ("y = x * 2 if x.any() else x\nreturn y\n", "y = torch.where(x.any(), x * 2, x)\nreturn y\n"),
]


@pytest.mark.parametrize(("before", "after"), CHOSEN)
def test_each_form_of_a_branch_becomes_a_choice(before: str, after: str) -> None:
    assert rewritten("chosen instead of branched", before, 1) == after
    for values in ([1.0, 2.0], [-3.0, -4.0], [0.0, 0.0]):
        given = {"x": torch.tensor(values)}
        torch.testing.assert_close(run(after, dict(given)), run(before, dict(given)))


def test_each_branch_of_a_choice_is_forced_in_both_functions() -> None:
    source = "def forward(x, y):\n    if x.max() > 3:\n        x = x * 2\n    return x\n"
    site = site_at(source, "a.py", 2)
    assert site is not None
    (edit,) = BY_NAME["chosen instead of branched"].apply(site)
    condition = "torch.full_like(x.max() > 3, {}, dtype=torch.bool)"
    assert edit.branches == tuple(
        (
            f"the branch at line 2 {name}",
            f"    if {taken}:\n        x = x * 2\n",
            f"    x = torch.where({condition.format(taken)}, x * 2, x)\n",
        )
        for taken, name in ((True, "taken"), (False, "not taken"))
    )
