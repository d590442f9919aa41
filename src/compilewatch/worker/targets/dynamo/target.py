"""The Dynamo target: is the model captured without graph breaks, and what causes each one?

It records two different facts. `status` and `breaks` come from a capture as by
`torch.compile(module)`, which allows graph breaks (`graph_breaks` describes what is counted).
`fullgraph` says whether `torch.compile(module, fullgraph=True, backend="eager")` accepts the model.
It traces with other settings (scalar outputs and data-dependent shapes are captured), so a model
with `.item()` can have a graph break and yet be accepted.
"""

from __future__ import annotations

import contextlib
import inspect
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch._dynamo.exc import TorchRuntimeError

from compilewatch.contract.failures import one_line
from compilewatch.records import (
    FullgraphVerdict,
    GraphBreak,
    Mode,
    Phase,
    SecondCall,
    StackFrame,
    Status,
    Tier,
)
from compilewatch.worker.model.fake_mode import values_shown
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import (
    CompileTarget,
    FakeUnsupportedError,
    TargetOutcome,
    check_device_not_needed,
)
from compilewatch.worker.targets.dynamo.capture import (
    Backend,
    Capture,
    Stopped,
    call_once,
    capture,
    capturing_backend,
    eager_backend,
    has_nested_graph_breaks,
    nested_graph_breaks,
    rejected_deepcopy,
    second_call,
    stop,
    type_names,
    unmeasured_guards,
)
from compilewatch.worker.targets.dynamo.failures import (
    chain_of,
    compiler_error,
    is_by_compiler,
    is_settled,
    message_of,
    raise_if_out_of_memory,
)
from compilewatch.worker.targets.dynamo.graph_breaks import (
    AOT_AUTOGRAD,
    SKIPPED_FRAME,
    UNKNOWN,
    BreakCause,
    classify,
    graph_break,
    place_of,
    portable_text,
    stack_frame,
    user_stack,
)

LOG_FOLDER = "torch_trace"
PAGES_FOLDER = "tlparse"
_TIMEOUT_SECONDS = 60.0


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
    program = find_tlparse()
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


def find_tlparse() -> str | None:
    """Find the binary of the tlparse wheel: next to the interpreter, or else on PATH."""
    beside = Path(sys.executable).with_name("tlparse")
    return str(beside) if beside.is_file() else shutil.which("tlparse")


GRAPHS_KEPT = 200
"""Of so many graphs a result has the operations and the break behind each."""


@dataclass(frozen=True, kw_only=True)
class _Captured:
    """The outcome of a capture. Its `fullgraph` is None where the capture does not prove it.

    `by_compiler` says of a failure whether the compiler raised it.
    """

    outcome: TargetOutcome
    by_compiler: bool = False


@dataclass(frozen=True, kw_only=True)
class _Fullgraph:
    """The verdict of `fullgraph=True`, and its reason to reject the model as a graph break."""

    verdict: FullgraphVerdict
    breaks: tuple[GraphBreak, ...] = ()


