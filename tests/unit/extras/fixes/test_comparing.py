"""Which differences between two calls of a model the script sees, and which it forgives."""

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from compilewatch.extras.fixes.worker import verifying

pytestmark = pytest.mark.torch


def outcome(values: dict[str, Any], changed: tuple[str, ...] = ()) -> dict[str, Any]:
    return {**values, "changed": list(changed)}


def apart(expected: Any, got: Any, tolerance: float = 1e-6, **options: Any) -> str:
    """How two calls differ that return these values, or these by name."""
    ours, theirs = (outcome(v if isinstance(v, dict) else {"output": v}) for v in (expected, got))
    return verifying.difference(ours, theirs, tolerance, **options)


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([1.0, 2.0], [1.0, 2.0000001], ""),
        ([1.0, 2.0], [1.0, 2.001], "output differs by 0.001"),
        ([1.0], [1.0, 1.0], "(2,), not"),
        ([1.0], [1], "is torch.int64 (1,), not torch.float32 (1,)"),
        ([1, 2, 3], [1, 0, 0], "differs in 2 of 3 elements"),
        ([True], [False], "differs in 1 of 1 elements"),
        ([math.nan], [math.nan], ""),
        ([math.nan], [0.0], "differs by"),
        ([math.inf], [math.inf], ""),
        ([math.inf], [-math.inf], "differs by"),
        ([1e-9, 2e-9], [1e-9, 0.0], "differs by 2e-09"),  # as if the largest were 1
        ([], [], ""),
        (1, 1, ""),
        (0.5, 0.5 + 1e-9, ""),
        (1, True, "is"),
        (1.0, 1, "is"),
        (0.5, 0.6, "differs"),
        ("a", "b", "is"),
        (None, 0, "is"),
        ("<list>", "<tuple>", "is"),
    ],
)
def test_values(expected: Any, got: Any, words: str) -> None:
    given = [torch.tensor(v) if isinstance(v, list) else v for v in (expected, got)]
    difference = apart(*given)
    assert words in difference
    assert bool(words) == bool(difference)


def test_what_is_missing_new_dropped_or_ignored() -> None:
    with_cache, without = {"output.logits": 1, "output.cache.0": 2}, {"output.logits": 1}
    assert apart(with_cache, without) == "output.cache.0 is missing"
    assert apart(without, with_cache) == "output.cache.0 is new"
    assert apart(with_cache, without, dropped=("cache",)) == ""
    assert apart(with_cache, without, dropped=("output.cache",)) != ""
    assert apart(with_cache, without, ignored=("output.ca",)) == ""


def test_state_is_compared_where_a_call_changed_it() -> None:
    ours, theirs, changed = {"state calls": 1}, {"state calls": 2}, ("state calls",)
    assert apart(ours, theirs) == ""
    for pair in (
        (outcome(ours, changed), outcome(theirs)),
        (outcome(ours), outcome(theirs, changed)),
    ):
        assert verifying.difference(*pair, 1e-6) == "state calls is 2, not 1"


def test_a_gradient_is_compared_with_the_largest_one() -> None:
    """A key's bias has no gradient but rounding; a small gradient among small ones counts."""

    def gradients(*values: float) -> dict[str, Any]:
        return {f"gradient of {n}": torch.tensor([v]) for n, v in enumerate(values)}

    assert apart(gradients(1.0, 1e-8), gradients(1.0, -1e-8)) == ""
    assert apart(gradients(1e-7, 1e-8), gradients(1e-7, -1e-8)) != ""


def test_float64_excuses_rounding_only_if_it_is_the_same_call() -> None:
    ours, rounded = torch.tensor([1.0, 1e-3]), torch.tensor([1.0, 1.3e-3])
    assert apart(ours, torch.tensor([1.0, 1.1e-3]), 1e-4) == ""
    assert apart(ours, rounded, 1e-4) != ""
    exact = outcome({"output": torch.tensor([1.0, 1.2e-3], dtype=torch.float64)})
    assert apart(ours, rounded, 1e-4, exact=exact) == ""
    for other in ([5.0, 7.0], [1.0, float("nan")]):
        values = torch.tensor(other, dtype=torch.float64)
        assert apart(ours, rounded, 1e-4, exact=outcome({"output": values})) != ""


