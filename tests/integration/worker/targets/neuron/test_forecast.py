"""What a forecast makes of a compiler that rejects, dies or takes too much: a double of it."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from compilewatch.contract.targets import declared
from compilewatch.records import NeuronDetail, Status, TargetOutcome, Tier
from compilewatch.worker.targets.neuron import lowering
from compilewatch.worker.targets.neuron.lowering import LoweringError
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch

Forecast = Callable[[Callable[[list[str]], None]], tuple[TargetOutcome, NeuronDetail]]


class Waves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + x.cos() * x.cos()


@pytest.fixture
def forecast(
    make_subject: MakeSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Forecast]:
    """`forecast(check)`: the compiler accepts each graph of which `check` accepts the operators."""
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1")
    monkeypatch.setenv("PATH", str(tmp_path))
    subject = make_subject(Waves, tier=Tier.FAKE, asked=Tier.FAKE)
    request = msgspec.structs.replace(subject.request, device=declared("neuron:trn2"))

    def run(check: Callable[[list[str]], None]) -> tuple[TargetOutcome, NeuronDetail]:
        def to_stablehlo(module: GraphModule) -> bytes:
            check([n.target._opname for n in module.graph.nodes if n.op == "call_function"])
            assert module.graph.find_nodes(op="placeholder")
            return b"module"

        monkeypatch.setattr(lowering, "to_stablehlo", to_stablehlo)
        outcome = lowering.evaluate(replace(subject, request=request))
        assert isinstance(outcome.details, NeuronDetail)
        return outcome, outcome.details

    yield run
    torch._dynamo.reset()


def test_a_crash_says_nothing_of_the_model_but_which_operator_it_is(forecast: Forecast) -> None:
    def die_of_cosines(operators: list[str]) -> None:
        if "cos" in operators:
            os.kill(os.getpid(), signal.SIGSEGV)

    outcome, detail = forecast(die_of_cosines)
    (entry,) = detail.operators
    assert outcome.status is Status.CRASHED
    assert (entry.name, entry.occurrences, entry.stage) == ("aten.cos.default", 2, "crash")
    assert "SIGSEGV" in entry.message


def test_too_little_memory_says_nothing_of_the_model(forecast: Forecast) -> None:
    def exhaust(operators: list[str]) -> None:
        if "cos" in operators:
            raise MemoryError

    outcome, detail = forecast(exhaust)
    assert (outcome.status, [entry.stage for entry in detail.operators]) == (Status.OOM, ["memory"])


def test_an_operator_without_a_lowering_counts_beside_one_that_ends_the_compiler(
    forecast: Forecast,
) -> None:
    def reject(operators: list[str]) -> None:
        if "sin" in operators:
            raise LoweringError("torch", "no sine")
        if "cos" in operators:
            os.kill(os.getpid(), signal.SIGSEGV)

    outcome, detail = forecast(reject)
    assert outcome.status is Status.FORECAST_FAIL
    assert {entry.name: entry.stage for entry in detail.operators} == {
        "aten.sin.default": "torch",
        "aten.cos.default": "crash",
    }


def test_a_graph_may_fail_although_each_operator_lowers(forecast: Forecast) -> None:
    def reject_all_together(operators: list[str]) -> None:
        if len(operators) > 1:
            raise LoweringError("stablehlo", "too much of it")

    outcome, detail = forecast(reject_all_together)
    assert (outcome.status, detail.operators) == (Status.FORECAST_FAIL, ())
    assert outcome.detail.endswith("the inference graph does not lower: too much of it")


def test_the_rest_of_a_graph_is_tried_without_what_fails(forecast: Forecast) -> None:
    def reject(operators: list[str]) -> None:
        if "sin" in operators:
            raise LoweringError("torch", "no sine")
        if {"add", "mul"} <= set(operators):
            raise LoweringError("stablehlo", "not both")

    outcome, detail = forecast(reject)
    assert [entry.name for entry in detail.operators] == ["aten.sin.default"]
    assert "the inference graph does not lower: not both" in outcome.detail
