"""The Dynamo target: is the model captured without graph breaks, and what causes each one?

It records two different facts. `status` and `breaks` come from a capture as by
`torch.compile(module)`, which allows graph breaks (`graph_breaks` describes what is counted).
`fullgraph` says whether `torch.compile(module, fullgraph=True, backend="eager")` accepts the model.
It traces with other settings (scalar outputs and data-dependent shapes are captured), so a model
with `.item()` can have a graph break and yet be accepted.
"""

import contextlib
import inspect
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch._dynamo.exc import TorchRuntimeError

from compilewatch import records
from compilewatch.contract import processes
from compilewatch.contract.failures import one_line
from compilewatch.worker import targets
from compilewatch.worker.device import on_declared_device
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo import capture as captures
from compilewatch.worker.targets.dynamo import failures, graph_breaks, series
from compilewatch.worker.targets.dynamo.capture import Backend, Capture, call_once

LOG_FOLDER = "torch_trace"
PAGES_FOLDER = "tlparse"
_TIMEOUT_SECONDS = 60.0

GRAPHS_KEPT = 200
"""Of so many graphs a result has the operations and the break behind each."""

_Fullgraph = tuple[records.FullgraphVerdict, tuple[records.GraphBreak, ...]]
"""The verdict of `fullgraph=True`, and its reason to reject the model as a graph break."""


class DynamoTarget(targets.CompileTarget):
    """Graph capture by TorchDynamo. Modes eval (under `no_grad`) and train (loss and backward)."""

    name = "dynamo"
    tiers = (records.Tier.FAKE, records.Tier.REAL)

    def run(self, subject: Subject) -> records.TargetOutcome:
        """Capture the model, record the graph breaks, and determine `fullgraph`.

        Raises FakeUnsupportedError if a failure may be caused by the subject's fake tensors instead
        of the compiler; MemoryError propagates.
        """
        if subject.request.target.nested_graph_breaks and not captures.has_nested_graph_breaks():
            detail = f"torch {torch.__version__} has no setting nested_graph_breaks"
            return records.TargetOutcome(status=records.Status.UNSUPPORTED, detail=detail)
        outcome = self.breaks(subject, brief=False)
        if outcome.status is not records.Status.ERROR and outcome.fullgraph is None:
            subject.enter(records.Phase.COMPILE)  # after the rendering of the trace
            fullgraph, _ = _compile_fullgraph(subject)
            outcome = msgspec.structs.replace(outcome, fullgraph=fullgraph)
        return outcome

    def breaks(self, subject: Subject, *, brief: bool = True) -> records.TargetOutcome:
        """Capture the model and record the graph breaks.

        If `brief`, neither the second call nor `fullgraph` is looked at.
        """
        subject.enter(records.Phase.COMPILE)
        capture = partial(captured_breaks, brief=brief)
        outcome, by_compiler = subject.in_fork(capture, tuple[records.TargetOutcome, bool])
        if outcome.status is records.Status.ERROR:
            by_compiler = by_compiler and not brief
            return after_failure(subject, outcome, by_compiler=by_compiler)
        return outcome

    def shapes(self, subject: Subject) -> records.Shapes:
        return series.shapes_of(subject)

    def probe(self, subject: Subject) -> records.TargetOutcome:
        """Look for the first graph break without running anything that was compiled.

        The tensors become fake ones of the declared device, and only the compiler runs: the capture
        ends with the first graph. A frame that Dynamo leaves to eager mode without a graph counts
        as a break, if `fullgraph=True` says why.
        """
        subject = on_declared_device(subject)
        subject.enter(records.Phase.COMPILE)
        fullgraph, rejections = subject.in_fork(
            lambda fork: _compile_fullgraph(fork, captures.stop), _Fullgraph
        )
        captured, error = None, None
        try:
            captured = _capture(subject, captures.stop)
        except Exception as failure:  # noqa: BLE001  (the edge to the compiler and to model code)
            error = failure
        failures.raise_if_out_of_memory(error)
        if captured is not None and (captured.breaks() or captured.is_single_graph):
            return outcome_of(subject, captured, fullgraph, probed=True)
        if isinstance(error, TorchRuntimeError):
            discard(subject.artifacts)
            targets.check_device_not_needed(subject, "\n".join(map(str, failures.chain_of(error))))
            return _error_outcome(error, fullgraph, probed=True)
        if not rejections:
            raise targets.FakeUnsupportedError(
                f"no graph before eager code failed: {one_line(error)}"
                if error is not None
                else "Dynamo left the model to eager mode, which needs values"
            ) from error
        return outcome_of(subject, captured or Capture(), fullgraph, rejections, probed=True)


