"""The eval mode of the fake tier: graphs run without code, and every verdict stays the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from compilewatch.records import Tier
from compilewatch.worker.targets.dynamo import capture
from compilewatch.worker.targets.dynamo.capture import interpreted_backend
from compilewatch.worker.targets.dynamo.target import DynamoTarget
from tests.integration.worker.targets.conftest import MakeSubject
from tests.integration.worker.targets.dynamo.test_joint_graph import Plain, ReadsAnInteger

pytestmark = pytest.mark.torch


class WritesItsInput(Plain):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return self.inner(x) + x


@pytest.mark.parametrize("build", [Plain, ReadsAnInteger, WritesItsInput])
def test_the_outcome_is_that_of_eager(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, build: Callable[[], nn.Module]
) -> None:
    ran: list[str] = []

    def recorded(graph: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        ran.append(type(graph).__name__)
        return interpreted_backend(graph, inputs)

    monkeypatch.setattr(capture, "interpreted_backend", recorded)
    interpreted = DynamoTarget().run(make_subject(build, tier=Tier.FAKE))
    assert ran
    monkeypatch.setattr(capture, "interpreted_backend", torch._dynamo.lookup_backend("eager"))
    assert interpreted == DynamoTarget().run(make_subject(build, tier=Tier.FAKE))


def test_real_tensors_run_as_users_run_them(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(capture, "interpreted_backend")
    assert DynamoTarget().run(make_subject(Plain, tier=Tier.REAL)).graphs == 1


def test_modules_inside_a_graph_are_called() -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    torch._dynamo.reset()
    compiled = torch.compile(branches, backend=interpreted_backend, fullgraph=True)
    for x in (torch.ones(3), -torch.ones(3)):
        assert torch.equal(compiled(x), branches(x))


def test_messages_are_those_of_eager() -> None:
    def pick(x: Tensor, index: Tensor) -> Tensor:
        return (x + 1)[index]

    messages = []
    for backend in ("eager", interpreted_backend):
        torch._dynamo.reset()
        with pytest.raises(IndexError) as raised:
            torch.compile(pick, backend=backend)(torch.ones(3), torch.tensor([7]))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
