"""The route through `torch_neuronx`: trace a model, check its operators, run it.

Signatures: Neuron SDK 2.32.0 (torch-neuronx 2.9), `frameworks/torch/torch-neuronx/api-reference-
guide/inference`. Files other than `graph.neff` in the folder of a trace are undocumented.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from compilewatch import files
from compilewatch.contract.failures import one_line
from compilewatch.contract.processes import PeakMemory
from compilewatch.neuron import error_classes, neuronx_cc
from compilewatch.neuron.neuronx_cc import Compiler
from compilewatch.records import (
    ErrorRecord,
    NeuronDetail,
    NeuronFailure,
    NeuronOperator,
    NeuronSupport,
    Phase,
    Status,
)
from compilewatch.worker.model.construct import preserved
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import TargetOutcome, numerics
from compilewatch.worker.targets.compiler_errors import compiler_failure
from compilewatch.worker.targets.execution import forward, observed, observed_in_float64
from compilewatch.worker.targets.inductor import latencies
from compilewatch.worker.targets.neuron.outcome import outcome_of

ROUTE = "torch_neuronx.trace"
ANALYSIS_FILE = "analysis.json"

_EXIT_STATUS = re.compile(r"neuronx-cc failed with (-?\d+)")
"""`trace` raises this as a RuntimeError; the compiler's message is in its console output."""


class Flat(nn.Module):  # type: ignore[misc]  # torch is not followed
    """A model in the form of `torch_neuronx.trace`: tensors in, in order; a tuple of tensors out.

    Other arguments are constants. `names` are the paths of the outputs as in `numerics`, known
    after a call.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.module = subject.module
        self.names: tuple[str, ...] = ()
        leaves, self._spec = tree_flatten((subject.inputs.args, subject.inputs.kwargs))
        self._constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves: list[Any] = list(self._constants)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self._spec)
        outputs = numerics.leaves(self.module(*args, **kwargs))
        tensors_out = {name: value for name, value in outputs if isinstance(value, Tensor)}
        self.names = tuple(tensors_out)
        return tuple(tensors_out.values())

    def tensors(self, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        """Return the arguments of the model as arguments of `forward`."""
        leaves, _ = tree_flatten((args, kwargs))
        return tuple(leaves[place] for place in self._places)

    def named(self, outputs: Any) -> dict[str, Tensor]:
        together = outputs if isinstance(outputs, tuple | list) else (outputs,)
        return dict(zip(self.names, together, strict=True))


@dataclass
class NeuronTrace:
    """The evaluation of one subject by `torch_neuronx`."""

    subject: Subject
    target: str
    compiler: Compiler
    cores: int

    def outcome(self) -> TargetOutcome:
        try:
            sdk = importlib.import_module("torch_neuronx")
        except Exception as error:  # noqa: BLE001  (any error of a broken installation)
            detail = f"torch_neuronx cannot be imported: {one_line(error)}"
            return TargetOutcome(status=Status.UNSUPPORTED, detail=detail)
        subject, flat = self.subject, Flat(self.subject)
        tensors = flat.tensors(*subject.inputs.args, **subject.inputs.kwargs)
        folder = subject.artifacts / f"graph.{self.target}"
        folder.mkdir()
        found, traced, record = self._trace(sdk, flat, tensors, folder)
        remark = ""
        if found.failure is None or found.failure.kind != error_classes.HOST_MEMORY:
            support, remark = _support(sdk, subject, flat, tensors, folder)
            found = msgspec.structs.replace(found, support=support)
        shutil.rmtree(folder / "model" / "weights", ignore_errors=True)  # a copy of the model's own
        files.replace(folder / neuronx_cc.DETAIL_FILE, msgspec.json.encode(found))
        outcome = outcome_of(subject, found, _console(folder), record)
        if outcome.status is Status.PASS and self.cores:
            outcome = _on_device(subject, flat, traced, outcome)
        return replace(outcome, detail="; ".join(filter(None, (outcome.detail, remark))))

    def _trace(
        self, sdk: Any, flat: Flat, tensors: tuple[Tensor, ...], folder: Path
    ) -> tuple[NeuronDetail, Any, ErrorRecord | None]:
        # torch_neuronx passes --framework itself; of an argument passed twice, the last one counts.
        flags = self.compiler.flags(self.target)
        ahead_of_time: dict[str, Any] = {} if self.cores else {"cpu_backend": True}
        detail = NeuronDetail(
            target=self.target,
            route=ROUTE,
            flags=flags,
            sdk_version=str(getattr(sdk, "__version__", "")) or None,
            compiler_version=self.compiler.version,
            device_cores=self.cores or None,
        )
        traced, problem, record = None, None, None
        peak = PeakMemory()
        started = time.perf_counter()
        try:
            with peak, _console_kept(folder), preserved(self.subject.module), torch.no_grad():
                traced = sdk.trace(
                    flat,
                    tensors,
                    compiler_workdir=str(folder),
                    compiler_args=list(flags[2:]),
                    **ahead_of_time,
                )
        except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
            problem, record = _trace_failure(error, folder)
        seconds = time.perf_counter() - started
        detail = msgspec.structs.replace(
            detail, compile_seconds=seconds, compiler_peak_memory_bytes=peak.bytes
        )
        neff = folder / neuronx_cc.NEFF_FILE
        if problem is None and not neff.is_file():
            neff = next(iter(sorted(folder.rglob("*.neff"))), neff)
        return neuronx_cc.with_neff(detail, neff, problem), traced, record


def _trace_failure(error: Exception, folder: Path) -> tuple[NeuronFailure, ErrorRecord | None]:
    """Return the failure of the compiler, or of the lowering with the exception's record."""
    status = _EXIT_STATUS.search(str(error))
    output = f"{error}\n{_console(folder)}"
    if status is not None:
        return error_classes.failure(_console(folder), int(status[1])), None
    if "NCC_" in output:
        return error_classes.failure(output, None), None
    record = compiler_failure(error, ())
    return NeuronFailure(kind=error_classes.LOWERING, message=one_line(error)), record