def captured_breaks(
    subject: Subject, *, brief: bool = False, backend: Backend | None = None
) -> tuple[records.TargetOutcome, bool]:
    """Capture the model, whose first call this is, and call it once more unless `brief`.

    The graphs go to `backend`, or else to the one that the request names. The `fullgraph` of the
    outcome is None where the capture does not prove it. Returns also whether the compiler raised a
    failure. Raises FakeUnsupportedError if fake tensors may have caused one.
    """
    try:
        again = None if brief else captures.second_call(subject)
        captured = _capture(
            subject,
            backend or captures.capturing_backend(subject),
            count_operators=True,
            again=again,
        )
    except Exception as error:  # of the compiler and of the model's code
        discard(subject.artifacts)
        if isinstance(error, targets.FakeUnsupportedError):
            raise
        failures.raise_unless_settled(subject, error)
        return _error_outcome(error, None), failures.is_by_compiler(error)
    return outcome_of(subject, captured), False


def _capture(subject: Subject, backend: Backend, **options: Any) -> Capture:
    keep = subject.request.keep_artifacts
    with captures.tensors(subject):
        return captures.capture(
            lambda module: call_once(subject, module),
            subject.module,
            backend=backend,
            dynamic=subject.request.target.dynamic,
            trace_folder=subject.artifacts / LOG_FOLDER if keep else None,
            forget=subject.forget,
            **options,
        )


def outcome_of(
    subject: Subject,
    captured: Capture,
    fullgraph: records.FullgraphVerdict | None = None,
    breaks: tuple[records.GraphBreak, ...] = (),
    *,
    probed: bool = False,
) -> records.TargetOutcome:
    """Return the outcome of a capture that succeeded, by its graph breaks; keeps the trace.

    Without `fullgraph`, that of the outcome is what the capture proves of it, if it does.
    """
    if captured.proves_fullgraph:
        fullgraph = fullgraph or records.FullgraphVerdict(accepted=True, derived=True)
    model = forward_of(subject.module)
    breaks = breaks or captured.breaks(model) or _nothing_captured(captured, model)
    for entry in breaks:
        targets.check_device_not_needed(subject, entry.reason)
    total = _occurrences(breaks)
    if not breaks:
        detail = "nothing to capture: no tensor operation" if captured.is_empty else "one graph"
    elif probed:
        detail = f"breaks: {total} or more, because the capture ended with the first graph"
    else:
        detail = f"graphs {captured.graphs}, breaks {total} ({len(breaks)} distinct)"
    artifacts: tuple[str, ...] = ()
    if subject.request.keep_artifacts and not breaks:
        discard(subject.artifacts)
    elif subject.request.keep_artifacts:
        subject.enter(records.Phase.PROFILE)  # rendering must not count as compile time
        artifacts, problem = render(subject.artifacts)
        detail = f"{detail}; {problem}" if problem else detail
    return records.TargetOutcome(
        status=records.Status.GRAPH_BREAK if breaks else records.Status.PASS,
        detail=detail,
        probed=probed,
        graphs=captured.graphs,
        graph_breaks=total,
        distinct_breaks=len(breaks),
        unattributed=captured.missing(),
        ops=captured.ops,
        guards=captured.guards,
        graph_ops=tuple(captured.graph_ops[:GRAPHS_KEPT]),
        graph_ends=captured.ends(captured.captured[:GRAPHS_KEPT], breaks, model),
        fullgraph=fullgraph,
        breaks=breaks,
        capture=captured.figures,
        second_call=_second_call_facts(captured, model),
        recompilations=captured.versions.recompilations(),
        artifacts=artifacts,
    )


def _occurrences(breaks: tuple[records.GraphBreak, ...]) -> int:
    return sum(graph_break.occurrences for graph_break in breaks)


def _second_call_facts(captured: Capture, model: records.StackFrame) -> records.SecondCall | None:
    """Return what the second call met beyond the first; None if nothing, or if none was made."""
    second = captured.second
    if second is None:
        return None
    breaks = second.breaks(model)
    is_compiled = any(again.call > 1 for again in captured.versions.recompilations())
    if not breaks and not is_compiled and not captured.second_error:
        return None
    return records.SecondCall(
        breaks=breaks,
        graph_breaks=_occurrences(breaks),
        graphs=second.graphs,
        error=captured.second_error,
    )


