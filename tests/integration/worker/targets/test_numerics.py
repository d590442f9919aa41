"""What counts as a mismatch with eager, and what does not."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from compilewatch.worker.targets.numerics import assess, compare, identical, leaves, tolerance_of

pytestmark = pytest.mark.torch

VALUES = torch.linspace(-4, 4, 2000)


class Cache:
    """As models return them: an object with tensors in lists, and a reference to itself."""

    def __init__(self, keys: Tensor, length: int = 3) -> None:
        self.layers = [{"keys": keys}]
        self.length = length
        self.owner = self


def test_leaves_are_found_in_whatever_a_model_returns() -> None:
    output = OrderedDict(logits=VALUES, cache=Cache(VALUES), hidden=(VALUES, None), loss=1.5)
    assert [name for name, _ in leaves(output)] == [
        "logits",
        "cache.layers[0].keys",
        "cache.length",
        "hidden[0]",
        "hidden[1]",
        "loss",
    ]
    assert [name for name, _ in leaves(VALUES)] == ["output"]


def test_equal_outputs_match() -> None:
    found = compare({"a": VALUES}, {"a": VALUES.clone()}, None)
    assert found.mismatches == ()
    assert (found.max_abs_error, found.max_rel_error, found.atol) == (0.0, 0.0, 1e-4)


def test_errors_are_measured_absolutely_and_to_the_largest_magnitude() -> None:
    found = compare({"a": torch.tensor([0.0, 8.0])}, {"a": torch.tensor([2.0, 8.0])}, None)
    assert (found.max_abs_error, found.max_rel_error) == (2.0, 0.25)
    assert found.mismatches == ("a: off by 2",)


def test_the_last_bits_are_no_mismatch() -> None:
    assert compare(VALUES, VALUES * (1 + 1e-5), None).mismatches == ()


@pytest.mark.parametrize(
    ("dtype", "factor", "matches"),
    [
        (torch.float64, 1e-6, False),
        (torch.float32, 1e-3, False),
        (torch.float16, 5e-3, False),
        (torch.bfloat16, 8e-3, True),
        (torch.complex64, 1e-3, False),
        (torch.complex64, 1e-5, True),
    ],
)
def test_the_tolerance_is_that_of_the_dtype(
    dtype: torch.dtype, factor: float, matches: bool
) -> None:
    values = VALUES.to(dtype) + 1
    assert bool(compare(values, values * (1 + factor), None).mismatches) is not matches


def test_an_unstable_model_is_held_to_its_own_error_in_float64() -> None:
    noise = torch.randn(VALUES.shape, generator=torch.Generator().manual_seed(0)) * 1e-2
    eager, compiled = VALUES + noise, VALUES - noise
    assert compare(eager, compiled, None).mismatches
    assert compare(eager, compiled, VALUES.double()).mismatches == ()
    worse = compare(eager, VALUES - 5 * noise, VALUES.double()).mismatches
    assert worse
    assert "off float64" in worse[0]


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        (VALUES[:-1], "shape (1999,), eager gives (2000,)"),
        (VALUES.double(), "torch.float64, eager gives torch.float32"),
        (torch.full_like(VALUES, torch.nan), "not finite where eager is, or the reverse"),
        (None, "NoneType, eager gives Tensor"),
    ],
)
def test_what_cannot_be_close(compiled: Any, said: str) -> None:
    found = compare({"a": VALUES}, {"a": compiled}, {"a": VALUES.double()})
    assert found.mismatches == (f"a: {said}",)


def test_another_structure_is_a_mismatch() -> None:
    found = compare({"a": VALUES, "b": 1}, {"a": VALUES, "c": 1}, None)
    assert found.mismatches == ("b: only in eager", "c: not in eager")
    assert compare(Cache(VALUES, 3), Cache(VALUES, 4), None).mismatches == (
        "length: 4, eager gives 3",
    )


def test_nan_where_eager_has_nan_is_no_mismatch() -> None:
    values = torch.tensor([1.0, torch.nan, torch.inf])
    found = compare(values, values.clone(), None)
    assert found.mismatches == ()
    assert found.max_abs_error == 0.0


def test_indices_may_flip_but_not_their_shape_or_dtype() -> None:
    picks = torch.tensor([1, 2])
    assert compare(picks, torch.tensor([1, 3]), None).mismatches == ()
    assert compare(picks, picks.int(), None).mismatches


def test_sparse_outputs_are_compared() -> None:
    eager = torch.eye(4).to_sparse()
    assert compare(eager, eager.clone(), None).mismatches == ()
    assert compare(eager, (torch.eye(4) * 2).to_sparse(), None).mismatches


def test_a_dtype_without_an_entry_has_the_loosest_tolerance() -> None:
    assert tolerance_of(torch.ones(1).to(torch.float8_e4m3fn)) == 1e-2


def test_identical_means_every_bit() -> None:
    values = torch.tensor([1.0, torch.nan])
    assert identical({"a": values}, {"a": values.clone()})
    assert not identical({"a": values}, {"a": values + 1e-6})
    assert not identical({"a": values}, {"b": values})
    assert not identical(torch.tensor([1]), torch.tensor([2]))


def test_every_run_starts_from_the_same_seed() -> None:
    found = assess(lambda: torch.rand(4), lambda: torch.rand(4), None)
    assert found.deterministic
    assert found.matches
    assert found.reference == "eager"


def test_a_model_that_differs_from_itself_is_flagged() -> None:
    calls = itertools.count()
    found = assess(lambda: VALUES + next(calls), lambda: VALUES, lambda: VALUES.double())
    assert not found.deterministic


def test_a_mismatch_that_persists_is_one() -> None:
    found = assess(lambda: VALUES, lambda: VALUES + 1, lambda: VALUES.double())
    assert found.deterministic
    assert not found.matches
    assert found.mismatches[0].startswith("output: off float64 by 1")
    assert found.reference == "float64"


def test_a_mismatch_that_does_not_persist_is_none() -> None:
    calls = itertools.count()

    def compiled() -> Tensor:
        return VALUES + 1 if next(calls) < 2 else VALUES

    found = assess(lambda: VALUES, compiled, lambda: VALUES.double())
    assert found.matches
    assert found.max_abs_error == 0.0


def test_a_model_that_does_not_run_in_float64_is_held_to_eager() -> None:
    def reference() -> Tensor:
        raise RuntimeError("expected scalar type Float but found Double")

    found = assess(lambda: VALUES, lambda: VALUES + 1, reference)
    assert found.reference == "eager"
    assert found.mismatches == ("output: off by 1",)


def by_batch(x: Tensor) -> dict[str, Tensor]:
    """The result of a sample depends on the others, as where a mask is left out for all or none."""
    return {"output": x - x.sum(0, keepdim=True) * (len(x) > 1)}


@pytest.mark.parametrize(
    ("eager", "compiled", "said"),
    [
        (dict, by_batch, "compiled code changes by 3, eager mode does not"),
        (by_batch, dict, "eager mode changes by 3, compiled code does not"),
        (by_batch, lambda x: {"output": x + 1}, "eager mode changes by 3 and compiled code cha"),
        (dict, dict, ""),
    ],
)
def test_samples_alone_say_which_of_two_results_depends_on_the_batch(
    eager: Any, compiled: Any, said: str
) -> None:
    x = torch.tensor([[1.0], [2.0]])

    def run(function: Any, given: Tensor = x) -> Any:
        return function({"output": given}) if function is dict else function(given)

    alone = [partial(run, eager, x[number, None]) for number in range(2)]
    found = assess(partial(run, eager), partial(run, compiled), None, alone)
    assert said in found.alone
    assert bool(found.alone) is bool(said)
    assert found.alone in found.difference