class DynamoTarget(CompileTarget):
    """Graph capture by TorchDynamo. Modes eval (under `no_grad`) and train (loss and backward)."""

    name = "dynamo"
    tiers = (Tier.FAKE, Tier.REAL)

    def missing(self) -> str | None:
        return None

    def run(self, subject: Subject) -> TargetOutcome:
        """Capture the model, record the graph breaks, and determine `fullgraph`.

        Raises FakeUnsupportedError if a failure may be caused by the subject's fake tensors instead
        of the compiler; MemoryError propagates.
        """
        if subject.request.target.nested_graph_breaks and not has_nested_graph_breaks():
            detail = f"torch {torch.__version__} has no setting nested_graph_breaks"
            return TargetOutcome(status=Status.UNSUPPORTED, detail=detail)
        outcome = self.breaks(subject, brief=False)
        if outcome.status is not Status.ERROR and outcome.fullgraph is None:
            subject.enter(Phase.COMPILE)  # after the rendering of the trace
            outcome = replace(outcome, fullgraph=_compile_fullgraph(subject).verdict)
        return outcome

    def breaks(self, subject: Subject, *, brief: bool = True) -> TargetOutcome:
        """Capture the model and record the graph breaks.

        If `brief`, neither the second call nor `fullgraph` is looked at.
        """
        subject.enter(Phase.COMPILE)
        captured = subject.in_fork(partial(self._captured, brief=brief), _Captured)
        if captured.outcome.status is Status.ERROR:
            return _after_failure(subject, captured, brief=brief)
        return captured.outcome

    def _captured(self, subject: Subject, *, brief: bool) -> _Captured:
        """Capture the model, whose first call this is, and call it once more unless `brief`."""
        try:
            with _tensors(subject):
                captured = capture(
                    lambda module: call_once(subject, module),
                    subject.module,
                    backend=capturing_backend(subject),
                    dynamic=subject.request.target.dynamic,
                    trace_folder=_trace_folder(subject),
                    count_operators=True,
                    again=None if brief else second_call(subject),
                    forget=subject.forget,
                )
        except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
            discard(subject.artifacts)
            return _failed(subject, error)
        return _Captured(outcome=self._outcome(subject, captured, _derived_fullgraph(captured)))

    def probe(self, subject: Subject) -> TargetOutcome:
        """Look for the first graph break without running anything that was compiled.

        The capture ends with the first graph. A frame that Dynamo leaves to eager mode without a
        graph counts as a break, if `fullgraph=True` says why.
        """
        subject.enter(Phase.COMPILE)
        fullgraph = subject.in_fork(lambda fork: _compile_fullgraph(fork, stop), _Fullgraph)
        captured, error = _capture_first_graph(subject)
        raise_if_out_of_memory(error)
        if captured is not None and (captured.log.breaks() or captured.is_single_graph):
            return self._outcome(subject, captured, fullgraph.verdict, probed=True)
        if isinstance(error, TorchRuntimeError):
            discard(subject.artifacts)
            check_device_not_needed(subject, "\n".join(map(str, chain_of(error))))
            return _error_outcome(error, fullgraph.verdict, probed=True)
        if not fullgraph.breaks:
            raise FakeUnsupportedError(
                f"no graph before eager code failed: {one_line(error)}"
                if error is not None
                else "Dynamo left the model to eager mode, which needs values"
            ) from error
        return self._outcome(
            subject, captured or Capture(), fullgraph.verdict, fullgraph.breaks, probed=True
        )

    def _outcome(
        self,
        subject: Subject,
        captured: Capture,
        fullgraph: FullgraphVerdict | None,
        breaks: tuple[GraphBreak, ...] = (),
        *,
        probed: bool = False,
    ) -> TargetOutcome:
        keep = subject.request.keep_artifacts
        model = forward_of(subject.module)
        breaks = breaks or captured.log.breaks(model) or _nothing_captured(subject, captured)
        for entry in breaks:
            check_device_not_needed(subject, entry.reason)
        outcome = TargetOutcome(
            status=Status.GRAPH_BREAK if breaks else Status.PASS,
            detail=_detail(captured, breaks, probed=probed),
            probed=probed,
            graphs=captured.graphs,
            graph_breaks=sum(graph_break.occurrences for graph_break in breaks),
            distinct_breaks=len(breaks),
            unattributed=captured.log.missing(),
            ops=captured.ops,
            guards=captured.guards,
            graph_ops=tuple(captured.graph_ops[:GRAPHS_KEPT]),
            graph_ends=captured.log.ends(captured.captured[:GRAPHS_KEPT], breaks, model),
            fullgraph=fullgraph,
            breaks=breaks,
            capture=captured.figures,
            second_call=_second_call_facts(captured, model),
        )
        return _with_artifacts(subject, outcome) if keep else outcome


