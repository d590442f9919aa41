"""What each rule rewrites, that it computes the same, and what it must not touch."""

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

BY_NAME = {rule.change.name: rule for rule in RULES}

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
    "tensor instead of a list": lambda: {"x": torch.ones(3, 2)},
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


SEGMENTS, ROWS = "segments attended in one call", "all rows visited"

# Examples that are changed in one place, so that the rule no longer holds.
CHANGED = {
    SEGMENTS: [
        ("dim=2", "dim=1"),  # another dimension is split
        ("=None", "=mask"),  # the model has a mask of its own
        ("scaling=2", "scaling=len(k)"),  # what is attended depends on the segment otherwise
        ("q, k, v, att", "q, v, k, att"),  # keys and values are exchanged
    ],
    ROWS: [
        ("    slot", "    n = row + 1\n    slot"),  # the row as a tensor
        ("    output.", "    n += 1\n    output."),  # rows are counted
        ("    states", "    last[0] = row\n    states"),  # a row is assigned, not only added to
        ("    states", "    seen.append(row)\n    states"),  # rows are remembered
        ("(0, token,", "(0, row,"),  # added to places that do not come from the mask
    ],
}

# Bodies of functions, with the line that breaks.
UNTOUCHED = {
    SEGMENTS: [(2, BEFORE[SEGMENTS] + "len(outputs)")],  # the outputs are used afterwards
    ROWS: [(2, BEFORE[ROWS] + "len(hit)")],  # the rows are used afterwards
    "numbers gathered in a tensor": [
        (2, "ends = [0]\nends.extend(x.tolist())\nreturn ends"),  # the list itself is returned
        # without a type, that of the numbers would be another
        (2, "ends = [0]\nends.extend(x.tolist())\nends = torch.tensor(ends)\nreturn ends"),
        # an empty tensor has another type than an empty list
        (2, "e = []\ne.extend(x.tolist())\ne = torch.tensor(e, dtype=torch.int)\nreturn e"),
        # another use of the list
        (2, "e = [0]\ne.extend(x.tolist())\ne.pop()\ne = torch.tensor(e, dtype=torch.int)"),
        # what is read from a tensor is evaluated once
        (2, "e = [0]\ne.extend(x.add_(1).tolist())\ne = torch.tensor(e, dtype=torch.int)"),
    ],
    "assigned where a mask is true": [
        (2, "mask = x.argmax(0)\nif x.any():\n    x[mask] = 0"),  # integers are positions
        (1, "if (x > 1).any():\n    x[x > 1] = 0\nelse:\n    x[x > 1] = 1"),
        (1, "if (x > 1).any():\n    x[x > 1] = 0\n    x = x + 1"),  # more than the assignment
        (1, "if (x > 1).any():\n    x[x > 1] = torch.rand(1)"),  # a value with an effect
        (1, "if x.sum():\n    x[x > 1] = 0"),  # for a number & has another meaning
        (3, "mask = x > 1\nmask = given\nif mask.any():\n    x[mask] = 0"),  # may be anything
    ],
    "message guarded": [
        (1, "self.history.warning(x)"),  # a method of something that is no logger
        (1, "logger.warning(self.count_calls(x))"),  # an argument with an effect
        (1, "raise ValueError(x)"),
        (1, "y = logger.warning(x)"),  # the result is used
    ],
    "check in the graph": [
        (1, "if x.max() > 1:\n    self.errors += 1\n    raise ValueError()"),
        (1, "if x.max() > 1:\n    raise ValueError()\nelse:\n    x = x + 1"),
        (1, "if x is not None and x.max() > 1:\n    raise ValueError()"),  # evaluated sometimes
        (1, "assert isinstance(x, torch.Tensor)"),  # no tensor
        (1, "assert x is not None"),
        (1, "if x > 1:\n    y = 1"),
    ],
    "check of numbers in the graph": [
        (1, "if x.any():\n    raise ValueError()"),  # a truth, not a comparison
        (1, "if x in y:\n    raise ValueError()"),  # what is in something is no number
        (1, "if x > 1:\n    raise ValueError()\nelse:\n    x = x + 1"),
        (1, "assert 0 < x < 1"),  # two comparisons
    ],
    "chosen instead of branched": [
        (1, "if x.any():\n    z = x + 1\nelse:\n    z = y - 1"),  # two tensors
        (1, "return x if x.any() else y"),
        (1, "if x.any():\n    y = x + 1\nelse:\n    z = x - 1"),  # other names
        (1, "if x.any():\n    y = x + 1"),  # no value in the other branch
        (1, "if x.any():\n    self.calls += 1\n    return x + 1\nreturn x"),  # more than a value
        (1, "if x.any():\n    return x + 1\ny = x * 2\nreturn y"),
        (1, "if x.any():\n    return x + 1\nreturn"),
        (1, "self.last = x + 1 if x.any() else x"),  # an attribute, which others see
        (1, "return x if x.any() else x.sum()"),  # a shape that depends on the branch
        (1, "return x + 1 if x is not None and x.any() else x"),  # evaluated only sometimes
        (1, "if x.any():\n    x = x + y"),  # another tensor, which may have another shape
        (1, "if x.any():\n    x = y"),
        (1, "if x.any():\n    x.add_(1)"),  # a change in place, which others see
        (1, "if x.any():\n    x += 1"),
        (1, "if x.any():\n    x = torch.rand_like(x)"),
        (1, "if x > 1:\n    x = x + 1"),  # a condition of many elements, or no tensor
        (1, "if self.training:\n    x = x + 1"),
        (1, "if x.any():\n    x = x / 2"),  # may be NaN
    ],
    "tensor instead of a list": [
        (1, "n = list(range(x.shape[0]))"),  # the list itself may be changed
        (1, "return torch.tensor([x.sum()] * x.shape[0])"),  # evaluated once, and no number
        (1, "return torch.tensor([1, 2] * x.shape[0])"),
        (1, "return torch.stack(list(range(x.shape[0])))"),
    ],
    "list instead of a generator": [
        (1, "return any(each > 1 for each in x)"),  # these stop before the end
        (1, "return all(each > 1 for each in x)"),
        (1, "return next(each for each in x if each > 1)"),
        (1, "numbers = (each for each in x)\nreturn numbers"),  # consumed later
        (1, "return self.consume(each for each in x)"),
    ],
}


