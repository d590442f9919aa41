"""Which differences between two calls of a model the script sees, and which it forgives."""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from compilewatch.extras.fixes.worker.verifying import (
    CALLS,
    INDUCTOR_TOLERANCE,
    INTEGERS,
    OTHER_NUMBERS,
    UNUSUAL,
    ScriptCall,
    ScriptSubject,
    called,
    checksums,
    choose,
    difference,
    leaves,
    loss_of,
    planned,
    restored_globals,
    seeded,
    state,
    unequal_integers,
    unusual_kinds,
)

pytestmark = pytest.mark.torch


def outcome(values: dict[str, Any], changed: tuple[str, ...] = ()) -> dict[str, Any]:
    return {**values, "changed": list(changed)}


def found(expected: Any, got: Any, tolerance: float = 1e-6, **options: Any) -> str:
    return difference(outcome({"output": expected}), outcome({"output": got}), tolerance, **options)


def test_leaves_have_paths_and_their_containers_types() -> None:
    one = torch.ones(1)
    value = OrderedDict(a=[one, (2, None)], b=SimpleNamespace(c="text", log=logging.getLogger()))
    assert list(leaves(value, "output")) == [
        ("output", "<OrderedDict>"),
        ("output.a", "<list>"),
        ("output.a.0", one),
        ("output.a.1", "<tuple>"),
        ("output.a.1.0", 2),
        ("output.a.1.1", None),
        ("output.b", "<SimpleNamespace>"),
        ("output.b.c", "text"),
    ]


def test_leaves_of_what_contains_itself_end() -> None:
    endless: list[Any] = [1]
    endless.append(endless)
    assert ("x.0", 1) in list(leaves(endless, "x"))
    assert list(leaves(endless, "x", seen=set())) == [("x", "<list>"), ("x.0", 1)]


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 2.0], [1.0, 2.0000001], ""),
        ([1.0, 2.0], [1.0, 2.001], "differs by 0.001"),
        ([1.0], [1.0, 1.0], "(2,), not"),
        ([1.0], [1], "is torch.int64 (1,), not torch.float32 (1,)"),
        ([1, 2, 3], [1, 0, 0], "differs in 2 of 3 elements"),
        ([True], [False], "differs in 1 of 1 elements"),
        ([float("nan")], [float("nan")], ""),
        ([float("nan")], [0.0], "differs by"),
        ([float("inf")], [float("inf")], ""),
        ([float("inf")], [-float("inf")], "differs by"),
        ([1e-9, 2e-9], [1e-9, 0.0], "differs by 2e-09"),  # as if the largest were 1
        ([], [], ""),
    ],
)
def test_tensors(expected: list[Any], got: list[Any], words: str) -> None:
    said = found(torch.tensor(expected), torch.tensor(got))
    assert said.startswith("output ") if words else said == ""
    assert words in said


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (1, 1, True),
        (1, True, False),
        (1.0, 1, False),
        (0.5, 0.5 + 1e-9, True),
        (0.5, 0.6, False),
        ("a", "b", False),
        (None, 0, False),
        ("<list>", "<tuple>", False),
    ],
)
def test_numbers_and_texts(expected: Any, got: Any, same: bool) -> None:
    assert (found(expected, got) == "") == same


def test_what_is_missing_new_dropped_or_ignored() -> None:
    with_cache = outcome({"output.logits": 1, "output.past_key_values.0": 2})
    without = outcome({"output.logits": 1})
    assert difference(with_cache, without, 1e-6) == "output.past_key_values.0 is missing"
    assert difference(without, with_cache, 1e-6) == "output.past_key_values.0 is new"
    assert difference(with_cache, without, 1e-6, dropped=("past_key_values",)) == ""
    assert difference(with_cache, without, 1e-6, dropped=("past_key",)) != ""
    assert difference(with_cache, without, 1e-6, ignored=("output.past",)) == ""


def test_state_is_compared_where_a_call_changed_it() -> None:
    ours, theirs = {"state calls": 1}, {"state calls": 2}
    assert difference(outcome(ours), outcome(theirs), 1e-6) == ""
    changed = ("state calls",)
    assert difference(outcome(ours, changed), outcome(theirs), 1e-6) == "state calls is 2, not 1"
    assert difference(outcome(ours), outcome(theirs, changed), 1e-6) != ""


def test_a_gradient_is_compared_with_the_largest_one() -> None:
    """A key's bias has no gradient but rounding; a small gradient among small ones counts."""

    def gradients(*values: float) -> dict[str, Any]:
        return outcome({f"gradient of {n}": torch.tensor([v]) for n, v in enumerate(values)})

    assert difference(gradients(1.0, 1e-8), gradients(1.0, -1e-8), 1e-6) == ""
    assert difference(gradients(1e-7, 1e-8), gradients(1e-7, -1e-8), 1e-6) != ""


def test_float64_excuses_rounding_only_if_it_is_the_same_call() -> None:
    ours, theirs = torch.tensor([1.0, 1e-3]), torch.tensor([1.0, 1.1e-3])
    assert found(ours, theirs, 1e-4) == ""
    rounded = torch.tensor([1.0, 1.3e-3])
    assert found(ours, rounded, 1e-4) != ""
    exact = outcome({"output": torch.tensor([1.0, 1.2e-3], dtype=torch.float64)})
    assert found(ours, rounded, 1e-4, exact=exact) == ""
    for other in ([5.0, 7.0], [1.0, float("nan")]):
        values = torch.tensor(other, dtype=torch.float64)
        assert found(ours, rounded, 1e-4, exact=outcome({"output": values})) != ""


