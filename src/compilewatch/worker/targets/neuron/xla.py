"""Neuron by PyTorch/XLA (torch_neuronx 2.9 and before), for Trn1 and Inf2.

`torch_neuronx.trace` lowers the model and calls neuronx-cc, ahead of time and without a device. On
a machine with NeuronCores the executable is also loaded, run, compared with eager mode and timed.

Signatures: Neuron SDK 2.32 (torch-neuronx 2.9), the guide
`frameworks/torch/torch-neuronx/api-reference-guide/inference`. Nothing here has run on Neuron
hardware yet; files other than `graph.neff` in the folder of a trace are undocumented.
"""

import importlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch

from compilewatch import files, records
from compilewatch.contract.failures import KEPT_CHARACTERS, one_line
from compilewatch.contract.processes import PeakMemory
from compilewatch.errors import CompilerError
from compilewatch.neuron import neuronx_cc
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import FakeUnsupportedError, numerics
from compilewatch.worker.targets.dynamo.failures import compiler_failure, failed
from compilewatch.worker.targets.execution import Flat, observed, observed_in_float64
from compilewatch.worker.targets.inductor import latencies

ROUTE = "torch_neuronx.trace"


def evaluate(subject: Subject) -> records.TargetOutcome:
    """Compile by `torch_neuronx.trace`; with a device, also run and measure.

    Raises FakeUnsupportedError for a subject of fake tensors; out-of-memory errors of this process
    propagate.
    """
    if subject.fake_mode is not None:
        raise FakeUnsupportedError("Neuron compiles weights in: it needs real tensors")
    if subject.request.target.mode is records.Mode.TRAIN:
        return _unsupported("Neuron through XLA has no training")
    subject.enter(records.Phase.COMPILE)
    target, path = neuronx_cc.family_of(subject.request.target.backend), neuronx_cc.find()
    if path is None:
        return _unsupported("no neuronx-cc beside this Python or on PATH: see compilewatch doctor")
    try:
        neuronx_cc.prepare_process(path)
        return _traced(subject, target, neuronx_cc.describe(path))
    except CompilerError as error:
        return _unsupported(str(error))


def _unsupported(detail: str) -> records.TargetOutcome:
    return records.TargetOutcome(status=records.Status.UNSUPPORTED, detail=detail)


def _outcome(
    subject: Subject, detail: records.NeuronDetail, folder: Path, error: records.ErrorRecord | None
) -> records.TargetOutcome:
    """Store the detail. A NEFF is a pass, a rejection an error, too little memory here an `oom`."""
    files.replace(folder / neuronx_cc.DETAIL_FILE, msgspec.json.encode(detail))
    problem, status = detail.failure, records.Status.PASS
    if problem is not None:
        exhausted = problem.kind == neuronx_cc.HOST_MEMORY
        status = records.Status.OOM if exhausted else records.Status.ERROR
        code = "out_of_memory" if exhausted else problem.code or f"neuronx_cc_{problem.kind}"
        log = neuronx_cc.log_of(folder)
        error = error or records.ErrorRecord(
            type=neuronx_cc.ROUTE,
            message=" - ".join(filter(None, (problem.message, problem.advice))),
            code=code,
            head=log[:KEPT_CHARACTERS],
            tail=log[KEPT_CHARACTERS:][-KEPT_CHARACTERS:],
        )
    return records.TargetOutcome(
        status=status,
        detail=neuronx_cc.described(detail),
        graphs=1 if problem is None else None,
        details=detail,
        error=error,
        artifacts=kept_files(subject) if subject.request.keep_artifacts else (),
    )


def kept_files(subject: Subject) -> tuple[str, ...]:
    """Return all files that the subject's folder has now, relative to it."""
    paths = (path for path in subject.artifacts.rglob("*") if path.is_file())
    return tuple(sorted(str(path.relative_to(subject.artifacts)) for path in paths))


