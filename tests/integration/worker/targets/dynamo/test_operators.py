"""Operators in graphs and outside of them: known ones, and what plain PyTorch counts itself."""

from typing import Any

import pytest
import torch
from breaks import CASES, STATE, Case
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from compilewatch.records import Mode, Tier
from compilewatch.worker.targets.dynamo.target import DynamoTarget
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:seen"),
]

ADDED = {
    ("nothing_after", Mode.TRAIN): 1,
    ("changes_input", Mode.TRAIN): 1,
    ("LazyLayer", Mode.EVAL): -4,
    ("LazyLayer", Mode.TRAIN): -4,
}
"""AOTAutograd makes an operation in place one out of place, and copies its result back. Dynamo
initialises a lazy layer while it traces."""

NUMBERS = "two_on_one_line"
"""Dynamo passes a number that was read into the next graph as a tensor, and reads it there."""


class Split(nn.Module):
    """Two graphs, and nothing between them."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + 1


class Item(nn.Module):
    """A value is read between two graphs."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.relu()
        return y * y.sum().item()


@torch._dynamo.disable
def outside(x: Tensor) -> Tensor:
    return x.sin().cos().tan()


class Disabled(nn.Module):
    """Three operators of five run in a function that Dynamo must not compile."""

    def forward(self, x: Tensor) -> Tensor:
        return outside(x.exp()) + 1


def grown(x: Tensor, size: int) -> Tensor:
    torch._dynamo.graph_break()
    return x.relu() + size


class Grown(nn.Module):
    """A function that breaks is called from a loop, with another number each time."""

    def forward(self, x: Tensor) -> Tensor:
        for size in range(3):
            x = grown(x, size)
        return x


class Nested(nn.Module):
    """A function that is called in the middle breaks in the middle."""

    def forward(self, x: Tensor) -> Tensor:
        return grown(x.sin(), 1).cos()


class Branches(nn.Module):
    """A higher-order operator, which a mode of the dispatcher must let through."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


class PlainCount(TorchDispatchMode):
    """What plain PyTorch dispatches."""

    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.namespace != "prim" and func is not torch.ops.aten.detach.default
        return func(*args, **(kwargs or {}))


def figures(make: MakeSubject, build: Any, **options: Any) -> Any:
    outcome = DynamoTarget().run(make(build, **options))
    assert outcome.capture is not None, outcome.error
    return outcome.capture


@pytest.mark.parametrize(
    ("build", "captured", "eager"),
    [
        (Split, 3, ()),
        (Disabled, 2, ("sin", "cos", "tan")),
        (Item, 3, ("_local_scalar_dense",)),
        (Grown, 6, ()),
        (Branches, 3, ()),
    ],
)
def test_known_operators(
    make_subject: MakeSubject, build: Any, captured: int, eager: tuple[str, ...]
) -> None:
    for tier in (Tier.REAL,) if build is Item else (Tier.FAKE, Tier.REAL):
        capture = figures(make_subject, build, tier=tier)
        named = {f"aten.{name}.default": 1 for name in eager}
        assert (capture.operators_captured, capture.eager_operators) == (captured, named)
        assert capture.share == captured / (captured + len(eager))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    "case", [case for case in CASES if case.name != NUMBERS], ids=lambda case: case.name
)
def test_both_counts_add_up_to_what_plain_pytorch_runs(
    case: Case, mode: Mode, make_subject: MakeSubject
) -> None:
    subject = make_subject(case.build, mode=mode)
    with PlainCount() as plain, torch.set_grad_enabled(mode is Mode.TRAIN):
        subject.module(*subject.inputs.args)
    STATE.clear()
    capture = figures(make_subject, case.build, mode=mode)
    every = capture.operators_captured + capture.operators_eager
    assert every == plain.calls + ADDED.get((case.name, mode), 0)


@pytest.mark.parametrize("build", [Split, Disabled, Grown])
def test_train_mode_counts_the_forward_on_fake_tensors_too(
    make_subject: MakeSubject, build: type[nn.Module]
) -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))
            self.inner = build()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * self.weight)

    plain, real, fake = (
        figures(make_subject, Trained, **options)
        for options in ({}, {"mode": Mode.TRAIN}, {"mode": Mode.TRAIN, "tier": Tier.FAKE})
    )
    assert real.operators_captured == fake.operators_captured == plain.operators_captured
    assert real.eager_operators == fake.eager_operators == plain.eager_operators


def test_nested_graph_breaks_are_set_for_the_capture_only(make_subject: MakeSubject) -> None:
    before = torch._dynamo.config.nested_graph_breaks
    on, off, unset = (
        DynamoTarget().run(make_subject(Nested, nested_graph_breaks=wanted))
        for wanted in (True, False, None)
    )
    used = [each.capture.nested_graph_breaks for each in (on, off, unset)]
    assert used == [True, False, before]
    assert torch._dynamo.config.nested_graph_breaks == before
    # With nested breaks, the caller need not break before the call and then again inside.
    assert (on.graph_breaks, off.graph_breaks) == (1, 2)