def test_inductors_integers_are_counted_instead() -> None:
    ours, theirs = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert found(ours, theirs, INDUCTOR_TOLERANCE) == ""
    counted = unequal_integers(outcome({"output": ours}), outcome({"output": theirs}))
    assert counted == {"output": 1}
    assert (
        unequal_integers(outcome({"output": ours}), outcome({"output": theirs}), ("output",)) == {}
    )


def test_a_call_returns_all_that_a_caller_can_notice() -> None:
    class Noticed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("count", torch.zeros(()))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            self.count += 1
            x.add_(1)
            return self.weight * x, x[:1]

    model, x = Noticed(), torch.zeros(2)
    seeded(0)
    seen = called(model, lambda: model(x), [[x], {}], nullcontext(), {}, train=True)
    assert seen["changed"] == ["state .calls"]
    assert (seen["state .calls"], seen["buffer count"].item()) == (1, 1)
    assert seen["arguments.0.0"].tolist() == [1, 1]
    assert seen["memory of output.0"] == "its own"
    assert seen["memory of output.1"] == "that of arguments.0.0"
    assert seen["gradient flows through output.0"] is True
    assert seen["gradient of weight"].abs().min() > 0
    seeded(0)
    again = called(model, lambda: model(x), [[x], {}], nullcontext(), {}, train=True)
    assert seen["buffer count"].item() == 1  # a copy
    assert again["random numbers"] == seen["random numbers"]
    seeded(0)
    drawn = called(
        model, lambda: (torch.rand(1), model(x))[1], [[x], {}], nullcontext(), {}, train=True
    )
    assert drawn["random numbers"] != seen["random numbers"]


def test_the_loss_of_a_normalised_output_has_gradients() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    loss_of([nn.functional.layer_norm(x, (8,)), torch.tensor(1)]).backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 1e-3
    assert loss_of({"ids": torch.tensor([1])}) is None


def test_globals_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(nn.Module):
        made = 0

    class Table(dict[str, int]):
        """What it returns may be made anew: it is left as it is."""

    class Statistics:
        calls = 0

    table, statistics = Table(gelu=1), Statistics()
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "SEEN", {"calls": [1]}, raising=False)
    monkeypatch.setattr(here, "LAST", 5, raising=False)
    monkeypatch.setattr(here, "TABLE", table, raising=False)
    monkeypatch.setattr(here, "STATISTICS", statistics, raising=False)
    model = Counts()
    before = state(model)
    assert before[f"state {__name__}.LAST"] == 5
    subject = ScriptSubject(lambda _: model, lambda _: ((), {}), lambda *_: nullcontext())
    with restored_globals(subject, model):
        vars(here)["SEEN"]["other"] = 1
        vars(here)["LAST"] = 6
        Counts.made += 1
        statistics.calls += 1
        assert state(model) != before
    assert state(model) == before
    assert vars(statistics) == {}
    assert table == {"gelu": 1}


def test_a_changed_parameter_is_seen_whatever_its_type() -> None:
    class Scales(nn.Module):
        def __init__(self, dtype: torch.dtype, by: float) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 2).to(dtype), requires_grad=False)
            self.by = by

        def forward(self) -> None:
            # Through `data`, which leaves no trace in the version of the parameter.
            self.scale.data.copy_(torch.full((2, 2), self.by).to(self.scale.dtype))

    def after_a_call(dtype: torch.dtype, by: float) -> dict[str, Any]:
        model = Scales(dtype, by)
        return called(model, model, [], nullcontext(), {}, train=False)

    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.int8):
        assert "parameter scale" not in after_a_call(dtype, 1)
        assert after_a_call(dtype, 2)["parameter scale"] == 8

    sparse = nn.Module()
    sparse.scale = nn.Parameter(torch.ones(2).to_sparse())
    before = checksums(sparse)
    sparse.scale.data = torch.zeros(2).to_sparse()
    assert checksums(sparse) != before


def subject(**given: Any) -> Any:
    def build(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 2)

    changed = {name: given[name] for name in ("functions", "frozen") if name in given}
    inputs = given.get("inputs", lambda _: ((torch.ones(2, 2),), {}))
    return ScriptSubject(build, inputs, lambda *_: nullcontext(), **changed)


def test_a_slow_model_is_called_six_times_and_once_more_where_the_fix_reads_numbers() -> None:
    reading = subject(functions=("a:f", "a:g"), frozen=("a:f",))
    frozen = subject(functions=("a:f",), frozen=("a:f",))
    assert planned(reading, slow=False) == CALLS
    assert len(planned(frozen, slow=False)) == 11
    assert planned(frozen, slow=True) == CALLS[:6]
    assert [variant for _, variant in planned(reading, slow=True)][6:] == [OTHER_NUMBERS]
    choose(frozen, {*CALLS[:2]}, slow=True)  # what eager mode does not accept is called as it is
    assert frozen.calls == CALLS[:2] * 3


def test_unusual_integers_are_tried_only_where_there_are_some() -> None:
    ids = subject(inputs=lambda _: ((), {"input_ids": torch.ones(2, 2, dtype=torch.int64)}))
    assert unusual_kinds(ids) == list(UNUSUAL)
    assert not {*INTEGERS} & {*unusual_kinds(subject())}


def test_a_model_takes_the_weights_of_another_one() -> None:
    one = subject()
    calling = ScriptCall(one, one.build(0), one.unchanged)
    weight, other = calling.model.weight, one.build(1)
    assert not torch.equal(weight, other.weight)
    calling.take(other)
    assert calling.model.weight is weight  # in place, so that nothing is compiled again
    assert torch.equal(weight, other.weight)