def test_inductors_integers_are_counted_instead() -> None:
    ours, theirs = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert apart(ours, theirs, verifying.INDUCTOR_TOLERANCE) == ""
    pair = outcome({"output": ours}), outcome({"output": theirs})
    assert verifying.unequal_integers(*pair) == {"output": 1}
    assert verifying.unequal_integers(*pair, ("output",)) == {}


def test_the_loss_of_a_normalised_output_has_gradients() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    verifying.loss_of([nn.functional.layer_norm(x, (8,)), torch.tensor(1)]).backward()
    assert x.grad is not None
    assert x.grad.abs().max() > 1e-3
    assert verifying.loss_of({"ids": torch.tensor([1])}) is None
    of_each_sample = torch.tensor([1.0, 3.0], requires_grad=True)
    assert verifying.loss_of(SimpleNamespace(loss=of_each_sample)).item() == 2


def called(model: nn.Module, *args: Any) -> dict[str, Any]:
    one = subject()
    return verifying.ScriptCall(one, model, one.unchanged)(args, {}, seed=0)


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
        return called(Scales(dtype, by))

    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.float8_e4m3fn, torch.int8):
        assert "parameter scale" not in after_a_call(dtype, 1)
        assert after_a_call(dtype, 2)["parameter scale"] == 8

    sparse = nn.Module()
    sparse.scale = nn.Parameter(torch.ones(2).to_sparse())
    before = verifying.checksums(sparse)
    sparse.scale.data = torch.zeros(2).to_sparse()
    assert verifying.checksums(sparse) != before


def subject(**given: Any) -> Any:
    def build(seed: int) -> torch.nn.Module:
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 2)

    changed = {name: given[name] for name in ("functions", "frozen") if name in given}
    inputs = given.get("inputs", lambda _: ((torch.ones(2, 2),), {}))
    return verifying.ScriptSubject(build, inputs, lambda *_: nullcontext(), **changed)


def test_a_slow_model_is_called_six_times_and_once_more_where_the_fix_reads_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dumps, loads = "json:dumps", "json:loads"
    reading = subject(functions=(dumps, loads), frozen=(dumps,))
    frozen = subject(functions=(dumps,), frozen=(dumps,))
    monkeypatch.setattr(verifying, "SLOW", math.inf)
    assert verifying.planned(reading) == (verifying.CALLS, verifying.EAGER_ONLY)
    assert len(verifying.planned(frozen)[0]) == 11
    monkeypatch.setattr(verifying, "SLOW", -1.0)
    assert verifying.planned(frozen)[0] == verifying.CALLS[:6]
    calls, _ = verifying.planned(reading)
    assert [variant for _, variant in calls][6:] == [verifying.OTHER_NUMBERS]
    # What eager mode does not accept is called as it is.
    frozen.new = lambda _: Twice()
    assert verifying.planned(frozen) == (verifying.CALLS[:2] * 3, ())


class Twice(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 2:
            raise ValueError("not again")
        return x


def test_unusual_integers_are_tried_only_where_there_are_some() -> None:
    ids = subject(inputs=lambda _: ((), {"input_ids": torch.ones(2, 2, dtype=torch.int64)}))
    assert verifying.unusual_kinds(ids) == list(verifying.UNUSUAL)
    assert not {*verifying.INTEGERS} & {*verifying.unusual_kinds(subject())}


def test_a_model_takes_the_weights_of_another_one() -> None:
    one = subject()
    calling = verifying.ScriptCall(one, one.build(0), one.unchanged)
    weight, other = calling.model.weight, one.build(1)
    assert not torch.equal(weight, other.weight)
    calling.take(other)
    assert calling.model.weight is weight  # in place, so that nothing is compiled again
    assert torch.equal(weight, other.weight)


class Keeps(nn.Module):
    """Returns a tensor of its own, which each call changes, or a new one."""

    def __init__(self, *, new: bool) -> None:
        super().__init__()
        self.held, self.new = [torch.zeros(verifying.LARGE_TENSOR)], new

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.held[0] + x if self.new else self.held[0].add_(x)


@pytest.mark.parametrize("new", [True, False])
def test_a_large_result_is_not_changed_by_the_next_call(*, new: bool) -> None:
    model = Keeps(new=new).eval()
    outcomes = [called(model, torch.ones(1)) for _ in range(2)]
    assert [outcome["output"][0].item() for outcome in outcomes] == [1.0, 1.0 if new else 2.0]