def _support(
    sdk: Any, subject: Subject, flat: Flat, tensors: tuple[Tensor, ...], folder: Path
) -> tuple[NeuronSupport | None, str]:
    """Return the report of `torch_neuronx.analyze`; None and the reason if it fails."""
    try:
        with (
            tempfile.TemporaryDirectory(dir=subject.artifacts.parent) as workdir,
            preserved(subject.module),
            torch.no_grad(),
        ):
            report = sdk.analyze(flat, tensors, compiler_workdir=workdir)
        support = support_of(report)
    except Exception as error:  # noqa: BLE001  (optional: the verdict does not depend on it)
        return None, f"analyze failed: {one_line(error)}"
    (folder / ANALYSIS_FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    names = ", ".join(operator.name for operator in support.unsupported)
    return support, f"unsupported operators: {names}" if names else ""


def support_of(report: dict[str, Any]) -> NeuronSupport:
    """Convert the result of `torch_neuronx.analyze`; its percentage is a string ("98.5%")."""
    percent = str(report.get("support_percentage", "")).strip().removesuffix("%")
    refused = Counter(
        (str(operator["kind"]), str(operator["failureAt"]))
        for operator in report["unsupported_operators"]
    )
    return NeuronSupport(
        percent=float(percent) if percent else None,
        supported={str(name): int(n) for name, n in report["supported_operators"].items()},
        unsupported=tuple(
            NeuronOperator(name=name, occurrences=n, failure_at=at)
            for (name, at), n in sorted(refused.items())
        ),
    )


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


def _on_device(subject: Subject, flat: Flat, traced: Any, outcome: TargetOutcome) -> TargetOutcome:
    """Load and run the executable, compare it with eager mode, and measure its latency."""

    def eager(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return flat.named(flat(*flat.tensors(*args, **kwargs)))

    def compiled(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return flat.named(traced(*flat.tensors(*args, **kwargs)))

    subject.enter(Phase.COMPARE)
    try:
        comparison = numerics.assess(
            lambda: observed(subject, eager),
            lambda: observed(subject, compiled),
            lambda: observed_in_float64(subject),
        )
    except Exception as error:  # noqa: BLE001  (the edge to Neuron's runtime and to model code)
        record = compiler_failure(error, ())
        detail = f"compiled, then {one_line(error)}"
        return replace(outcome, status=Status.ERROR, detail=detail, error=record)
    differs = comparison.deterministic and not comparison.matches
    outcome = replace(
        outcome,
        status=Status.MISMATCH if differs else Status.PASS,
        detail=f"differs from eager in {comparison.mismatches[0]}" if differs else outcome.detail,
        numerics=comparison,
    )
    subject.enter(Phase.PROFILE)
    try:
        with preserved(subject.module):
            host, core, samples = latencies(
                lambda: forward(subject, eager, subject.inputs),
                lambda: forward(subject, compiled, subject.inputs),
            )
    except Exception as error:  # noqa: BLE001  (model code, called more often than it expects)
        compiler_failure(error, ())
        return replace(outcome, detail=f"{outcome.detail}; measuring stopped at {one_line(error)}")
    assert isinstance(outcome.details, NeuronDetail)
    measured = msgspec.structs.replace(
        outcome.details,
        eager_latency_seconds=host,
        latency_seconds=core,
        latency_samples=samples,
    )
    return replace(outcome, details=measured)
