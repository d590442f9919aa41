"""The Inductor target, with the real Inductor and C++ compiler where that is what is tested."""

from __future__ import annotations

import os
import warnings
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
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.inductor import (
    LEAST_SAMPLES,
    WARM_UP_RUNS,
    InductorTarget,
    latencies,
)
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Not above: each worker of pytest-xdist would import it, which takes seconds."""
    with warnings.catch_warnings():
        # Torch's own modules use what torch deprecates (2.13: torch.jit.script_method).
        warnings.simplefilter("ignore", DeprecationWarning)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a worker; short measurements."""
    monkeypatch.setattr("compilewatch.worker.targets.inductor.LATENCY_BUDGET_SECONDS", 0.05)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@pytest.fixture
def backend() -> Iterator[Callable[[Any], str]]:
    """`backend(compiler)` registers a compiler of the test's own under a name."""
    names: list[str] = []

    def register(compiler: Any) -> str:
        names.append(f"test_{len(names)}")
        torch._dynamo.register_backend(compiler, name=names[-1])
        return names[-1]

    yield register
    from torch._dynamo.backends import registry

    for name in names:
        del registry._COMPILER_FNS[name]


class Relu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": torch.relu(self.linear(x)) + 1}


def with_batch(subject: Subject, module: nn.Module | None = None) -> Subject:
    inputs = ExampleInputs(
        strategy="test",
        kwargs={"x": torch.linspace(-1, 1, 12).reshape(3, 4)},
        dynamic_shapes={"x": {0: "batch"}},
    )
    return replace(subject, inputs=inputs)


def test_this_environment_can_run_it() -> None:
    assert InductorTarget().missing() is None


def test_a_module_compiles_runs_and_is_measured(make_subject: MakeSubject) -> None:
    phases: list[Phase] = []
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    subject = with_batch(make_subject(Relu, name="inductor", phases=phases))
    outcome = InductorTarget().run(subject)
    assert outcome.status is Status.PASS, outcome.detail
    assert phases == [Phase.COMPILE, Phase.COMPARE, Phase.PROFILE]
    assert outcome.graphs == 1
    assert outcome.numerics is not None
    assert outcome.numerics.deterministic
    assert outcome.numerics.matches
    assert outcome.numerics.reference == "float64"
    found = outcome.details
    assert isinstance(found, Performance)
    assert found.recompiles == 1
    assert found.cold_compile_seconds > 0
    assert found.warm_compile_seconds is not None
    assert found.eager_latency_seconds is not None
    assert found.compiled_latency_seconds is not None
    assert found.speedup == found.eager_latency_seconds / found.compiled_latency_seconds
    assert found.latency_samples is not None
    assert found.latency_samples >= LEAST_SAMPLES
    assert found.compiler_peak_memory_bytes is not None
    assert found.compiler_peak_memory_bytes > 2**20
    # Two graphs were compiled, and the warm compile found the one it asked for.
    assert counters["inductor"]["fxgraph_cache_miss"] == 2
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert cache in (None, os.environ["TORCHINDUCTOR_CACHE_DIR"])


def test_wrong_generated_code_is_a_mismatch(make_subject: MakeSubject) -> None:
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"}):
        outcome = InductorTarget().run(make_subject(Relu, name="inductor"))
    assert outcome.status is Status.MISMATCH
    assert outcome.detail.startswith("differs from eager in y: ")
    assert outcome.numerics is not None
    assert not outcome.numerics.matches
    assert outcome.numerics.deterministic


