"""The fake tier runs graphs without code, and joint graphs only where it has to: same verdicts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from compilewatch.records import Mode, Status, TargetOutcome, Tier
from compilewatch.worker.targets import FakeUnsupportedError
from compilewatch.worker.targets.dynamo import capture, target
from compilewatch.worker.targets.dynamo.capture import interpreted_backend
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


class WritesItsInput(Plain):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, None]:
        x.add_(1)
        return x, self.inner(x) + x, None


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


@pytest.mark.parametrize("build", [Plain, ReadsAnInteger, WritesItsInput])
def test_interpreted_graphs_have_the_outcome_of_eager(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, build: Callable[[], nn.Module]
) -> None:
    interpreted = DynamoTarget().run(make_subject(build, tier=Tier.FAKE))
    monkeypatch.setattr(capture, "interpreted_backend", torch._dynamo.lookup_backend("eager"))
    assert interpreted == DynamoTarget().run(make_subject(build, tier=Tier.FAKE))
    monkeypatch.delattr(capture, "interpreted_backend")  # real tensors run as users run them
    assert DynamoTarget().run(make_subject(Plain, tier=Tier.REAL)).graphs == 1
    with pytest.raises(FakeUnsupportedError, match="interpreted_backend"):
        DynamoTarget().run(make_subject(Plain, tier=Tier.FAKE))


def test_an_interpreted_graph_calls_its_modules_and_has_the_messages_of_eager() -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    def pick(x: Tensor, index: Tensor) -> Tensor:
        return (x + 1)[index]

    torch._dynamo.reset()
    compiled = torch.compile(branches, backend=interpreted_backend, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), branches(x))
    messages = set()
    for backend in ("eager", interpreted_backend):
        torch._dynamo.reset()
        with pytest.raises(IndexError) as raised:
            torch.compile(pick, backend=backend)(torch.ones(3), torch.tensor([7]))
        messages.add(str(raised.value))
    assert len(messages) == 1


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Operators:
    """The operators of each joint graph that is compiled, forward and backward."""
    seen: Operators = []
    compile_graph = capture.boxed_nop  # type: ignore[attr-defined]

    def noting(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.append({str(n.target) for n in graph.graph.nodes if n.op == "call_function"})
        return compile_graph(graph, inputs)

    monkeypatch.setattr(capture, "boxed_nop", noting)
    return seen


def verdict(outcome: TargetOutcome) -> tuple[Any, ...]:
    breaks = [(b.code, b.line, b.occurrences) for b in outcome.breaks]
    return outcome.status, outcome.graphs, outcome.ops, breaks, outcome.fullgraph.accepted


@pytest.mark.parametrize(
    ("build", "computes"),
    [
        (Plain, False),
        (Normalised, False),
        (WritesItsInput, False),
        (CountsByWeights, False),
        (ReadsAnInteger, True),
        (WritesUnderAMask, None),
    ],
)
def test_a_joint_graph_has_the_verdict_of_real_tensors_and_computes_what_eager_code_may_read(
    make_subject: MakeSubject,
    operators: Operators,
    build: Callable[[], nn.Module],
    computes: bool | None,
) -> None:
    fake = DynamoTarget().run(make_subject(build, tier=Tier.FAKE, mode=Mode.TRAIN))
    seen = list(operators)
    assert verdict(fake) == verdict(DynamoTarget().run(make_subject(build, mode=Mode.TRAIN)))
    assert operators == seen, "real tensors are computed"
    if computes is False:
        forward, backward = seen
        assert forward | backward <= {"aten.empty_strided.default"}
    if computes:
        assert "aten.add.Tensor" in seen[0]


@pytest.mark.parametrize("tier", [Tier.FAKE, Tier.REAL])
def test_a_backward_that_cannot_be_traced_is_a_break_in_the_model(
    make_subject: MakeSubject, tier: Tier
) -> None:
    outcome = DynamoTarget().run(make_subject(WritesUnderAMask, tier=tier, mode=Mode.TRAIN))
    (found,) = outcome.breaks
    assert found.code == "dynamic_output_shape"
    assert (Path(found.file or "").name, found.function) == ("test_fake_tier.py", "forward")
    assert "`compiler_fn` failed" in found.reason
    assert "DynamicOutputShapeException: aten.nonzero.default" in found.reason
    assert "torch/_functorch/" not in found.reason  # what was raised, not where inside of torch


def test_gradients_have_the_size_of_their_parameters_and_take_no_memory(
    make_subject: MakeSubject,
) -> None:
    subject = make_subject(Normalised, tier=Tier.FAKE, mode=Mode.TRAIN)
    target.captured_breaks(subject)
    assert all(each.grad.shape == each.shape for each in subject.module.parameters())
    outcome = DynamoTarget().run(make_subject(Huge, tier=Tier.FAKE, mode=Mode.TRAIN))
    assert outcome.status is Status.PASS