@contextmanager
def _tensors(subject: Subject) -> Iterator[None]:
    with ExitStack() as stack:
        if subject.owns_process:
            stack.enter_context(unmeasured_guards())
        stack.enter_context(nested_graph_breaks(subject.request.target.nested_graph_breaks))
        stack.enter_context(subject.tensors())
        if subject.fake_mode is not None:
            stack.enter_context(rejected_deepcopy())
            stack.enter_context(values_shown())
        yield


def _trace_folder(subject: Subject) -> Path | None:
    """Where the structured trace of a capture is written, if artifacts are kept."""
    return subject.artifacts / LOG_FOLDER if subject.request.keep_artifacts else None


def _second_call_facts(captured: Capture, model: StackFrame) -> SecondCall | None:
    """Return what the second call met beyond the first; None if nothing, or if none was made."""
    second = captured.second
    if second is None:
        return None
    breaks = second.log.breaks(model)
    recompilations = second.figures.recompilations
    if not breaks and not recompilations and not captured.second_error:
        return None
    return SecondCall(
        breaks=breaks,
        graph_breaks=sum(graph_break.occurrences for graph_break in breaks),
        graphs=second.graphs,
        recompilations=recompilations,
        error=captured.second_error,
    )


def _derived_fullgraph(captured: Capture) -> FullgraphVerdict | None:
    """Return the verdict of `fullgraph=True` if the capture proves it.

    `fullgraph=True` differs from the capture in how it handles a graph break, a frame without
    operations, a second traced frame, and scalars or shapes that depend on data (which cause a
    break without it). A capture of one frame as a single graph met none of these, so tracing is the
    same.
    """
    if captured.is_single_graph and captured.alone:
        return FullgraphVerdict(accepted=True, derived=True)
    return None


def _capture_first_graph(subject: Subject) -> tuple[Capture | None, Exception | None]:
    """Capture up to the first graph; of a failure before it, return the error."""

    try:
        with _tensors(subject):
            captured = capture(
                lambda module: call_once(subject, module),
                subject.module,
                backend=stop,
                dynamic=subject.request.target.dynamic,
                trace_folder=_trace_folder(subject),
                forget=subject.forget,
            )
    except Exception as error:  # noqa: BLE001  (the edge to the compiler and to model code)
        return None, error
    return captured, None


def _rejected(subject: Subject, error: Exception) -> tuple[GraphBreak, ...]:
    """Return the reason why `fullgraph=True` rejects a model as a graph break."""
    message = message_of(error)
    frames = user_stack(getattr(error, "real_stack", None) or ())
    place = (place_of(frames) if frames else None) or forward_of(subject.module)
    cause = classify(message, type_names(error))
    return (graph_break(cause, portable_text(message), place, frames or (place,)),)


def _compile_fullgraph(subject: Subject, backend: Backend | None = None) -> _Fullgraph:
    """Compile with `fullgraph=True` and return the verdict, and why it was rejected as a break.

    Without a `backend`, what was compiled runs as with `backend="eager"`.
    """
    subject.forget()
    training = subject.request.target.mode is Mode.TRAIN
    gradients: AbstractContextManager[Any] = nullcontext() if training else torch.no_grad()
    compiled = torch.compile(
        subject.module,
        fullgraph=True,
        backend=backend or eager_backend(subject),
        dynamic=subject.request.target.dynamic,
    )
    try:
        with _tensors(subject), gradients, contextlib.suppress(Stopped):
            compiled(*subject.inputs.args, **subject.inputs.kwargs)
    except Exception as error:  # of the compiler and of the model's code
        raise_if_out_of_memory(error)
        check_device_not_needed(subject, "\n".join(map(str, chain_of(error))))
        if not is_settled(subject, error):
            raise FakeUnsupportedError(f"under fullgraph: {one_line(error)}") from error
        message = message_of(error)
        verdict = FullgraphVerdict(
            accepted=False,
            code=classify(message, type_names(error)).code,
            reason=portable_text(message),
        )
        return _Fullgraph(verdict=verdict, breaks=_rejected(subject, error))
    return _Fullgraph(verdict=FullgraphVerdict(accepted=True))


