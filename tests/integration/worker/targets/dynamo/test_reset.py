"""When the sizes that fake tensors computed outlive a reset, and when they must not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.records import Status, Tier
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.targets.dynamo import capture, target
from compilewatch.worker.targets.dynamo.reset import reset
from compilewatch.worker.targets.dynamo.target import DynamoTarget
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch


class Adds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Breaks(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1).view(7)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each reset was asked to keep."""
    calls: list[bool] = []

    def recorded(*, keep_operators: bool) -> None:
        calls.append(keep_operators)
        reset(keep_operators=keep_operators)

    for module in (capture, target):
        monkeypatch.setattr(module, "reset", recorded)
    return calls


@pytest.fixture
def resizing() -> Iterator[torch._ops.OpOverload]:
    """An in-place operator whose meta kernel wrongly resizes its input."""
    library = torch.library.Library("compilewatch_reset", "DEF")
    library.define("fill(Tensor(a!) x) -> Tensor(a!)")
    library.impl("fill", lambda x: x.resize_(5), "Meta")
    yield torch.ops.compilewatch_reset.fill.default
    library._destroy()


@pytest.mark.parametrize("keep", [True, False])
def test_a_reset_keeps_what_it_is_asked_to(keep: bool) -> None:
    FakeTensorMode.cache_clear()
    with FakeTensorMode():
        torch.ones(3) + 1
    before = dict(FakeTensorMode.cache)
    reset(keep_operators=keep)
    assert before
    assert before == FakeTensorMode.cache if keep else FakeTensorMode.cache == {}


def test_a_capture_uses_what_the_eager_call_computed(
    make_subject: MakeSubject, asked: list[bool]
) -> None:
    assert DynamoTarget().run(make_subject(Adds, Tier.FAKE)).status is Status.PASS
    assert asked == [True]


def test_fullgraph_uses_what_the_capture_computed(
    make_subject: MakeSubject, asked: list[bool]
) -> None:
    assert DynamoTarget().run(make_subject(Breaks, Tier.REAL)).status is Status.GRAPH_BREAK
    assert asked == [False, True]


def test_after_a_failure_everything_is_computed_again(
    make_subject: MakeSubject, asked: list[bool]
) -> None:
    """A failure that only computing causes must not end as an accepted fullgraph."""
    assert DynamoTarget().run(make_subject(Fails, Tier.REAL)).status is Status.ERROR
    assert asked == [False, False]


def test_an_operator_that_changes_its_input_is_noticed(resizing: torch._ops.OpOverload) -> None:
    mode = InputAwareFakeMode()
    x = mode.from_tensor(torch.ones(3))
    with mode:
        x.add_(1)
        assert not mode.inputs_changed
        resizing(x)
    assert x.shape == (5,)
    assert mode.inputs_changed


def test_what_such_an_operator_left_is_not_used(
    make_subject: MakeSubject, asked: list[bool], resizing: torch._ops.OpOverload
) -> None:
    subject = make_subject(Adds, Tier.FAKE)
    mode = subject.fake_mode
    assert mode is not None
    x = mode.from_tensor(torch.ones(3))
    with mode:
        resizing(x)
    assert DynamoTarget().run(subject).status is Status.PASS
    assert asked == [False]


@pytest.mark.parametrize("module", [Breaks, Fails])
def test_a_rejection_leaves_nothing_to_the_next_variant(
    make_subject: MakeSubject, module: type[nn.Module]
) -> None:
    DynamoTarget().run(make_subject(module, Tier.REAL))
    assert FakeTensorMode.cache == {}


def test_a_failure_of_the_models_own_code_leaves_nothing_either(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "is_by_compiler", lambda _: False)
    DynamoTarget().run(make_subject(Fails, Tier.REAL))
    assert FakeTensorMode.cache == {}
