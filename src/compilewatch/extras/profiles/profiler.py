"""The context manager that a training script uses."""

import logging
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from compilewatch.contract.processes import resident_bytes
from compilewatch.errors import did_you_mean
from compilewatch.extras.profiles import training
from compilewatch.extras.profiles.records import operator_stats, operators_csv
from compilewatch.extras.profiles.training import STEPS_FILE, TRACE_FILE
from compilewatch.files import append_all, lock, replace, sync
from compilewatch.records import Record, new_run_id, now

T = TypeVar("T")
Setting = str | int | float | bool | None

PROBLEMS_KEPT = 20

NVML_SECONDS = 1.0
"""How often the use of a GPU is read: its sample periods are up to a second long."""

STEP_NAME = "training step"

KINETO_LOG = "KINETO_LOG_LEVEL"

_log = logging.getLogger("compilewatch.profiling")


class Profiler:
    """Measures a training loop, step by step and stage by stage, into a folder of its own.

    Nothing that fails in here stops the training: the problem is logged once, listed in
    `profiler_summary.json`, and the training continues. Exceptions of the training pass through.
    Use it in one thread; in distributed training, enable it on one rank.

    Args:
        out: the folder in which a new folder for this profile is created; see `folder`.
        enabled: if False, every method does nothing.
        warm_up: steps at the beginning that averages leave out (compilation, caches).
        trace_steps: steps after the warm-up that `torch.profiler` records; 0 for none. Averages
            leave them out, too, because recording slows them down.
        synchronize: called at the end of each stage, to wait for an asynchronous device. By default
            it is `torch.cuda.synchronize` once CUDA is in use, and nothing otherwise.
        model, target, settings: what `config.json` says about the training.
    """

    def __init__(
        self,
        out: str | os.PathLike[str] = "outputs/profiles",
        *,
        enabled: bool = True,
        warm_up: int = 2,
        trace_steps: int = 3,
        synchronize: Callable[[], object] | None = None,
        model: str | None = None,
        target: str | None = None,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        self.problems: list[str] = []
        self._out = Path(out)
        self._enabled = enabled
        self._active = False
        self._warm_up = max(0, warm_up)
        self._trace_steps = max(0, trace_steps)
        self._synchronize = synchronize
        self._about = (model, target, dict(settings or {}))
        self._folder: TrainingFolder | None = None
        self._clock = StageClock()
        self._trace: Any = None  # torch.profiler.profile, while it records
        self._traced_step = ExitStack()
        self._index = 0
        self._epoch: int | None = None
        self._pid = os.getpid()
        self._began = self._step_began = self._cpu_began = 0.0
        self._ask_nvml_at = 0.0

    @property
    def folder(self) -> Path | None:
        """The folder of this profile; None if nothing is written."""
        return self._folder.path if self._folder is not None else None

    # --- what a training script calls ---

    def __enter__(self) -> Self:
        if self._enabled:
            self._pid = os.getpid()
            self._quietly("the profile cannot be started", self._start)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._running():
            self._active = False
            assert self._folder is not None
            self._quietly("the trace cannot be written", self._save_trace)
            failure = None if error is None else f"{type(error).__name__}: {error}"[:1000]
            self._quietly("the profile cannot be completed", lambda: self._finish(failure))
            self._quietly("the profile cannot be closed", self._folder.close)

    def stage(self, name: str | training.Stage) -> AbstractContextManager[None]:
        """Return the context of one stage of the step; see `Stage` for the names."""
        if not self._running():
            return nullcontext()
        try:
            stage = training.Stage(name)
        except ValueError:
            known = [member.value for member in training.Stage]
            hint = did_you_mean(str(name), known) or f"; known: {', '.join(known)}"
            self._problem(f"no stage {name!r}, which counts as other{hint}")
            stage = training.Stage.OTHER
        return self._stage(stage)

    def data(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; the time that each takes counts as the stage `data`."""
        iterator = iter(batches)
        while True:
            with self.stage(training.Stage.DATA):
                try:
                    batch = next(iterator)
                except StopIteration:
                    return
            yield batch

    def epoch(self, number: int) -> None:
        """Say in which epoch the following steps are."""
        self._epoch = number

    def step(self, *, loss: object = None, samples: int | None = None) -> None:
        """End a step and begin the next one.

        `loss` may be a tensor with one element, whose value is read; `samples` is the size of the
        batch.
        """
        if self._running():
            self._quietly("a step cannot be recorded", lambda: self._end_step(loss, samples))

    # --- the profile ---

    def _running(self) -> bool:
        """Whether this process writes a profile; a fork, such as a data loader's, does not."""
        return self._active and os.getpid() == self._pid

    def _start(self) -> None:
        folder = TrainingFolder(self._out)
        torch: Any = sys.modules.get("torch")
        model, target, settings = self._about
        cuda = torch is not None and torch.cuda.is_available()
        config = training.TrainingConfig(
            id=folder.path.name,
            started_at=now(),
            pid=self._pid,
            python=platform.python_version(),
            cores=os.cpu_count() or 1,
            machine=f"{platform.node()} {platform.system()} {platform.machine()}",
            torch=str(torch.__version__) if torch is not None else None,
            threads=torch.get_num_threads() if torch is not None else None,
            device="cuda" if cuda else "cpu",
            synchronized=self._synchronize is not None or cuda,
            model=model,
            target=target,
            warm_up_steps=self._warm_up,
            traced_from=self._warm_up if self._trace_steps else None,
            settings=settings,
        )
        folder.begin(config)
        self._folder, self._active = folder, True
        self._began = time.perf_counter()
        self._begin_step()

    def _begin_step(self) -> None:
        if self._trace_steps and self._index == self._warm_up and "torch" in sys.modules:
            self._quietly("the trace cannot be started", self._start_trace)
        self._traced_step.enter_context(self._annotated(STEP_NAME))
        self._cpu_began = time.process_time()
        self._step_began = time.perf_counter() - self._began
        self._clock.begin_step()

    def _end_step(self, loss: object, samples: int | None) -> None:
        self._wait()
        wall, stages = self._clock.end_step()
        cpu = time.process_time() - self._cpu_began
        ended, traced = time.perf_counter(), self._trace is not None
        index, self._index = self._index, self._index + 1
        try:
            self._traced_step.close()
            if index + 1 >= self._warm_up + self._trace_steps:
                self._quietly("the trace cannot be written", self._save_trace)
            value = self._quietly("the loss cannot be read", lambda: _number(loss))
            finite = value is None or math.isfinite(value)
            size = self._quietly(
                "`samples` cannot be read", lambda: None if samples is None else int(samples)
            )
            step = training.Step(
                index=index,
                at_seconds=self._step_began,
                wall_seconds=wall,
                cpu_seconds=cpu,
                stages=stages,
                overhead_seconds=time.perf_counter() - ended,
                epoch=self._epoch,
                samples=size,
                loss=value if finite else None,
                loss_finite=finite,
                resident_bytes=resident_bytes(),
                device_peak_bytes=int(cuda.max_memory_allocated()) if (cuda := _cuda()) else None,
                device_utilization=self._utilization(),
                traced=traced,
            )
            assert self._folder is not None
            self._folder.append(step)
        finally:
            self._begin_step()

    # --- the recording: errors of torch propagate, such as that of a second profiler ---

    def _start_trace(self) -> None:
        """Record on the CPU and on the accelerator, if there is one: torch's default activities."""
        torch: Any = sys.modules["torch"]
        trace = torch.profiler.profile(profile_memory=True, acc_events=True)
        # Kineto reads it now, and would log each recording to stderr.
        quiet = KINETO_LOG not in os.environ
        os.environ.setdefault(KINETO_LOG, "99")
        try:
            trace.start()
        finally:
            if quiet:
                os.environ.pop(KINETO_LOG, None)
        self._trace = trace

    def _annotated(self, name: str) -> AbstractContextManager[Any]:
        """A part of the trace with a name, so that the trace shows steps and stages."""
        traced = self._trace is not None
        return sys.modules["torch"].profiler.record_function(name) if traced else nullcontext()

    def _save_trace(self) -> None:
        """Write both files atomically, the trace in the JSON format of Chrome."""
        trace, self._trace = self._trace, None
        if trace is None or self._folder is None:
            return
        self._traced_step.close()
        trace.stop()
        folder = self._folder.path
        temporary = folder / f".{TRACE_FILE}.tmp"
        try:
            trace.export_chrome_trace(str(temporary))
            temporary.replace(folder / TRACE_FILE)
            operators = operator_stats(trace.key_averages())
            replace(folder / training.OPERATORS_FILE, operators_csv(operators))
        finally:
            # On a full disk, Kineto leaves a temporary file of its own, which stays open.
            for left in folder.glob(f".{TRACE_FILE}*"):
                os.truncate(left, 0)
                left.unlink()

    def _finish(self, error: str | None) -> None:
        assert self._folder is not None
        data = (self._folder.path / STEPS_FILE).read_bytes()
        steps = msgspec.json.Decoder(training.Step).decode_lines(data[: data.rfind(b"\n") + 1])
        if not steps:
            self._problem("no step was recorded: call profiler.step() at the end of each step")
        self._folder.write(training.STAGES_FILE, training.stage_times(steps, self._warm_up))
        self._folder.write(training.METRICS_FILE, training.metrics(steps, self._warm_up))
        self._folder.finish(
            training.TrainingSummary(
                id=self._folder.path.name,
                state="finished" if error is None else "failed",
                finished_at=now(),
                steps=len(steps),
                error=error,
                steps_lost=self._index - len(steps),
                problems=tuple(self.problems),
            )
        )

    # --- stages ---

    @contextmanager
    def _stage(self, stage: training.Stage) -> Iterator[None]:
        self._clock.enter(stage)
        try:
            with self._annotated(stage.value):
                yield
        finally:
            self._quietly("a stage cannot end", self._wait)
            self._clock.leave(stage)

    def _wait(self) -> None:
        """Wait for an asynchronous device, so that its work counts for the stage that began it."""
        if self._synchronize is not None:
            self._synchronize()
        elif cuda := _cuda():
            cuda.synchronize()

    def _utilization(self) -> float | None:
        """How busy a CUDA device is. Without nvidia-ml-py, or on a MIG instance, nobody knows."""
        cuda, now = _cuda(), time.monotonic()
        if not cuda or now < self._ask_nvml_at:
            return None
        self._ask_nvml_at = now + NVML_SECONDS
        try:
            return int(cuda.utilization()) / 100
        except Exception:  # noqa: BLE001  (NVML's errors, which only that package defines)
            self._ask_nvml_at = math.inf
            return None

    # --- failures ---

    def _quietly(self, what: str, action: Callable[[], T]) -> T | None:
        """Do something that must not stop the training."""
        try:
            return action()
        except Exception as error:  # noqa: BLE001  (the edge to the training)
            self._problem(f"{what}: {type(error).__name__}: {error}")
            return None

    def _problem(self, sentence: str) -> None:
        """Log a problem and keep it for the summary, once."""
        if sentence not in self.problems and len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(sentence)
            _log.warning("the training continues, but %s", sentence)


def _number(loss: Any) -> float | None:
    """Return the value of a number or of a tensor with one element."""
    if loss is None:
        return None
    return float(loss.detach() if hasattr(loss, "detach") else loss)


def _cuda() -> Any:
    """`torch.cuda` once the training uses it."""
    torch: Any = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


class TrainingFolder:
    """The folder of one profile. Raises OSError.

    The lock of `steps.jsonl` is held until `close`, or until the process ends, so that readers know
    whether the profile is still being written.
    """

    def __init__(self, root: Path) -> None:
        self.path = root.absolute() / new_run_id()
        self.path.mkdir(parents=True)

    def begin(self, config: training.TrainingConfig) -> None:
        """Write `config.json`, and lock the empty `steps.jsonl`."""
        self.write(training.CONFIG_FILE, config)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._steps = os.open(self.path / STEPS_FILE, flags, 0o644)
        lock(self._steps, seconds=0.0)

    def append(self, step: training.Step) -> None:
        """Append one line, which other processes can read when this returns.

        No step waits for the disk: a process that is killed loses none, a power failure the newest.
        """
        append_all(self._steps, msgspec.json.encode(step) + b"\n")

    def write(self, name: str, record: Record) -> None:
        """Write a file of JSON atomically."""
        data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
        replace(self.path / name, data, durable=True)

    def finish(self, summary: training.TrainingSummary) -> None:
        """Write the summary, which makes the profile complete."""
        sync(self._steps)
        self.write(training.SUMMARY_FILE, summary)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._steps)


class StageClock:
    """Adds up the seconds of each stage of the current step.

    Stages may be nested: the time of the inner one does not count for the outer one, so that the
    stages of a step add up to the step. A stage that is open when a step ends continues in the next
    one, with the rest of its time.
    """

    def __init__(self) -> None:
        self._open: list[training.Stage] = []
        self._seconds: dict[training.Stage, float] = {}
        self._since = self._began = time.perf_counter()

    def _charge(self, now: float) -> None:
        """Count the time since the last change for the innermost open stage."""
        stage = self._open[-1] if self._open else training.Stage.OTHER
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._since
        self._since = now

    def enter(self, stage: training.Stage) -> None:
        self._charge(time.perf_counter())
        self._open.append(stage)

    def leave(self, stage: training.Stage) -> None:
        self._charge(time.perf_counter())
        if stage in self._open:
            # Stages that generators left open end with the one around them.
            del self._open[len(self._open) - 1 - self._open[::-1].index(stage) :]

    def end_step(self) -> tuple[float, dict[training.Stage, float]]:
        """Return the seconds of the step that ends now and those of its stages."""
        now = time.perf_counter()
        self._charge(now)
        wall, seconds = now - self._began, self._seconds
        return wall, {stage: seconds[stage] for stage in training.Stage if stage in seconds}

    def begin_step(self) -> None:
        """Begin the next step; the time since `end_step` belongs to no step."""
        self._seconds = {}
        self._since = self._began = time.perf_counter()