def _compile_fullgraph(subject: Subject, backend: Backend | None = None) -> _Fullgraph:
    """Compile with `fullgraph=True` and return the verdict, and why it was rejected as a break.

    Without a `backend`, what was compiled runs as with `backend="eager"`.
    """
    subject.forget()
    compiled = torch.compile(
        subject.module,
        fullgraph=True,
        backend=backend or captures.eager_backend(subject),
        dynamic=subject.request.target.dynamic,
    )
    try:
        with captures.tensors(subject), contextlib.suppress(captures.Stopped):
            subject.call(compiled)
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        failures.raise_unless_settled(subject, error, "under fullgraph: ")
        message = failures.message_of(error)
        frames = graph_breaks.user_stack(getattr(error, "real_stack", None) or ())
        frames = frames or (forward_of(subject.module),)
        rejection = graph_breaks.classify(
            message, captures.type_names(error), graph_breaks.place_of(frames), frames
        )
        reason = graph_breaks.portable_text(message)
        verdict = records.FullgraphVerdict(accepted=False, code=rejection.code, reason=reason)
        return verdict, (rejection,)
    return records.FullgraphVerdict(accepted=True), ()


def after_failure(
    subject: Subject, outcome: records.TargetOutcome, *, by_compiler: bool
) -> records.TargetOutcome:
    """Return the outcome of a capture that failed.

    Raises what the model's own backward raises, in phase eager: that is no compiler error.
    """
    training = subject.request.target.mode is records.Mode.TRAIN
    if training:
        subject.in_fork(_check_eager_backward, type(None))
    if by_compiler:
        fullgraph, _ = _compile_fullgraph(subject)
        outcome = msgspec.structs.replace(outcome, fullgraph=fullgraph)
    if training and outcome.error and outcome.error.code in ("backend_error", "runtime_error"):
        record = msgspec.structs.replace(outcome.error, code=graph_breaks.AOT_AUTOGRAD)
        outcome = msgspec.structs.replace(outcome, error=record)
    return outcome


def _error_outcome(
    error: Exception, fullgraph: records.FullgraphVerdict | None, *, probed: bool = False
) -> records.TargetOutcome:
    return records.TargetOutcome(
        status=records.Status.ERROR,
        detail=one_line(error),
        error=failures.compiler_error(error),
        fullgraph=fullgraph,
        probed=probed,
    )


def _check_eager_backward(subject: Subject) -> None:
    """Raise, in phase eager, what the model's own backward raises: not a compiler error."""
    subject.forget()
    try:
        with subject.tensors():
            call_once(subject, subject.module)
    except Exception:
        subject.enter(records.Phase.EAGER)
        raise


def _nothing_captured(
    captured: Capture, model: records.StackFrame
) -> tuple[records.GraphBreak, ...]:
    """Return a graph break if Dynamo reported none but left the model's frame to eager mode.

    A call without any operation has nothing to capture.
    """
    if captured.is_single_graph or captured.is_empty:
        return ()
    skip_reasons = "\n".join(captured.skip_reasons) or "Dynamo did not report why."
    reason = f"Dynamo captured {captured.graphs} graphs. Frames that it skipped:\n{skip_reasons}"
    return (graph_breaks.graph_break(graph_breaks.SKIPPED_FRAME, reason, model, (model,)),)


def forward_of(module: torch.nn.Module) -> records.StackFrame:
    # Statically, since looking up the `forward` of a scripted class fails.
    forward: Any = inspect.getattr_static(type(module), "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None:  # not implemented in Python
        return records.StackFrame(file=graph_breaks.UNKNOWN, line=0, function=type(module).__name__)
    return graph_breaks.stack_frame(code.co_filename, code.co_firstlineno, code.co_name)


def render(artifacts: Path) -> tuple[tuple[str, ...], str]:
    """Render the log in `artifacts/torch_trace` into `artifacts/tlparse`.

    Returns the paths to keep, relative to `artifacts` (the log, and the first page if there is
    one), and what went wrong in one line, or "". Never raises, because an artifact is not a
    verdict.
    """
    logs = sorted((artifacts / LOG_FOLDER).glob("*.log"))
    if not logs:
        return (), "torch wrote no structured trace"
    kept = tuple(str(log.relative_to(artifacts)) for log in logs)
    program = processes.program("tlparse")
    if program is None:
        return kept, "tlparse is not installed: the structured trace is kept, but not rendered"
    pages = artifacts / PAGES_FOLDER
    command = [program, "--overwrite", "--no-browser", "-o", str(pages), str(logs[-1])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return kept, f"tlparse did not run: {type(error).__name__}"
    index = pages / "index.html"
    if done.returncode != 0 or not index.is_file():
        errors = done.stderr.strip().splitlines()
        return kept, f"tlparse failed ({done.returncode}): {errors[-1] if errors else 'no message'}"
    return (str(index.relative_to(artifacts)), *kept), ""


def discard(artifacts: Path) -> None:
    """Delete the log of a capture without graph breaks."""
    shutil.rmtree(artifacts / LOG_FOLDER, ignore_errors=True)
