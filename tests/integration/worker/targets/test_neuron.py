"""The neuron target: its real client code on doubles of the SDK (tests/doubles)."""

import importlib.util
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn

from compilewatch.contract.targets import TARGETS
from compilewatch.neuron import neuronx_cc
from compilewatch.records import Mode, NeuronDetail, Phase, Status, Tier
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import FakeUnsupportedError, neuron
from compilewatch.worker.targets.export import VARIANTS
from compilewatch.worker.targets.neuron.target import NeuronTarget
from tests.doubles import FOLDER, neuron_variables
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No SDK, nothing of the machine's own, limits and variables as before afterwards."""
    for name in [n for n in os.environ if n.startswith("NEURON")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(neuronx_cc, "TOOLS", tmp_path)
    monkeypatch.setattr("compilewatch.worker.targets.inductor.LATENCY_BUDGET_SECONDS", 0.05)
    limits = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)
    before = [resource.getrlimit(limit) for limit in limits]
    yield
    for limit, values in zip(limits, before, strict=True):
        resource.setrlimit(limit, values)


@pytest.fixture
def compiler(machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """neuronx-cc alone."""
    (tmp_path / "bin").mkdir()
    for name, value in neuron_variables(tmp_path / "cache", sdk=False).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sdk(compiler: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """neuronx-cc and torch_neuronx."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    sys.modules.pop("torch_neuronx", None)


@pytest.fixture
def xla(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """`xla(text)`: torch_xla is there, and captures an HLO of that text, or none."""
    found = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        return found("json") if name == "torch_xla" else found(name, package)

    def set_up(text: str | None) -> None:
        def capture(subject: Subject) -> Path | None:
            path = subject.artifacts / "graph.hlo_module.pb"
            if text is not None:
                path.write_text(text)
            return path if text is not None else None

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        monkeypatch.setattr(neuron, "_capture", capture)

    return set_up


class Net(nn.Module):
    """Keyword arguments, one that is no tensor, and an output that is no tuple."""

    def __init__(self, behaviour: str = "ok") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("double_call", torch.tensor(list(behaviour.encode())))

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> dict[str, Any]:
        y = self.linear(x) * scale
        return {"y": y if mask is None else y * mask, "kept": (y, None), "name": "net"}


def subject_of(
    make_subject: MakeSubject, build: Callable[[], nn.Module] = Net, **fields: Any
) -> Subject:
    subject = make_subject(build, name="neuron", keep_artifacts=True, **fields)
    (subject.artifacts / "artifacts").mkdir()
    inputs = ExampleInputs(
        strategy="test", kwargs={"x": torch.ones(3, 4), "scale": 2.0, "mask": torch.ones(3, 2)}
    )
    return replace(subject, inputs=inputs, artifacts=subject.artifacts / "artifacts")


def answer(make_subject: MakeSubject, behaviour: str = "ok", **fields: Any) -> Any:
    return NeuronTarget().run(subject_of(make_subject, lambda: Net(behaviour), **fields))


def test_what_is_missing_is_said(sdk: None, xla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    target = NeuronTarget()
    assert (target.missing(), target.unable()) == (None, None)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p != str(FOLDER)])
    assert str(target.missing()).startswith("neuronx-cc is installed, but not ")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert str(target.missing()).startswith("no neuronx-cc and no torch_neuronx: compilewatch env ")
    xla("an HLO")
    assert target.missing() is None
    assert str(target.unable()).startswith("no neuronx-cc: it stores an HLO")


def test_a_model_is_compiled_ahead_of_time_and_analyzed(
    make_subject: MakeSubject, sdk: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast all")
    monkeypatch.setenv("NEURON_DOUBLE_CALLS", str(tmp_path / "calls"))
    # It lives for long enough that its memory is looked at.
    monkeypatch.setenv("NEURON_DOUBLE", "allocate 50")
    phases: list[Phase] = []
    outcome = answer(make_subject, phases=phases)
    assert (outcome.status, phases) == (Status.PASS, [Phase.COMPILE]), outcome.detail
    assert outcome.detail.startswith("compiled for trn1, ")
    detail = outcome.details
    assert (detail.route, detail.target, detail.compiled) == ("torch_neuronx.trace", "trn1", True)
    assert (detail.sdk_version, detail.device_cores) == ("2.9.0.2.15.32035", None)
    assert detail.compiler_version == "2.27.5334.0+f702b353"
    assert None not in (detail.compile_seconds, detail.neff)
    assert detail.compiler_peak_memory_bytes > 50 * 2**20
    assert (detail.support.percent, detail.support.unsupported) == (100.0, ())
    assert detail.support.supported["aten::addmm"] == 1
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert " ".join(detail.flags[2:]) in call
    assert "--auto-cast none" in call
    folder = tmp_path / "artifacts" / "graph.trn1"
    names = ["graph.neff", "neuron.json", "console.txt", "command.txt", "analysis.json"]
    names += ["model/graph.hlo", "model/metadata.json"]
    assert set(outcome.artifacts) == {f"graph.trn1/{name}" for name in names}
    assert "Compiler status PASS" in (folder / "console.txt").read_text()
    assert msgspec.json.decode((folder / "neuron.json").read_bytes(), type=NeuronDetail) == detail
    # The verdict stands without the analysis.
    monkeypatch.setenv("NEURON_DOUBLE_ANALYZE", "raises")
    outcome = NeuronTarget().run(make_subject(Net, name="neuron"))
    assert outcome.status is Status.PASS
    assert outcome.detail.endswith("analyze failed: RuntimeError: analyze gave up")


REJECTED = "error NCC_EVRF009 Size of total input exceeds 16GB - Reduce the batch size"


@pytest.mark.parametrize(
    ("behaviour", "status", "kind", "code"),
    [
        (REJECTED, Status.ERROR, "device_memory", "NCC_EVRF009"),
        ("kill", Status.OOM, "host_memory", "out_of_memory"),
        ("abort", Status.ERROR, "crashed", "neuronx_cc_crashed"),
    ],
)
def test_how_the_compiler_ended_is_reported_in_its_words(
    make_subject: MakeSubject, sdk: None, behaviour: str, status: Status, kind: str, code: str
) -> None:
    phases: list[Phase] = []
    outcome = answer(make_subject, behaviour, phases=phases)
    failure = outcome.details.failure
    assert (outcome.status, phases) == (status, [Phase.COMPILE])
    assert (failure.kind, outcome.error.code) == (kind, code)
    assert (outcome.details.support is None) is (status is Status.OOM)
    if behaviour == REJECTED:
        assert (failure.advice, failure.exit_status) == ("Reduce the batch size", 70)
        assert outcome.detail.startswith("device memory: NCC_EVRF009: Size of total input exceeds")
        assert "neuronxcc.driver.CommandDriver" in outcome.error.head


class Unlowered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError("no lowering of it")


class Spectrum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second = torch.fft.rfft(x), torch.fft.rfft(x + 1)
        return (first * second).abs()


def test_what_cannot_be_lowered_never_reaches_the_compiler_and_operators_are_counted(
    make_subject: MakeSubject, sdk: None
) -> None:
    outcome: Any = NeuronTarget().run(make_subject(Unlowered, name="neuron"))
    assert (outcome.status, outcome.error.type) == (Status.ERROR, "NotImplementedError")
    assert outcome.details.failure.kind == "lowering"
    assert "analyze failed: " in outcome.detail
    outcome = NeuronTarget().run(make_subject(Spectrum, name="neuron", backend="trn2"))
    (operator,) = outcome.details.support.unsupported
    assert (operator.name, operator.occurrences) == ("aten::_fft_r2c", 2)
    assert operator.failure_at == "neuronx-cc"
    assert "unsupported operators: aten::_fft_r2c" in outcome.detail


def test_on_a_device_it_runs_is_compared_and_measured(
    make_subject: MakeSubject, sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    monkeypatch.setattr(neuronx_cc, "instance_family", lambda: "inf2")
    phases: list[Phase] = []
    outcome = answer(make_subject, phases=phases)
    assert outcome.status is Status.PASS, outcome.detail
    assert phases == [Phase.COMPILE, Phase.COMPARE, Phase.PROFILE]
    assert (outcome.numerics.matches, outcome.numerics.deterministic) == (True, True)
    detail = outcome.details
    assert (detail.target, detail.device_cores) == ("inf2", 2)
    assert None not in (detail.latency_seconds, detail.eager_latency_seconds)
    assert detail.latency_samples is not None
    monkeypatch.setenv("NEURON_DOUBLE_OFF_BY", "0.5")
    wrong: Any = NeuronTarget().run(make_subject(Net, name="neuron"))
    assert (wrong.status, wrong.details.compiled) == (Status.MISMATCH, True)
    assert wrong.detail.startswith("differs from eager in ")


def test_what_cannot_be_loaded_is_an_error_after_compiling(
    make_subject: MakeSubject, sdk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    phases: list[Phase] = []

    def enter(phase: Phase) -> None:
        phases.append(phase)
        if phase is Phase.COMPARE:  # the driver is gone
            monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")

    outcome = NeuronTarget().run(replace(subject_of(make_subject), enter=enter))
    assert (outcome.status, phases[-1]) == (Status.ERROR, Phase.COMPARE)
    assert outcome.detail.startswith("compiled, then RuntimeError: The PyTorch Neuron Runtime")


@pytest.mark.parametrize(
    ("hlo", "status", "code"),
    [
        ("an HLO", Status.PASS, None),
        ("double: error NCC_EVRF001 sort\n", Status.ERROR, "NCC_EVRF001"),
        (None, Status.UNSUPPORTED, None),  # no HLO that is valid for other inputs
    ],
)
def test_with_the_compiler_only_a_captured_hlo_is_compiled(
    make_subject: MakeSubject,
    compiler: None,
    xla: Any,
    hlo: str | None,
    status: Status,
    code: str | None,
) -> None:
    xla(hlo)
    outcome = answer(make_subject, backend="trn2")
    assert (outcome.status, outcome.error and outcome.error.code) == (status, code)
    assert ("operators run outside XLA" in outcome.detail) is (hlo is None)
    if hlo is None:
        assert outcome.details is None
    else:
        assert (outcome.details.route, outcome.details.target) == ("neuronx-cc", "trn2")
        assert "graph.hlo_module.pb" in outcome.artifacts
        assert ("graph.trn2/graph.neff" in outcome.artifacts) is (code is None)


def test_without_the_compiler_the_hlo_is_kept_for_one(make_subject: MakeSubject, xla: Any) -> None:
    xla("an HLO")
    outcome = answer(make_subject)
    assert (outcome.status, outcome.details.compiled) == (Status.UNSUPPORTED, False)
    assert outcome.artifacts == ("graph.hlo_module.pb",)
    assert "compilewatch neuron compile PATH/graph.hlo_module.pb" in outcome.detail


def test_a_broken_installation_is_no_fault_of_the_model(
    make_subject: MakeSubject, sdk: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch_neuronx.py").write_text("raise ImportError('libnrt.so.1 is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = answer(make_subject)
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.detail.startswith("torch_neuronx cannot be imported: ")


def test_what_the_sdk_does_not_do_is_rejected(make_subject: MakeSubject, sdk: None) -> None:
    for fields in ({"mode": Mode.TRAIN}, {"dynamic": True}):
        outcome = NeuronTarget().run(make_subject(Net, name="neuron", **fields))
        assert outcome.status is Status.UNSUPPORTED
        assert outcome.detail.startswith("Neuron through XLA has no ")
    assert NeuronTarget().tiers == (Tier.REAL,)
    with pytest.raises(FakeUnsupportedError):
        NeuronTarget().run(make_subject(Net, tier=Tier.FAKE, name="neuron"))


def test_the_parent_knows_the_backends() -> None:
    assert TARGETS["neuron"].backends == neuronx_cc.TARGETS
    assert TARGETS["export"].backends == tuple(name for name in VARIANTS if name)
