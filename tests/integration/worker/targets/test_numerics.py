"""What counts as a mismatch with eager, and what does not; results survive a pipe."""

import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compilewatch.records import Mode, Phase, Status
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets import numerics
from compilewatch.worker.targets.execution import NumericsTarget, compared, enlarged
from compilewatch.worker.targets.numerics import assess, compare, from_bytes, to_bytes
from tests.integration.worker.targets.conftest import MakeSubject

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
    names = "logits cache.layers[0].keys cache.length hidden[0] hidden[1] loss"
    assert [name for name, _ in numerics.leaves(output)] == names.split()
    assert [name for name, _ in numerics.leaves(VALUES)] == ["output"]


@pytest.mark.parametrize(
    ("dtype", "factor", "matches"),
    [
        (torch.float64, 1e-6, False),
        (torch.float32, 1e-3, False),
        (torch.float32, 1e-5, True),
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
    assert numerics.tolerance_of(torch.ones(1).to(torch.float8_e4m3fn)) == 1e-2  # has no entry


PICKS, NOT_FINITE = torch.tensor([1, 2]), torch.tensor([1.0, torch.nan, torch.inf])
EYE = torch.eye(4)


@pytest.mark.parametrize(
    ("eager", "compiled", "mismatches"),
    [
        (VALUES, VALUES[:-1], ("output: shape (1999,), eager gives (2000,)",)),
        (VALUES, VALUES.double(), ("output: torch.float64, eager gives torch.float32",)),
        (VALUES, VALUES * torch.nan, ("output: not finite where eager is, or the reverse",)),
        (VALUES, None, ("output: NoneType, eager gives Tensor",)),
        ({"a": VALUES, "b": 1}, {"a": VALUES, "c": 1}, ("b: only in eager", "c: not in eager")),
        (Cache(VALUES), Cache(VALUES, 4), ("length: 4, eager gives 3",)),
        (NOT_FINITE, NOT_FINITE.clone(), ()),
        (PICKS, torch.tensor([1, 3]), ()),  # indices may flip, but not their type
        (PICKS, PICKS.int(), ("output: torch.int32, eager gives torch.int64",)),
        (EYE.to_sparse(), EYE.to_sparse(), ()),
        (EYE.to_sparse(), (EYE * 2).to_sparse(), ("output: off by 1",)),
    ],
)
def test_what_cannot_be_close(eager: Any, compiled: Any, mismatches: tuple[str, ...]) -> None:
    reference = VALUES.double() if eager is VALUES else None
    assert compare(eager, compiled, reference).mismatches == mismatches


def test_errors_are_measured_absolutely_and_to_the_largest_magnitude() -> None:
    found = compare({"a": torch.tensor([0.0, 8.0])}, {"a": torch.tensor([2.0, 8.0])}, None)
    assert (found.max_abs_error, found.max_rel_error) == (2.0, 0.25)
    assert found.mismatches == ("a: off by 2",)
    found = compare({"a": VALUES}, {"a": VALUES.clone()}, None)
    assert (found.max_abs_error, found.max_rel_error, found.atol) == (0.0, 0.0, 1e-4)


def test_an_unstable_model_is_held_to_its_own_error_in_float64() -> None:
    noise = torch.randn(VALUES.shape, generator=torch.Generator().manual_seed(0)) * 1e-2
    eager, compiled = VALUES + noise, VALUES - noise
    assert compare(eager, compiled, None).mismatches
    assert compare(eager, compiled, VALUES.double()).mismatches == ()
    (worse,) = compare(eager, VALUES - 5 * noise, VALUES.double()).mismatches
    assert "off float64" in worse


def test_equal_results_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a large vocabulary have gigabytes, which the memory limit does not have twice."""
    monkeypatch.delattr(numerics, "_double")
    assert compare({"a": VALUES}, {"a": VALUES.clone()}, None).matches
    assert numerics.identical({"a": VALUES}, {"a": VALUES.clone()})


def test_identical_means_every_bit() -> None:
    values = torch.tensor([1.0, torch.nan])
    others = [{"a": values + 1e-6}, {"b": values}, {"a": torch.tensor([1, 2])}]
    assert numerics.identical({"a": values}, {"a": values.clone()})
    assert not any(numerics.identical({"a": values}, other) for other in others)


def test_runs_have_the_same_seed_and_a_model_that_differs_from_itself_is_flagged() -> None:
    same = assess(lambda: torch.rand(4), lambda: torch.rand(4), lambda: pytest.fail("not needed"))
    assert (same.deterministic, same.matches, same.reference) == (True, True, "eager")
    calls = itertools.count()
    other = assess(lambda: VALUES + next(calls), lambda: VALUES, lambda: VALUES.double())
    assert not other.deterministic


def test_only_a_mismatch_that_persists_is_one_and_eager_is_the_reference_without_float64() -> None:
    def no_reference() -> Tensor:
        raise RuntimeError("expected scalar type Float but found Double")

    wrong = assess(lambda: VALUES, lambda: VALUES + 1, lambda: VALUES.double())
    assert (wrong.deterministic, wrong.matches, wrong.reference) == (True, False, "float64")
    assert wrong.mismatches[0].startswith("output: off float64 by 1")
    calls = itertools.count()
    once = assess(lambda: VALUES, lambda: VALUES + (next(calls) < 2), lambda: VALUES.double())
    assert (once.matches, once.max_abs_error) == (True, 0.0)
    wrong = assess(lambda: VALUES, lambda: VALUES + 1, no_reference)
    assert (wrong.reference, wrong.mismatches) == ("eager", ("output: off by 1",))


def by_batch(x: Tensor) -> dict[str, Tensor]:
    """The result of a sample depends on the others, as where a mask is left out for all or none."""
    return {"output": x - x.sum(0, keepdim=True) * (len(x) > 1)}


def paired(x: Tensor) -> dict[str, Tensor]:
    """As the scores of images and texts: a sample has one for each of the batch."""
    return {"output": x, "scores": x @ x.T}


@pytest.mark.parametrize(
    ("eager", "compiled", "said"),
    [
        (dict, by_batch, "compiled code changes by 3, eager mode does not"),
        (paired, lambda x: by_batch(x) | {"scores": x @ x.T}, "by 3, eager mode does not"),
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
    found = assess(partial(run, eager), partial(run, compiled), None, {"": alone})
    assert said in found.alone
    assert bool(found.alone) is bool(said)
    assert found.alone in found.difference


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4)], ids=str)
def test_tensors_keep_their_type_shape_and_bits(shape: tuple[int, ...]) -> None:
    kinds = (torch.float32, torch.bfloat16, torch.complex64, torch.bool, torch.int64, torch.uint8)
    tensors = {str(dtype): (torch.rand(shape) * 5).to(dtype) for dtype in kinds}
    decoded = from_bytes(to_bytes(tensors))
    for name, tensor in tensors.items():
        assert (decoded[name].dtype, decoded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(decoded[name], tensor)


def test_other_layouts_become_dense_and_what_is_no_tensor_stays_or_becomes_text() -> None:
    eye = torch.eye(3)
    views = {"sparse": eye.to_sparse(), "turned": eye.t(), "conjugate": (eye * 1j).conj()}
    decoded = from_bytes(to_bytes(views))
    for name, value in views.items():
        assert torch.equal(decoded[name], value.to_dense().resolve_conj())
    plain = {"a": 1, "b": float("inf"), "c": None, "d": True, "e": "text"}
    decoded = from_bytes(to_bytes({**plain, "f": 2**70, "g": 1j}))
    assert decoded == {**plain, "f": f"int: {2**70}", "g": "complex: 1j"}


def test_what_the_parent_knows_is_not_returned_again() -> None:
    known = {"same": VALUES, "other": VALUES, "double": VALUES, "whole": 1}
    results = {"same": VALUES.clone(), "other": VALUES + 1, "double": VALUES.double(), "whole": 1}
    data = to_bytes(results, known)
    assert len(to_bytes(results)) - len(data) >= VALUES.nbytes
    decoded = from_bytes(data, known)
    assert decoded["same"] is VALUES
    assert numerics.identical(decoded, results)


class Takes(nn.Module):
    def forward(self, x: Tensor, pixels: list[Tensor], flag: bool) -> Tensor:
        return x + pixels[0].mean() if flag else x


def test_a_larger_batch_has_one_more_row_wherever_it_is_named(make_subject: MakeSubject) -> None:
    inputs = ExampleInputs(
        strategy="test",
        kwargs={"x": torch.ones(2, 4), "pixels": [torch.ones(4, 2)], "flag": True},
        dynamic_shapes={"x": {0: "batch", 1: "sequence"}, "pixels": {1: "batch"}},
    )
    subject = replace(make_subject(Takes), inputs=inputs)
    larger = enlarged(subject).inputs.kwargs
    assert (larger["x"].shape, larger["pixels"][0].shape) == ((3, 4), (4, 3))
    assert larger["flag"] is True
    assert inputs.kwargs["x"].shape == (2, 4)
    assert enlarged(replace(subject, inputs=replace(inputs, dynamic_shapes={}))) is None


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_only_the_first_results_are_returned_whole(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []

    def decode(data: bytes, known: Any = None) -> dict[str, Any]:
        returned.append(len(data))
        return from_bytes(data, known)

    monkeypatch.setattr(numerics, "from_bytes", decode)
    subject = replace(
        make_subject(Double), inputs=ExampleInputs(strategy="test", kwargs={"x": VALUES})
    )
    assert compared(subject, lambda inside: inside.module).matches
    eager, compiled, again = returned
    assert eager > VALUES.nbytes > 50 * max(compiled, again)


class Third(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x) + x / 3


class Layers(nn.Module):
    """Calls two modules of a list with an argument by keyword, and has a module within one."""

    def __init__(self, last: type[nn.Module] = Third) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [nn.Sequential(Double(), Double()), nn.Sequential(Double(), last())]
        )
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(input=x * self.weight)
        return x


class OverBatch(nn.Module):
    """Attention over the batch: a sample depends on the others in eager mode."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(torch.sin(x) @ x.T, -1) @ x


class NormOfBatch(Layers):
    def __init__(self) -> None:
        super().__init__(partial(nn.BatchNorm1d, 4))  # type: ignore[arg-type]


def swapped(x: Tensor) -> Tensor:
    return x.flip(0)


def added(x: Tensor) -> Tensor:
    return x + 0.5


@pytest.mark.parametrize(
    ("build", "mode", "wrong", "first_layer", "alone"),
    [
        (Layers, Mode.EVAL, added, "parts.1.1 (Third)", "compiled code changes by 0.5"),
        (Layers, Mode.EVAL, swapped, "parts.1.1 (Third)", "eager mode does not"),
        (Layers, Mode.TRAIN, added, "parts.1.1 (Third)", ""),
        (NormOfBatch, Mode.TRAIN, added, "parts.1.1 (BatchNorm1d)", ""),
        (OverBatch, Mode.EVAL, added, "", "eager mode changes by "),
    ],
)
def test_a_graph_that_is_wrong_from_the_second_size_on_is_found_in_its_layer(
    make_subject: MakeSubject,
    backend: Callable[[Any], str],
    build: type[nn.Module],
    mode: Mode,
    wrong: Callable[[Tensor], Tensor],
    first_layer: str,
    alone: str,
) -> None:
    """Where eager mode itself depends on the other samples of the batch, it is said instead."""

    def compiler(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        words = ("sin", "batch_norm")
        is_wrong = any(word in str(n.target) for n in graph.graph.nodes for word in words)

        def run(*args: Any) -> Any:
            return tuple(wrong(o) if is_wrong and len(o) == 4 else o for o in graph(*args))

        return run

    subject = make_subject(build, mode=mode, name="numerics", backend=backend(compiler))
    given = ExampleInputs(strategy="factory", args=(torch.linspace(-1, 1, 8).reshape(2, 4),))
    phases: list[Phase] = []
    outcome = NumericsTarget().run(replace(subject, inputs=given, enter=phases.append))
    assert (outcome.status, phases) == (Status.MISMATCH, [Phase.COMPILE, Phase.COMPARE])
    comparison = outcome.numerics
    assert comparison.sizes == ({"batch": 2}, {"batch": 4}, {"batch": 2})
    assert {text.partition(":")[0] for text in comparison.mismatches} == {"call 2"}
    assert comparison.first_layer.partition(":")[0] == first_layer
    assert alone in comparison.alone
    assert bool(comparison.alone) is bool(alone)
    assert comparison.depends_on_batch is (build is OverBatch)


class LossOfEncoder(nn.Module):
    """Half of the parameters have no gradient in eager mode; compiled code gives them zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        code = self.encoder(x)
        return {"loss": code.square().mean(), "decoded": self.decoder(code)}


@pytest.mark.parametrize("build", [Layers, NormOfBatch, OverBatch, LossOfEncoder])
@pytest.mark.parametrize("mode", Mode)
def test_a_right_graph_is_no_mismatch_whatever_samples_do_to_each_other(
    make_subject: MakeSubject, build: type[nn.Module], mode: Mode
) -> None:
    subject = make_subject(build, mode=mode, name="numerics")
    given = ExampleInputs(strategy="factory", args=(torch.linspace(-1, 1, 8).reshape(2, 4),))
    outcome = NumericsTarget().run(replace(subject, inputs=given))
    assert outcome.status is Status.PASS, outcome.detail
    assert outcome.detail == "as eager mode; batch 2; batch 4; batch 2"
    assert (outcome.numerics.backend, outcome.numerics.max_abs_error) == ("aot_eager", 0.0)