def test_code_that_does_not_compile_is_an_error_of_the_compiler(
    make_subject: MakeSubject,
) -> None:
    phases: list[Phase] = []
    with config.patch({"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}):
        outcome = InductorTarget().run(make_subject(Relu, name="inductor", phases=phases))
    assert outcome.status is Status.ERROR
    assert outcome.error is not None
    assert outcome.error.code == "cpp_compile_error"
    assert "compile error!" in outcome.error.message
    assert phases == [Phase.COMPILE]


def test_a_graph_break_and_a_model_that_differs_from_itself_are_no_errors(
    make_subject: MakeSubject,
) -> None:
    @torch.compiler.disable
    def drawn() -> int:
        return int.from_bytes(os.urandom(4))

    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + 1) * drawn()

    outcome = InductorTarget().run(make_subject(Drawing, name="inductor", backend="eager"))
    assert (outcome.status, outcome.graphs) == (Status.PASS, 2)
    assert outcome.numerics is not None
    assert not outcome.numerics.deterministic
    assert outcome.detail.startswith("not deterministic")
    assert "2 graphs" in outcome.detail


def test_what_only_later_calls_change_is_no_difference(make_subject: MakeSubject) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = [0]

        def forward(self, x: Tensor) -> Tensor:
            self.calls[0] += 1
            return x * self.calls[0]

    outcome = InductorTarget().run(make_subject(Counting, name="inductor", backend="eager"))
    assert outcome.status is Status.PASS
    assert outcome.numerics is not None
    assert (outcome.numerics.deterministic, outcome.numerics.matches) == (True, True)


def test_random_numbers_are_those_of_eager_mode(make_subject: MakeSubject) -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand_like(x)

    outcome = InductorTarget().run(make_subject(Noise, name="inductor"))
    assert outcome.status is Status.PASS, outcome.detail
    assert outcome.numerics is not None
    assert outcome.numerics.deterministic


def test_wrong_gradients_are_a_mismatch(
    make_subject: MakeSubject, backend: Callable[[Any], str]
) -> None:
    def doubles_gradients(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return tuple(2 * out - out.detach() for out in graph(*args))

        return call

    name = backend(doubles_gradients)
    subject = make_subject(Relu, name="inductor", backend=name, mode=Mode.EVAL)
    assert InductorTarget().run(subject).status is Status.PASS
    subject = make_subject(Relu, name="inductor", backend=name, mode=Mode.TRAIN)
    outcome = InductorTarget().run(subject)
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
    name = backend(once)
    subject = with_batch(make_subject(Relu, name="inductor", backend=name, phases=phases))
    outcome = InductorTarget().run(subject)
    assert outcome.status is Status.ERROR
    assert outcome.detail.startswith("compiled once, then ")
    assert phases[-1] is Phase.COMPARE
    assert isinstance(outcome.details, Performance)


def test_a_second_shape_that_eager_rejects_is_not_counted(make_subject: MakeSubject) -> None:
    class OnlyThree(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(3, 4) + 1

    subject = with_batch(make_subject(OnlyThree, name="inductor", backend="eager"))
    outcome = InductorTarget().run(subject)
    assert outcome.status is Status.PASS
    assert isinstance(outcome.details, Performance)
    assert outcome.details.recompiles is None


def test_dynamic_shapes_spare_the_recompile(make_subject: MakeSubject) -> None:
    subject = with_batch(make_subject(Relu, name="inductor", backend="eager", dynamic=True))
    outcome = InductorTarget().run(subject)
    assert isinstance(outcome.details, Performance)
    assert outcome.details.recompiles == 0


def test_a_model_that_cannot_be_called_often_keeps_its_verdict(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tires(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 2:
                raise RuntimeError("tired")
            return x + 1

    outcome = InductorTarget().run(make_subject(Tires, name="inductor", backend="eager"))
    assert outcome.status is Status.PASS
    assert "measuring stopped at RuntimeError: tired" in outcome.detail
    assert isinstance(outcome.details, Performance)
    assert outcome.details.speedup is None


def test_latencies_are_taken_in_turns() -> None:
    order: list[str] = []
    _, _, samples = latencies(lambda: order.append("eager"), lambda: order.append("compiled"))
    assert samples >= LEAST_SAMPLES
    assert order == ["eager", "compiled"] * (WARM_UP_RUNS + samples)


def test_without_a_compiler_it_says_so() -> None:
    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        missing = InductorTarget().missing()
    assert missing == "no C++ compiler: install g++ or name one in CXX"


def test_without_headers_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path))
    missing = InductorTarget().missing()
    assert missing is not None
    assert "install the headers of Python 3." in missing


def test_a_compiler_that_does_not_work_is_no_fault_of_the_model(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "g++"
    broken.write_text('#!/bin/sh\ncase "$1" in --version|-v) exec g++ "$1";; esac\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with config.patch({"cpp.cxx": (str(broken),)}):
        outcome = InductorTarget().run(make_subject(Relu, name="inductor"))
        another = InductorTarget().run(make_subject(Relu, name="inductor", backend="aot_eager"))
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.detail.startswith("the C++ compiler cannot build for torch: ")
    assert another.status is Status.PASS  # compiles no C++
