"""Neuron by PyTorch/XLA (torch_neuronx 2.9 and before), for Trn1 and Inf2.

There are two ways to neuronx-cc. `torch_neuronx.trace` lowers the model itself, ahead of time and
without a device; if only the compiler is installed, an HLO module captured with torch_xla is
compiled. On a machine with NeuronCores the executable is also loaded, run, compared with eager mode
and timed. Without the compiler, the HLO module is kept for a machine that has it, without a
verdict.

Signatures: Neuron SDK 2.32.0 (torch-neuronx 2.9). Nothing here has run on Neuron hardware yet.
The guide is `frameworks/torch/torch-neuronx/api-reference-guide/inference`; files other than
`graph.neff` in the folder of a trace are undocumented.
"""

import contextlib
import importlib
import importlib.util
import math
import os
import re
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from compilewatch import files, records
from compilewatch.contract.failures import KEPT_CHARACTERS, one_line
from compilewatch.contract.processes import PeakMemory
from compilewatch.errors import CompilerError
from compilewatch.neuron import neuronx_cc
from compilewatch.neuron.neuronx_cc import Compilation, Compiler
from compilewatch.worker.forked import ForkEndedError
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import FakeUnsupportedError, numerics
from compilewatch.worker.targets.dynamo.failures import compiler_failure, failed
from compilewatch.worker.targets.execution import Flat, observed, observed_in_float64
from compilewatch.worker.targets.inductor import latencies


def outcome_of(
    subject: Subject, detail: records.NeuronDetail, log: str, error: records.ErrorRecord | None
) -> records.TargetOutcome:
    """A NEFF is a pass, a rejection an error, and a machine with too little memory an `oom`."""
    problem = detail.failure
    exhausted = problem is not None and problem.kind == neuronx_cc.HOST_MEMORY
    if problem is not None and error is None:
        code = problem.code or f"neuronx_cc_{problem.kind}"
        error = records.ErrorRecord(
            type=neuronx_cc.ROUTE,
            message=" - ".join(filter(None, (problem.message, problem.advice))),
            code="out_of_memory" if exhausted else code,
            head=log[:KEPT_CHARACTERS],
            tail=log[KEPT_CHARACTERS:][-KEPT_CHARACTERS:],
        )
    failed = records.Status.OOM if exhausted else records.Status.ERROR
    return records.TargetOutcome(
        status=records.Status.PASS if problem is None else failed,
        detail=neuronx_cc.described(detail),
        graphs=1 if problem is None else None,
        details=detail,
        error=error if problem is not None else None,
        artifacts=_kept(subject) if subject.request.keep_artifacts else (),
    )


def _kept(subject: Subject) -> tuple[str, ...]:
    files = (path for path in subject.artifacts.rglob("*") if path.is_file())
    return tuple(sorted(str(path.relative_to(subject.artifacts)) for path in files))


ROUTE = "torch_neuronx.trace"

_EXIT_STATUS = re.compile(r"neuronx-cc failed with (-?\d+)")
"""`trace` raises this as a RuntimeError; the compiler's message is in its console output."""


