"""The target neuron by PyTorch/XLA: its real client code on doubles of the SDK (tests/doubles)."""

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
from compilewatch.neuron import installed, neuronx_cc
from compilewatch.records import Mode, NeuronDetail, Phase, Status, Tier
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets import FakeUnsupportedError
from compilewatch.worker.targets.export import VARIANTS
from compilewatch.worker.targets.neuron import target
from tests.doubles import BIN, FOLDER
from tests.integration.worker.targets.conftest import MakeSubject

pytestmark = pytest.mark.torch

Install = Callable[..., None]
SDK = {"neuronx_cc": "2.27", "torch_neuronx": "2.9.0.2.15", "torch_xla": "2.9.0"}


@pytest.fixture(autouse=True)
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(torch_xla="2.9.0")`: instead of the SDK; doubles of its program and its module.

    Nothing of the machine's own is there; limits are as before afterwards.
    """
    for name in [n for n in os.environ if n.startswith("NEURON")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(neuronx_cc, "TOOLS", tmp_path)
    monkeypatch.setattr("compilewatch.worker.targets.inductor.LATENCY_BUDGET_SECONDS", 0.05)
    limits = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)
    before, before_path = [resource.getrlimit(limit) for limit in limits], sys.path

    def put(**versions: str) -> None:
        packages = {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(target, "installed_packages", lambda: packages)
        path = f"{BIN}:/usr/bin:/bin" if "neuronx_cc" in versions else "/usr/bin:/bin"
        monkeypatch.setenv("PATH", path)
        monkeypatch.setattr("sys.path", [str(FOLDER)] * ("torch_neuronx" in versions) + before_path)

    put(**SDK)
    yield put
    sys.modules.pop("torch_neuronx", None)
    for limit, values in zip(limits, before, strict=True):
        resource.setrlimit(limit, values)


class Net(nn.Module):
    """Keyword arguments, one that is no tensor, and an output that is no tuple."""

    def __init__(self, behaviour: str = "ok") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("double_call", torch.tensor(list(behaviour.encode())))

    def forward(self, x: Tensor, scale: float = 1.0, mask: Tensor | None = None) -> dict[str, Any]:
        y = self.linear(x) * scale
        return {"y": y if mask is None else y * mask, "kept": (y, None), "name": "net"}


class Unlowered(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError("no lowering of it")


def evaluated(
    make_subject: MakeSubject,
    behaviour: str = "ok",
    enter: Callable[[Phase], None] | None = None,
    **fields: Any,
) -> Any:
    subject = make_subject(lambda: Net(behaviour), name="neuron", keep_artifacts=True, **fields)
    (subject.artifacts / "artifacts").mkdir(exist_ok=True)
    inputs = ExampleInputs(
        strategy="test", kwargs={"x": torch.ones(3, 4), "scale": 2.0, "mask": torch.ones(3, 2)}
    )
    subject = replace(subject, inputs=inputs, artifacts=subject.artifacts / "artifacts")
    return target.NeuronTarget().run(replace(subject, enter=enter) if enter else subject)


def test_what_is_missing_is_said(install: Install) -> None:
    assert (target.NeuronTarget().missing(), target.NeuronTarget().unable()) == (None, None)
    assert target.NeuronTarget().tiers == (Tier.REAL,)
    install()
    assert str(target.NeuronTarget().unable()).startswith("no torch_neuronx and no torch-mlir: ")


def test_a_product_that_cannot_work_is_said(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(**SDK, torch="2.15.0")
    assert "needs torch 2.9, and 2.15.0 is installed" in str(target.NeuronTarget().missing())
    monkeypatch.setattr(installed, "placeholders", lambda: {"nki": "0.0.1"})
    assert "PyPI's placeholders" in str(target.NeuronTarget().unable())
    install()
    assert "PyPI's placeholders" in str(target.NeuronTarget().missing())
    install(torch_mlir="20261001")  # a forecast does without AWS's packages
    assert target.NeuronTarget().missing() is None
    assert str(target.NeuronTarget().unable()).startswith("a forecast, not a verdict")


def test_a_model_is_compiled_ahead_of_time(
    make_subject: MakeSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "--auto-cast all")
    monkeypatch.setenv("NEURON_DOUBLE_CALLS", str(tmp_path / "calls"))
    # It lives for long enough that its memory is looked at.
    monkeypatch.setenv("NEURON_DOUBLE", "allocate 50")
    phases: list[Phase] = []
    outcome = evaluated(make_subject, phases=phases)
    assert (outcome.status, phases) == (Status.PASS, [Phase.COMPILE]), outcome.detail
    assert outcome.detail.startswith("compiled for trn1, ")
    detail = outcome.details
    assert (detail.route, detail.target, detail.compiled) == ("torch_neuronx.trace", "trn1", True)
    assert (detail.sdk_version, detail.device_cores) == ("2.9.0.2.15.32035", None)
    assert detail.compiler_version == "2.27.5334.0+f702b353"
    assert None not in (detail.compile_seconds, detail.neff_bytes)
    assert detail.compiler_peak_memory_bytes > 50 * 2**20
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert " ".join(detail.flags[2:]) in call
    assert "--auto-cast none" in call
    folder = tmp_path / "artifacts" / "graph.trn1"
    names = ["graph.neff", "neuron.json", "console.txt", "command.txt"]
    names += ["model/graph.hlo", "model/metadata.json"]
    assert set(outcome.artifacts) == {f"graph.trn1/{name}" for name in names}
    assert "Compiler status PASS" in (folder / "console.txt").read_text()
    assert msgspec.json.decode((folder / "neuron.json").read_bytes(), type=NeuronDetail) == detail


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
    make_subject: MakeSubject,
    behaviour: str,
    status: Status,
    kind: str,
    code: str,
) -> None:
    phases: list[Phase] = []
    outcome = evaluated(make_subject, behaviour, phases=phases)
    failure = outcome.details.failure
    assert (outcome.status, phases) == (status, [Phase.COMPILE])
    assert (failure.kind, outcome.error.code) == (kind, code)
    if behaviour == REJECTED:
        assert (failure.advice, failure.exit_status) == ("Reduce the batch size", 70)
        assert outcome.detail.startswith("device memory: NCC_EVRF009: Size of total input exceeds")
        assert "neuronxcc.driver.CommandDriver" in outcome.error.head


def test_what_cannot_be_lowered_never_reaches_the_compiler(make_subject: MakeSubject) -> None:
    outcome: Any = target.NeuronTarget().run(make_subject(Unlowered, name="neuron"))
    assert (outcome.status, outcome.error.type) == (Status.ERROR, "NotImplementedError")
    assert outcome.details.failure.kind == "lowering"


def test_on_a_device_it_runs_is_compared_and_measured(
    make_subject: MakeSubject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    (tmp_path / "product").write_text("inf2.xlarge\n")
    monkeypatch.setattr(neuronx_cc, "PRODUCT", tmp_path / "product")
    phases: list[Phase] = []
    outcome = evaluated(make_subject, phases=phases)
    assert outcome.status is Status.PASS, outcome.detail
    assert phases == [Phase.COMPILE, Phase.COMPARE, Phase.PROFILE]
    assert (outcome.numerics.matches, outcome.numerics.deterministic) == (True, True)
    detail = outcome.details
    assert (detail.target, detail.device_cores) == ("inf2", 2)
    assert None not in (detail.latency_seconds, detail.eager_latency_seconds)
    assert detail.latency_samples is not None
    monkeypatch.setenv("NEURON_DOUBLE_OFF_BY", "0.5")
    wrong: Any = target.NeuronTarget().run(make_subject(Net, name="neuron"))
    assert (wrong.status, wrong.details.compiled) == (Status.MISMATCH, True)
    assert wrong.detail.startswith("differs from eager in ")


def test_what_cannot_be_loaded_is_an_error_after_compiling(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "2")
    phases: list[Phase] = []

    def enter(phase: Phase) -> None:
        phases.append(phase)
        if phase is Phase.COMPARE:  # the driver is gone
            monkeypatch.setenv("NEURON_DOUBLE_CORES", "0")

    outcome = evaluated(make_subject, enter=enter)
    assert (outcome.status, phases[-1]) == (Status.ERROR, Phase.COMPARE)
    assert outcome.detail.startswith("compiled, then RuntimeError: The PyTorch Neuron Runtime")


def test_without_its_compiler_the_product_is_unsupported(
    make_subject: MakeSubject, install: Install
) -> None:
    install(torch_neuronx="2.9.0.2.15")
    outcome = evaluated(make_subject)
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.detail.startswith("no neuronx-cc beside this Python or on PATH")


def test_a_broken_installation_is_no_fault_of_the_model(
    make_subject: MakeSubject, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "torch_neuronx.py").write_text("raise ImportError('libnrt.so.1 is missing')")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = evaluated(make_subject)
    assert outcome.status is Status.UNSUPPORTED
    assert outcome.detail.startswith("torch_neuronx cannot be imported: ")


def test_what_the_sdk_does_not_do_is_rejected(make_subject: MakeSubject) -> None:
    for fields, words in (
        ({"mode": Mode.TRAIN}, "Neuron through XLA has no training"),
        ({"dynamic": True}, "Neuron compiles static shapes only"),
    ):
        outcome = evaluated(make_subject, **fields)
        assert outcome.status is Status.UNSUPPORTED
        assert outcome.detail.startswith(words)
    with pytest.raises(FakeUnsupportedError):
        target.NeuronTarget().run(make_subject(Net, tier=Tier.FAKE, name="neuron"))


def test_the_parent_knows_the_backends() -> None:
    assert TARGETS["neuron"].backends == neuronx_cc.TARGETS
    assert TARGETS["export"].backends == tuple(name for name in VARIANTS if name)