def _failed(subject: Subject, error: Exception) -> _Captured:
    """Return what an exception in the compiler or in the compiled model says.

    Raises FakeUnsupportedError if fake tensors may have caused it; MemoryError propagates.
    """
    raise_if_out_of_memory(error)
    if isinstance(error, FakeUnsupportedError):
        raise error
    check_device_not_needed(subject, "\n".join(map(str, chain_of(error))))
    if not is_settled(subject, error):
        raise FakeUnsupportedError(one_line(error)) from error
    return _Captured(outcome=_error_outcome(error, None), by_compiler=is_by_compiler(error))


def _after_failure(subject: Subject, captured: _Captured, *, brief: bool) -> TargetOutcome:
    """Return the outcome of a capture that failed.

    Raises what the model's own backward raises, in phase eager: that is no compiler error.
    """
    outcome = captured.outcome
    training = subject.request.target.mode is Mode.TRAIN
    if training:
        subject.in_fork(_check_eager_backward, type(None))
    if captured.by_compiler and not brief:
        outcome = replace(outcome, fullgraph=_compile_fullgraph(subject).verdict)
    if training and outcome.error and outcome.error.code in ("backend_error", "runtime_error"):
        record = msgspec.structs.replace(outcome.error, code=AOT_AUTOGRAD)
        outcome = replace(outcome, error=record)
    return outcome


def _error_outcome(
    error: Exception, fullgraph: FullgraphVerdict | None, *, probed: bool = False
) -> TargetOutcome:
    return TargetOutcome(
        status=Status.ERROR,
        detail=one_line(error),
        error=compiler_error(error),
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
        subject.enter(Phase.EAGER)
        raise


def _nothing_captured(subject: Subject, captured: Capture) -> tuple[GraphBreak, ...]:
    """Return a graph break if Dynamo reported none but left the model's frame to eager mode.

    A call without any operation has nothing to capture.
    """
    if captured.is_single_graph or captured.is_empty:
        return ()
    skip_reasons = "\n".join(captured.skip_reasons) or "Dynamo did not report why."
    reason = f"Dynamo captured {captured.graphs} graphs. Frames that it skipped:\n{skip_reasons}"
    place = forward_of(subject.module)
    return (graph_break(BreakCause(code=SKIPPED_FRAME), reason, place, (place,)),)


def forward_of(module: torch.nn.Module) -> StackFrame:
    # Statically, since looking up the `forward` of a scripted class fails.
    forward: Any = inspect.getattr_static(type(module), "forward", None)
    code = getattr(inspect.unwrap(forward), "__code__", None)
    if code is None:  # not implemented in Python
        return StackFrame(file=UNKNOWN, line=0, function=type(module).__name__)
    return stack_frame(code.co_filename, code.co_firstlineno, code.co_name)


def _with_artifacts(subject: Subject, outcome: TargetOutcome) -> TargetOutcome:
    if not outcome.breaks:
        discard(subject.artifacts)
        return outcome
    subject.enter(Phase.PROFILE)  # rendering must not count as compile time
    kept, problem = render(subject.artifacts)
    detail = f"{outcome.detail}; {problem}" if problem else outcome.detail
    return replace(outcome, artifacts=kept, detail=detail)


def _detail(captured: Capture, breaks: tuple[GraphBreak, ...], *, probed: bool) -> str:
    if not breaks:
        return "nothing to capture: no tensor operation" if captured.is_empty else "one graph"
    total = sum(graph_break.occurrences for graph_break in breaks)
    if probed:
        return f"breaks: {total} or more, because the capture ended with the first graph"
    return f"graphs {captured.graphs}, breaks {total} ({len(breaks)} distinct)"
