"""The Inductor target, with the real Inductor and C++ compiler where that is what is tested."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor import config

from compilewatch.records import Mode, Performance, Phase, Status
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets.inductor import LEAST_SAMPLES, InductorTarget
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a worker; short measurements."""
    monkeypatch.setattr("compilewatch.worker.targets.inductor.LATENCY_BUDGET_SECONDS", 0.05)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


class Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": torch.relu(self.linear(x)) + 1}


def run(make: MakeSubject, build: Any, *, batch: bool = False, **options: Any) -> Any:
    subject = make(build, name="inductor", **options)
    inputs = ExampleInputs(
        strategy="test",
        kwargs={"x": torch.linspace(-1, 1, 12).reshape(3, 4)},
        dynamic_shapes={"x": {0: "batch"}},
    )
    return InductorTarget().run(replace(subject, inputs=inputs) if batch else subject)


def test_a_module_compiles_runs_and_is_measured(make_subject: MakeSubject) -> None:
    phases: list[Phase] = []
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    assert InductorTarget().missing() is None
    outcome = run(make_subject, Relu, batch=True, phases=phases)
    assert (outcome.status, outcome.graphs) == (Status.PASS, 1), outcome.detail
    assert phases == [Phase.COMPILE, Phase.COMPARE, Phase.PROFILE]
    numerics, times = outcome.numerics, outcome.details
    assert (numerics.deterministic, numerics.matches) == (True, True)
    assert (numerics.reference, times.recompiles) == ("eager", 1)
    assert times.cold_compile_seconds > 0
    assert times.warm_compile_seconds is not None
    assert times.speedup == times.eager_latency_seconds / times.compiled_latency_seconds
    assert times.latency_samples >= LEAST_SAMPLES
    assert times.compiler_peak_memory_bytes > 2**20
    # Two graphs were compiled, and the warm compile found the one it asked for.
    assert counters["inductor"]["fxgraph_cache_miss"] == 2
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert cache in (None, os.environ["TORCHINDUCTOR_CACHE_DIR"])


def test_wrong_generated_code_is_a_mismatch_and_code_that_does_not_compile_an_error(
    make_subject: MakeSubject,
) -> None:
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        outcome = run(make_subject, Relu)
    assert outcome.status is Status.MISMATCH
    assert outcome.detail.startswith("differs from eager in y: ")
    assert (outcome.numerics.matches, outcome.numerics.deterministic) == (False, True)
    phases: list[Phase] = []
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
        outcome = run(make_subject, Relu, phases=phases)
    assert (outcome.status, phases) == (Status.ERROR, [Phase.COMPILE])
    assert outcome.error.code == "cpp_compile_error"
    assert "compile error!" in outcome.error.message


@torch.compiler.disable
def drawn() -> int:
    return int.from_bytes(os.urandom(4))


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1) * drawn()


class Counting(nn.Module):
    """Later calls have other results; each run is a first call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        return x * self.calls[0]


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


@pytest.mark.parametrize(
    ("build", "backend_name", "graphs", "deterministic"),
    [(Drawing, "eager", 2, False), (Counting, "eager", 1, True), (Noise, None, 1, True)],
)
def test_neither_a_break_nor_a_model_that_differs_from_itself_is_an_error(
    make_subject: MakeSubject,
    build: type[nn.Module],
    backend_name: str | None,
    graphs: int,
    deterministic: bool,
) -> None:
    outcome = run(make_subject, build, backend=backend_name)
    assert (outcome.status, outcome.graphs) == (Status.PASS, graphs), outcome.detail
    assert outcome.numerics.deterministic is deterministic
    assert outcome.detail.startswith("not deterministic") is not deterministic
    assert ("2 graphs" in outcome.detail) is (graphs == 2)


def test_wrong_gradients_are_a_mismatch(
    make_subject: MakeSubject, backend: Callable[[Any], str]
) -> None:
    def doubles_gradients(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        return lambda *args: tuple(2 * out - out.detach() for out in graph(*args))

    name = backend(doubles_gradients)
    assert run(make_subject, Relu, backend=name, mode=Mode.EVAL).status is Status.PASS
    outcome = run(make_subject, Relu, backend=name, mode=Mode.TRAIN)
    assert outcome.status is Status.MISMATCH
    assert "gradient of linear" in outcome.detail


def test_a_compiler_that_fails_on_the_second_shape_fails(
    make_subject: MakeSubject, backend: Callable[[Any], str]
) -> None:
    def once(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        if len(compiled) == 1:
            raise NotImplementedError("symbolic shapes")
        compiled.append(graph)
        return graph.forward

    compiled: list[Any] = []
    phases: list[Phase] = []
    outcome = run(make_subject, Relu, batch=True, backend=backend(once), phases=phases)
    assert (outcome.status, phases[-1]) == (Status.ERROR, Phase.COMPARE)
    assert outcome.detail.startswith("compiled once, then ")
    assert isinstance(outcome.details, Performance)


def test_recompiles_are_those_of_a_shape_that_eager_mode_takes(make_subject: MakeSubject) -> None:
    class OnlyThree(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(3, 4) + 1

    outcome = run(make_subject, OnlyThree, batch=True, backend="eager")
    assert (outcome.status, outcome.details.recompiles) == (Status.PASS, None)
    outcome = run(make_subject, Relu, batch=True, backend="eager", dynamic=True)
    assert outcome.details.recompiles == 0


def test_a_model_that_cannot_be_called_often_keeps_its_verdict(make_subject: MakeSubject) -> None:
    class Tires(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 2:
                raise RuntimeError("tired")
            return x + 1

    outcome = run(make_subject, Tires, backend="eager")
    assert (outcome.status, outcome.details.speedup) == (Status.PASS, None)
    assert "measuring stopped at RuntimeError: tired" in outcome.detail


def test_without_a_compiler_or_headers_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        missing = InductorTarget().missing()
    assert missing == "no C++ compiler: install g++ or name one in CXX"
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    assert "install the headers of Python 3." in str(InductorTarget().missing())


def test_a_compiler_that_does_not_work_is_no_fault_of_the_model(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\ncase "$1" in --version|-v) exec g++ "$1";; esac\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with config.patch({"cpp.cxx": (str(broken),)}):
        outcome = run(make_subject, Relu)
        another = run(make_subject, Relu, backend="aot_eager")
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.detail.startswith("the C++ compiler cannot build for torch: ")
    assert another.status is Status.PASS  # compiles no C++