def _traced(subject: Subject, target: str, compiler: Compiler, cores: int) -> records.TargetOutcome:
    """Evaluate a subject by `torch_neuronx`."""
    try:
        sdk = importlib.import_module("torch_neuronx")
    except Exception as error:  # noqa: BLE001  (any error of a broken installation)
        detail = f"torch_neuronx cannot be imported: {one_line(error)}"
        return records.TargetOutcome(status=records.Status.UNSUPPORTED, detail=detail)
    outputs: list[str] = []
    flat = Flat(subject, outputs)
    tensors = flat.tensors(*subject.inputs.args, **subject.inputs.kwargs)
    folder = subject.artifacts / f"graph.{target}"
    folder.mkdir()
    # torch_neuronx passes --framework itself; of an argument passed twice, the last one counts.
    flags = compiler.flags(target)
    ahead_of_time: dict[str, Any] = {} if cores else {"cpu_backend": True}
    traced, problem, record = None, None, None
    peak = PeakMemory()
    started = time.perf_counter()
    try:
        with peak, _console_kept(folder), preserved(subject.module), torch.no_grad():
            traced = sdk.trace(
                flat,
                tensors,
                compiler_workdir=str(folder),
                compiler_args=list(flags[2:]),
                **ahead_of_time,
            )
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        problem, record = _trace_failure(error, folder)
    found = records.NeuronDetail(
        target=target,
        route=ROUTE,
        flags=flags,
        sdk_version=str(getattr(sdk, "__version__", "")) or None,
        compiler_version=compiler.version,
        device_cores=cores or None,
        compile_seconds=time.perf_counter() - started,
        compiler_peak_memory_bytes=peak.bytes,
    )
    neff = folder / neuronx_cc.NEFF_FILE
    if problem is None and not neff.is_file():
        neff = next(iter(sorted(folder.rglob("*.neff"))), neff)
    found = neuronx_cc.with_neff(found, neff, problem)
    shutil.rmtree(folder / "model" / "weights", ignore_errors=True)  # a copy of the model's own
    files.replace(folder / neuronx_cc.DETAIL_FILE, msgspec.json.encode(found))
    outcome = outcome_of(subject, found, _console(folder), record)
    if outcome.status is records.Status.PASS and cores:

        def on_core(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return named(traced(*flat.tensors(*args, **kwargs)))  # type: ignore[misc]

        def eager(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
            return named(flat(*flat.tensors(*args, **kwargs)))

        def named(results: Any) -> dict[str, Tensor]:
            together = results if isinstance(results, tuple | list) else (results,)
            return dict(zip(outputs, together, strict=True))

        outcome = _on_device(subject, eager, on_core, outcome)
    return outcome


def _trace_failure(
    error: Exception, folder: Path
) -> tuple[records.NeuronFailure, records.ErrorRecord | None]:
    """Return the failure of the compiler, or of the lowering with the exception's record."""
    status = _EXIT_STATUS.search(str(error))
    output = f"{error}\n{_console(folder)}"
    if status is not None:
        return neuronx_cc.failure(_console(folder), int(status[1])), None
    if "NCC_" in output:
        return neuronx_cc.failure(output, None), None
    record = compiler_failure(error, ())
    return records.NeuronFailure(kind=neuronx_cc.LOWERING, message=one_line(error)), record


@contextmanager
def _console_kept(folder: Path) -> Iterator[None]:
    """Redirect the output of this process and its compilers to the compilation's console file."""
    kept = os.open(folder / neuronx_cc.CONSOLE_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    saved = os.dup(1), os.dup(2)
    os.dup2(kept, 1)
    os.dup2(kept, 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(saved, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(kept)


def _console(folder: Path) -> str:
    return neuronx_cc.tail(folder / neuronx_cc.CONSOLE_FILE)


def _on_device(
    subject: Subject, eager: Any, compiled: Any, outcome: records.TargetOutcome
) -> records.TargetOutcome:
    """Load and run the executable, compare it with eager mode, and measure its latency."""
    subject.enter(records.Phase.COMPARE)
    try:
        comparison = numerics.assess(
            lambda: observed(subject, eager),
            lambda: observed(subject, compiled),
            lambda: observed_in_float64(subject),
        )
    except Exception as error:  # noqa: BLE001  (the edge to Neuron's runtime and to model code)
        return failed(outcome, error, (), "compiled, then ")
    differs = comparison.differs
    outcome = msgspec.structs.replace(
        outcome,
        status=records.Status.MISMATCH if differs else records.Status.PASS,
        detail=f"differs from eager in {comparison.mismatches[0]}" if differs else outcome.detail,
        numerics=comparison,
    )
    subject.enter(records.Phase.PROFILE)
    with preserved(subject.module):
        measured, problem = latencies(subject, eager, compiled)
    if measured is None:
        return msgspec.structs.replace(outcome, detail=f"{outcome.detail}; {problem}")
    host, core, samples = measured
    assert isinstance(outcome.details, records.NeuronDetail)
    detail = msgspec.structs.replace(
        outcome.details, eager_latency_seconds=host, latency_seconds=core, latency_samples=samples
    )
    return msgspec.structs.replace(outcome, details=detail)


HLO_FILE = f"graph{neuronx_cc.HLO_SUFFIX}"

_LIMITS = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)


def evaluate(subject: Subject) -> records.TargetOutcome:
    """Compile by XLA, by the best way in this environment; with a device, also run and measure.

    Raises FakeUnsupportedError for a subject of fake tensors; out-of-memory errors of this process
    propagate.
    """
    if subject.fake_mode is not None:
        raise FakeUnsupportedError("Neuron compiles weights in: it needs real tensors")
    cores = neuronx_cc.core_count()
    target = neuronx_cc.family_of(subject.request.target.backend)
    requested = subject.request.target
    if requested.mode is records.Mode.TRAIN or requested.dynamic:
        what = "training" if requested.mode is records.Mode.TRAIN else "dynamic shapes"
        return records.TargetOutcome(
            status=records.Status.UNSUPPORTED, detail=f"Neuron through XLA has no {what}"
        )
    subject.enter(records.Phase.COMPILE)
    path = neuronx_cc.find()
    if path is None:
        return _archived(subject, target)
    _prepare_process(path)
    try:
        compiler = neuronx_cc.describe(path)
        if importlib.util.find_spec("torch_neuronx") is not None:
            return _traced(subject, target, compiler, cores)
        return _compiled_hlo(subject, target, compiler)
    except CompilerError as error:
        return records.TargetOutcome(status=records.Status.UNSUPPORTED, detail=str(error))


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
    a single graph, an exported program may. Raises the errors of `step`.
    """
    os.environ.setdefault("PJRT_DEVICE", "CPU")
    importlib.import_module("torch_xla")  # once, here; in each fork it would take seconds
    from compilewatch.worker.targets.xla import capture, target

    request = msgspec.structs.replace(subject.request, keep_artifacts=True)
    kept = replace(subject, request=request)  # the HLO must be stored in any case
    path = subject.artifacts / HLO_FILE
    with contextlib.suppress(ForkEndedError):  # perhaps only the call itself crashes
        detail, *_ = target.step(kept, capture.capture_hlo, capture.Captured, math.inf)
        if detail.hlo is not None:
            return path
    return None if target.exported_hlo(kept) is None else path


def _captured(subject: Subject) -> Path | records.TargetOutcome:
    """Return the HLO module, or the outcome if none may be compiled."""
    try:
        hlo = _capture(subject)
    except Exception as error:  # noqa: BLE001  (the edge to torch_xla and to model code)
        record = getattr(error, "record", None) or compiler_failure(error, ())
        detail = f"not captured as an HLO: {one_line(error)}"
        return records.TargetOutcome(status=records.Status.ERROR, detail=detail, error=record)
    if hlo is None:
        detail = "no HLO valid for other inputs: operators run outside XLA (see target xla)"
        return records.TargetOutcome(status=records.Status.UNSUPPORTED, detail=detail)
    return hlo


def _compiled_hlo(subject: Subject, target: str, compiler: Compiler) -> records.TargetOutcome:
    hlo = _captured(subject)
    if isinstance(hlo, records.TargetOutcome):
        return hlo
    folder = neuronx_cc.folder_of(hlo, target)
    # In this process group: after the deadline, the launcher ends the compiler with it.
    compilation = Compilation(compiler, hlo, target, folder, own_session=False)
    return outcome_of(subject, compilation.detail(), compilation.log(), None)


def _archived(subject: Subject, target: str) -> records.TargetOutcome:
    """Return the outcome without a compiler: the HLO module, for a machine that has one."""
    hlo = _captured(subject)
    if isinstance(hlo, records.TargetOutcome):
        detail = f"no neuronx-cc here, and {hlo.detail}"
        return msgspec.structs.replace(hlo, status=records.Status.UNSUPPORTED, detail=detail)
    return records.TargetOutcome(
        status=records.Status.UNSUPPORTED,
        detail=f"no neuronx-cc here; its input is stored as an artifact, for a machine with it: "
        f"compilewatch neuron compile PATH/{HLO_FILE} --target {target}",
        details=records.NeuronDetail(
            target=target, route=neuronx_cc.ROUTE, hlo_sha256=neuronx_cc.sha256(hlo)
        ),
        artifacts=_kept(subject),
    )