def _traced(subject: Subject, target: str, compiler: neuronx_cc.Compiler) -> records.TargetOutcome:
    """Evaluate a subject by `torch_neuronx.trace`. Raises CompilerError."""
    try:
        sdk = importlib.import_module("torch_neuronx")
    except Exception as error:  # noqa: BLE001  (any error of a broken installation)
        raise CompilerError(f"torch_neuronx cannot be imported: {one_line(error)}") from None
    cores, outputs = neuronx_cc.core_count(), list[str]()
    flat = Flat(subject, outputs)
    tensors = flat.tensors(*subject.inputs.args, **subject.inputs.kwargs)
    folder = subject.artifacts / f"graph.{target}"
    folder.mkdir()
    flags = compiler.flags(target)
    ahead_of_time: dict[str, Any] = {} if cores else {"cpu_backend": True}
    traced, problem, record = None, None, None
    started = time.perf_counter()
    try:
        with (
            PeakMemory() as peak,
            _output_kept(folder / neuronx_cc.CONSOLE_FILE),
            preserved(subject.module),
            torch.no_grad(),
        ):
            # It passes --framework itself; of an argument passed twice, the last one counts.
            traced = sdk.trace(
                flat,
                tensors,
                compiler_workdir=str(folder),
                compiler_args=list(flags[2:]),
                **ahead_of_time,
            )
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        # The compiler's message is only in its output.
        log, ended = f"{error}\n{neuronx_cc.log_of(folder)}", _EXIT_STATUS.search(str(error))
        if ended or "NCC_" in log:
            problem = neuronx_cc.failure(log, int(ended[1]) if ended else None)
        else:
            record = compiler_failure(error, ())
            problem = records.NeuronFailure(kind=neuronx_cc.LOWERING, message=one_line(error))
    detail = records.NeuronDetail(
        target=target,
        route=ROUTE,
        flags=flags,
        sdk_version=str(getattr(sdk, "__version__", "")) or None,
        compiler_version=compiler.version,
        device_cores=cores or None,
        compile_seconds=time.perf_counter() - started,
        compiler_peak_memory_bytes=peak.bytes,
    )
    shutil.rmtree(folder / "model" / "weights", ignore_errors=True)  # a copy of the model's own
    outcome = _outcome(subject, neuronx_cc.finished(detail, folder, problem), folder, record)
    if outcome.status is not records.Status.PASS or not cores:
        return outcome

    def named(function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
            results = function(*flat.tensors(*args, **kwargs))
            results = results if isinstance(results, tuple | list) else (results,)
            return dict(zip(outputs, results, strict=True))

        return call

    return _on_device(subject, named(flat), named(traced), outcome)


_EXIT_STATUS = re.compile(r"neuronx-cc failed with (-?\d+)")
"""`trace` raises this as a RuntimeError."""


@contextmanager
def _output_kept(path: Path) -> Iterator[None]:
    """Redirect the output of this process and of what it starts to a file."""
    saved = os.dup(1), os.dup(2)
    with path.open("ab") as kept:
        os.dup2(kept.fileno(), 1)
        os.dup2(kept.fileno(), 2)
    try:
        yield
    finally:
        for number, descriptor in enumerate(saved, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)


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
    outcome, figures = measured(subject, outcome, comparison, eager, compiled)
    detail = msgspec.structs.replace(outcome.details, **figures)  # type: ignore[type-var]
    return msgspec.structs.replace(outcome, details=detail)


def measured(
    subject: Subject,
    outcome: records.TargetOutcome,
    comparison: records.Numerics,
    eager: Any,
    compiled: Any,
) -> tuple[records.TargetOutcome, dict[str, Any]]:
    """Return the verdict after a comparison, and the latencies as fields of `NeuronDetail`."""
    subject.enter(records.Phase.PROFILE)
    with preserved(subject.module):
        taken, problem = latencies(subject, eager, compiled)
    outcome = msgspec.structs.replace(
        outcome,
        status=records.Status.MISMATCH if comparison.differs else outcome.status,
        detail="; ".join(filter(None, (comparison.remark, outcome.detail, problem))),
        numerics=comparison,
    )
    names = ("eager_latency_seconds", "latency_seconds", "latency_samples")
    return outcome, dict(zip(names, taken or (None, None, None), strict=True))
