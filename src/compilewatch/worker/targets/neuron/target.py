"""The Neuron target: does AWS's compiler produce an executable of the model, and is it correct?

There are two routes to neuronx-cc. `torch_neuronx.trace` lowers the model itself, ahead of time and
without a device; if only the compiler is installed, an HLO module captured with torch_xla is
compiled. On a machine with NeuronCores the executable is also loaded, run, compared with eager mode
and timed. Without the compiler, the HLO module is kept for a machine that has it, without a
verdict.

Signatures: Neuron SDK 2.32.0 (torch-neuronx 2.9). Nothing here has run on Neuron hardware yet.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import resource
from dataclasses import replace
from pathlib import Path

import msgspec

from compilewatch.contract.failures import one_line
from compilewatch.errors import CompilerError, UsageError
from compilewatch.neuron import device, neuronx_cc
from compilewatch.neuron.neuronx_cc import Compilation, Compiler
from compilewatch.records import Mode, NeuronDetail, Phase, Status, Tier
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import CompileTarget, FakeUnsupportedError, TargetOutcome
from compilewatch.worker.targets.compiler_errors import compiler_failure
from compilewatch.worker.targets.neuron.outcome import outcome_of
from compilewatch.worker.targets.neuron.trace import NeuronTrace

HLO_FILE = f"graph{neuronx_cc.HLO_SUFFIX}"

_LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)


class NeuronTarget(CompileTarget):
    """`backend` names the instance family (trn1, trn1n, inf2, trn2).

    The default is the family of this machine if it has NeuronCores, otherwise trn1. Only inference
    with static shapes: the SDK removed training through XLA in release 2.30.
    """

    name = "neuron"
    tiers = (Tier.REAL,)

    def missing(self) -> str | None:
        sdk, xla = _installed("torch_neuronx"), _installed("torch_xla")
        compiler = neuronx_cc.find() is not None
        if xla or (sdk and compiler):
            return None
        if compiler:
            return (
                "neuronx-cc is installed, but not torch_neuronx or torch_xla to make its input: "
                "compilewatch env create neuron (docs/guide.md, Neuron)"
            )
        lacking = (
            "torch_neuronx without neuronx-cc" if sdk else "no neuronx-cc and no torch_neuronx"
        )
        return f"{lacking}: compilewatch env create neuron (docs/guide.md, Neuron)"

    def unable(self) -> str | None:
        if self.missing() is None and neuronx_cc.find() is None:
            return "no neuronx-cc: it stores an HLO, for `compilewatch neuron compile` elsewhere"
        return self.missing()

    def run(self, subject: Subject) -> TargetOutcome:
        """Compile by the best route in this environment; with a device, also run and measure.

        Raises FakeUnsupportedError for a subject of fake tensors, UsageError for an unknown
        backend; out-of-memory errors of this process propagate.
        """
        if subject.fake_mode is not None:
            raise FakeUnsupportedError("Neuron compiles weights in: it needs real tensors")
        cores = device.core_count()
        target = _instance_family(subject, cores)
        requested = subject.request.target
        if requested.mode is Mode.TRAIN or requested.dynamic:
            what = "training" if requested.mode is Mode.TRAIN else "dynamic shapes"
            return TargetOutcome(
                status=Status.UNSUPPORTED, detail=f"Neuron through XLA has no {what}"
            )
        subject.enter(Phase.COMPILE)
        path = neuronx_cc.find()
        if path is None:
            return _archived(subject, target)
        _prepare_process(path)
        try:
            compiler = neuronx_cc.describe(path)
            if _installed("torch_neuronx"):
                return NeuronTrace(subject, target, compiler, cores).outcome()
            return _compiled_hlo(subject, target, compiler)
        except CompilerError as error:
            return TargetOutcome(status=Status.UNSUPPORTED, detail=str(error))


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _instance_family(subject: Subject, cores: int) -> str:
    backend = subject.request.target.backend
    if backend is None:
        own = device.instance_family() if cores else None
        return own if own in neuronx_cc.TARGETS else neuronx_cc.DEFAULT_TARGET
    if backend not in neuronx_cc.TARGETS:
        known = ", ".join(neuronx_cc.TARGETS)
        raise UsageError(f"neuron has no backend {backend!r}; known: {known}")
    return backend


def _prepare_process(compiler: str) -> None:
    """Prepare this process, which serves one request, for starting the compiler.

    torch_neuronx looks for it on PATH, and flags from the environment would override the pinned
    ones. The compiler inherits the limits of this process: a NEFF may exceed 1 GiB, and the
    compiler needs more memory than the model (the launcher watches the total).
    """
    folder = str(Path(compiler).parent)
    os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH"))))
    os.environ.pop("NEURON_CC_FLAGS", None)
    for limit in _LIMITS:
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))


# --- the route of a captured HLO ---------------------------------------------------------------


def _capture(subject: Subject) -> Path | None:
    """Store the subject as an HLO artifact; None if no module is valid for other inputs.

    Uses the steps of the xla target, each in its own process: if lazy tensors do not capture it as
    a single graph, an exported program may. Raises the errors of `isolated`.
    """
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    importlib.import_module("torch_xla")  # once, here; in each fork it would take seconds
    isolation, xla, capture = (
        importlib.import_module(f"compilewatch.worker.targets.xla.{name}")
        for name in ("isolation", "target", "capture")
    )
    request = msgspec.structs.replace(subject.request, keep_artifacts=True)
    kept = replace(subject, request=request)  # the HLO must be stored in any case
    captured = None
    with contextlib.suppress(isolation.StepDiedError):  # perhaps only the call itself crashes
        captured = isolation.isolated(
            lambda enter: capture.capture_hlo(kept, enter),
            capture.HloCapture,
            subject.enter,
            xla.CODES,
        )
    if captured is None or not captured.ready:
        captured = xla.exported_hlo(kept)
    return None if captured is None else subject.artifacts / HLO_FILE


def _captured(subject: Subject) -> Path | TargetOutcome:
    """Return the HLO module, or the outcome if none may be compiled."""
    try:
        hlo = _capture(subject)
    except Exception as error:  # noqa: BLE001  (the edge to torch_xla and to model code)
        record = getattr(error, "record", None) or compiler_failure(error, ())
        detail = f"not captured as an HLO: {one_line(error)}"
        return TargetOutcome(status=Status.ERROR, detail=detail, error=record)
    if hlo is None:
        detail = "no HLO valid for other inputs: operators run outside XLA (see target xla)"
        return TargetOutcome(status=Status.UNSUPPORTED, detail=detail)
    return hlo


def _compiled_hlo(subject: Subject, target: str, compiler: Compiler) -> TargetOutcome:
    hlo = _captured(subject)
    if isinstance(hlo, TargetOutcome):
        return hlo
    folder = neuronx_cc.folder_of(hlo, target)
    # In this process group: after the deadline, the launcher ends the compiler with it.
    compilation = Compilation(compiler, hlo, target, folder, own_session=False)
    return outcome_of(subject, compilation.detail(), compilation.log(), None)


def _archived(subject: Subject, target: str) -> TargetOutcome:
    """Return the outcome without a compiler: the HLO module, for a machine that has one."""
    hlo = _captured(subject)
    if isinstance(hlo, TargetOutcome):
        detail = f"no neuronx-cc here, and {hlo.detail}"
        return replace(hlo, status=Status.UNSUPPORTED, detail=detail)
    return TargetOutcome(
        status=Status.UNSUPPORTED,
        detail=f"no neuronx-cc here; its input is stored as an artifact, for a machine with it: "
        f"compilewatch neuron compile PATH/{HLO_FILE} --target {target}",
        details=NeuronDetail(
            target=target, route=neuronx_cc.ROUTE, hlo_sha256=neuronx_cc.sha256(hlo)
        ),
        artifacts=tuple(sorted(file.name for file in subject.artifacts.iterdir())),
    )