@pytest.mark.parametrize("name", BY_NAME)
def test_what_a_rule_must_not_touch(name: str) -> None:
    changed = [(2, BEFORE[name].replace(*pair, 1)) for pair in CHANGED.get(name, [])]
    for at, body in [*UNTOUCHED[name], *changed]:
        assert body != BEFORE[name]
        assert rewritten(name, f"{body}\n", at) == "", body


def test_a_check_is_as_strict_as_before() -> None:
    with pytest.raises(RuntimeError, match="a check of the model failed"):
        run(AFTER["check in the graph"], {"x": torch.tensor([1.0, 20.0])})
    for ends in ([0, 3], [0, 8], [0, 8, 7]):  # segments that do not fit the sequence
        with pytest.raises(RuntimeError):
            run(AFTER[SEGMENTS], {**segments(), "cu_seqlens": torch.tensor(ends)})


def test_a_row_without_parameters_is_checked_and_not_visited() -> None:
    mask = "mask = torch.nn.functional.one_hot(index, num_classes=count + 1).permute(2, 1, 0)\n"
    body = mask + BEFORE[ROWS]
    after = rewritten(ROWS, body, 2)
    assert "range(mask.shape[0] - 1)" in after
    given = {**CALLS[ROWS](), "count": 3}
    del given["mask"]
    index = torch.tensor([[0, 2], [1, 2]])
    torch.testing.assert_close(
        run(after, {**given, "index": index, "output": torch.zeros(2, 4)}),
        run(body, {**given, "index": index, "output": torch.zeros(2, 4)}),
    )
    with pytest.raises(RuntimeError):
        run(after, {**given, "index": torch.tensor([[0, 3], [1, 2]])})


def test_a_row_is_a_number_and_its_elements_are_not_counted() -> None:
    before = BEFORE[ROWS]
    body = before.replace(
        "(mask[row[0]])\n", "(mask[row.item()])\n    if token.numel() == 0:\n        continue\n"
    )
    assert "if token" in body
    assert rewritten(ROWS, body, 2) == AFTER[ROWS]
    other = body.replace("if token.numel()", "if weights.numel()")
    assert "if weights.numel() == 0:" in rewritten(ROWS, other, 2)


CHOSEN = {
    "return x if x.sum() > 0 else -x": "return torch.where(x.sum() > 0, x, -x)",
    "if x.mean().item() < -1:\n    return 2 * x\nreturn x - 1": (
        "return torch.where(x.mean() < -1, 2 * x, x - 1)"
    ),
    "if x.any():\n    return x.abs()\nelse:\n    return x": (
        "return torch.where(x.any(), x.abs(), x)"
    ),
    "if x.max() > 1:\n    y = x + 1\nelse:\n    y = x * 0.5\nreturn y": (
        "y = torch.where(x.max() > 1, x + 1, x * 0.5)\nreturn y"
    ),
    "y = x * 2 if x.any() else x\nreturn y": "y = torch.where(x.any(), x * 2, x)\nreturn y",
}


def test_each_form_of_a_branch_becomes_a_choice() -> None:
    for before, after in CHOSEN.items():
        assert rewritten("chosen instead of branched", f"{before}\n", 1) == f"{after}\n"
        for values in ([1.0, 2.0], [-3.0, -4.0], [0.0, 0.0]):
            given = {"x": torch.tensor(values)}
            torch.testing.assert_close(run(after, dict(given)), run(before, dict(given)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.tensor(range(n))", "torch.arange(n)"),
        ("torch.tensor([0.5] * n)", "torch.full((n,), 0.5)"),
        ("torch.tensor([True] * n)", "torch.full((n,), True)"),
        ("torch.tensor([2] * n, dtype=torch.half)", "torch.full((n,), 2, dtype=torch.half)"),
    ],
)
def test_each_form_of_a_list_becomes_the_same_tensor(old: str, new: str) -> None:
    assert rewritten("tensor instead of a list", f"return {old}\n", 1) == f"return {new}\n"
    ours, theirs = (run(f"return {text}\n", {"n": 3}) for text in (old, new))
    assert torch.equal(ours, theirs)
    assert ours.dtype == theirs.dtype
