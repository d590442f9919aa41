"""The joint graph of the fake tier: traced as ever, and run only where it has to be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from compilewatch.records import Mode, Status, TargetOutcome, Tier
from compilewatch.worker.targets.dynamo import capture, target
from compilewatch.worker.targets.dynamo.target import DynamoTarget
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = [
    pytest.mark.torch,
    # Torch hides this one of its own by `showwarning`, too late where warnings are errors.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a:UserWarning"),
]

Operators = list[set[str]]


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(x)).sum(0)


class Normalised(Plain):
    """Counts its batches in a buffer of integers and keeps running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.inner(x))


class ReadsAnInteger(Plain):
    """Eager code between the graphs reads what follows from the input alone."""

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[0]) + 1
        y = self.inner(x)
        torch._dynamo.graph_break()
        return y * 2 if int(positions.max()) > 1 else y.sum()


class ReturnsItsInput(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, None]:
        return x, self.inner(x), None


class CountsByWeights(Plain):
    """An integer in which weights have a part: nobody can read it on fake tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y, (y > 0).long().sum()


class WritesUnderAMask(Plain):
    """The gradient of what is written has as many elements as the mask has true ones."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        written = torch.zeros_like(y)
        written[x > 0] = y.view(-1)
        return written


class Huge(nn.Module):
    """Has a weight that is larger than any address space, and an output that the loss leaves out:
    that one's gradient is a zero that fake tensors know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2**44, bias=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        rows = self.inner(x).sum(1)
        return {"rows": rows, "loss": rows.sum()}


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    """The operators of each graph that is compiled, forward and backward."""
    seen: Operators = []
    compile_graph = capture.boxed_nop  # type: ignore[attr-defined]

    def noting(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.append({str(n.target) for n in graph.graph.nodes if n.op == "call_function"})
        return compile_graph(graph, inputs)

    monkeypatch.setattr(capture, "boxed_nop", noting)
    return seen


STAND_INS = {"aten.empty_strided.default"}


def verdict(outcome: TargetOutcome) -> tuple[Any, ...]:
    return (
        outcome.status,
        outcome.graphs,
        outcome.ops,
        [(each.code, each.line, each.occurrences) for each in outcome.breaks],
        outcome.fullgraph and outcome.fullgraph.accepted,
    )


@pytest.mark.parametrize(
    "build",
    [Plain, Normalised, ReadsAnInteger, ReturnsItsInput, CountsByWeights, WritesUnderAMask],
)
def test_it_says_what_real_tensors_say(
    make_subject: MakeSubject, build: Callable[[], nn.Module]
) -> None:
    fake, real = (
        DynamoTarget().run(make_subject(build, tier=tier, mode=Mode.TRAIN))
        for tier in (Tier.FAKE, Tier.REAL)
    )
    assert verdict(fake) == verdict(real)


@pytest.mark.parametrize("tier", [Tier.FAKE, Tier.REAL])
def test_a_backward_that_cannot_be_traced_is_a_break_in_the_model(
    make_subject: MakeSubject, tier: Tier
) -> None:
    outcome = DynamoTarget().run(make_subject(WritesUnderAMask, tier=tier, mode=Mode.TRAIN))
    (found,) = outcome.breaks
    assert found.code == "dynamic_output_shape"
    assert (Path(found.file or "").name, found.function) == ("test_joint_graph.py", "forward")
    assert "`compiler_fn` failed" in found.reason
    assert "DynamicOutputShapeException: aten.nonzero.default" in found.reason
    assert "torch/_functorch/" not in found.reason  # what was raised, not where inside of torch


@pytest.mark.parametrize("build", [Plain, Normalised, ReturnsItsInput, CountsByWeights])
def test_nothing_is_computed(
    make_subject: MakeSubject, operators: Operators, build: Callable[[], nn.Module]
) -> None:
    DynamoTarget().run(make_subject(build, tier=Tier.FAKE, mode=Mode.TRAIN))
    forward, backward = operators
    assert forward <= STAND_INS
    assert backward <= STAND_INS


def test_what_eager_code_may_read_is_computed(
    make_subject: MakeSubject, operators: Operators
) -> None:
    DynamoTarget().run(make_subject(ReadsAnInteger, tier=Tier.FAKE, mode=Mode.TRAIN))
    assert "aten.add.Tensor" in operators[0]


def test_gradients_have_the_size_of_their_parameters(make_subject: MakeSubject) -> None:
    subject = make_subject(Normalised, tier=Tier.FAKE, mode=Mode.TRAIN)
    target.captured_breaks(subject)
    for parameter in subject.module.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape


def test_gradients_take_no_memory(make_subject: MakeSubject) -> None:
    outcome = DynamoTarget().run(make_subject(Huge, tier=Tier.FAKE, mode=Mode.TRAIN))
    assert outcome.status is Status.PASS


def test_real_tensors_are_computed(make_subject: MakeSubject, operators: Operators) -> None:
    DynamoTarget().run(make_subject(Plain, tier=Tier.REAL, mode=Mode.TRAIN))
    assert operators == []
