"""The context manager that a training script uses."""

from __future__ import annotations

import logging
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from compilewatch.contract.processes import resident_bytes
from compilewatch.errors import did_you_mean
from compilewatch.extras.profiles.train.clock import StageClock
from compilewatch.extras.profiles.train.folder import TrainingFolder
from compilewatch.extras.profiles.train.operators import STEP_NAME, OperatorTrace
from compilewatch.extras.profiles.train.records import (
    METRICS_FILE,
    STAGES_FILE,
    Stage,
    Step,
    TrainingConfig,
    TrainingSummary,
)
from compilewatch.extras.profiles.train.summaries import (
    complete_steps,
    dominant_stage,
    metrics,
    stage_times,
)
from compilewatch.records.clock import now

T = TypeVar("T")
Setting = str | int | float | bool | None

PROBLEMS_KEPT = 20

NVML_SECONDS = 1.0
"""How often the use of a GPU is read: its sample periods are up to a second long."""

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
        self._trace: OperatorTrace | None = None
        self._index = self._lost = 0
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
            if self._trace is not None:
                self._quietly("the trace cannot be written", self._save_trace)
            said = None if error is None else f"{type(error).__name__}: {error}"[:1000]
            self._quietly("the profile cannot be completed", lambda: self._finish(said))
            if self._folder is not None:
                self._quietly("the profile cannot be closed", self._folder.close)

    def stage(self, name: str | Stage) -> _StageContext | nullcontext[None]:
        """Return the context of one stage of the step; see `Stage` for the names."""
        if not self._running():
            return nullcontext()
        try:
            stage = Stage(name)
        except ValueError:
            known = [each.value for each in Stage]
            hint = did_you_mean(str(name), known) or f"; known: {', '.join(known)}"
            self._problem(f"no stage {name!r}, which counts as other{hint}")
            stage = Stage.OTHER
        return _StageContext(self, stage)

    def data(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches; the time that each takes counts as the stage `data`."""
        iterator = iter(batches)
        while True:
            with self.stage(Stage.DATA):
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
        folder.begin(
            TrainingConfig(
                id=folder.id,
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
                traced_steps=self._trace_steps,
                settings=settings,
            )
        )
        self._folder, self._active = folder, True
        self._began = time.perf_counter()
        self._begin_step()

    def _begin_step(self) -> None:
        if self._trace_steps and self._index == self._warm_up and self._trace is None:
            self._quietly("the trace cannot be started", self._start_trace)
        if self._trace is not None:
            self._quietly("a step cannot be traced", lambda: self._traced(STEP_NAME, begins=True))
        self._cpu_began = time.process_time()
        self._step_began = time.perf_counter() - self._began
        self._clock.begin_step()

    def _end_step(self, loss: object, samples: int | None) -> None:
        self._wait()
        wall, stages = self._clock.end_step()
        cpu = time.process_time() - self._cpu_began
        ended = time.perf_counter()
        traced = self._trace is not None
        index, self._index = self._index, self._index + 1
        try:
            if traced:
                self._traced(STEP_NAME, begins=False)
                if index + 1 >= self._warm_up + self._trace_steps:
                    self._quietly("the trace cannot be written", self._save_trace)
            value = self._quietly("the loss cannot be read", lambda: _number(loss))
            finite = value is None or math.isfinite(value)
            size = self._quietly("`samples` cannot be read", lambda: _count(samples))
            step = Step(
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
                device_peak_bytes=_device_peak(),
                device_utilization=self._utilization(),
                traced=traced,
            )
            self._append(step)
        finally:
            self._begin_step()

    def _append(self, step: Step) -> None:
        assert self._folder is not None
        try:
            self._folder.append(step)
        except OSError as error:
            self._lost += 1
            self._problem(f"{self._folder.path}: steps are lost: {error.strerror or error}")

    def _start_trace(self) -> None:
        if "torch" in sys.modules:
            self._trace = OperatorTrace()

    def _save_trace(self) -> None:
        trace, self._trace = self._trace, None
        self._trace_steps = 0
        assert trace is not None
        assert self._folder is not None
        trace.stop()
        trace.save(self._folder.path)

    def _traced(self, name: str, *, begins: bool) -> None:
        if self._trace is not None:
            (self._trace.enter if begins else self._trace.leave)(name)

    def _finish(self, error: str | None) -> None:
        assert self._folder is not None
        steps = list(complete_steps(self._folder.steps()))
        if not steps:
            self._problem("no step was recorded: call profiler.step() at the end of each step")
        times = stage_times(steps, self._warm_up)
        self._folder.write(STAGES_FILE, times)
        self._folder.write(METRICS_FILE, metrics(steps, self._warm_up))
        self._folder.finish(
            TrainingSummary(
                id=self._folder.id,
                state="finished" if error is None else "failed",
                finished_at=now(),
                steps=len(steps),
                error=error,
                steps_lost=self._lost,
                dominant_stage=dominant_stage(times),
                problems=tuple(self.problems),
                files={},
            )
        )

    # --- stages ---

    def _enter(self, stage: Stage) -> None:
        self._clock.enter(stage)
        if self._trace is not None:
            self._traced(stage.value, begins=True)

    def _leave(self, stage: Stage) -> None:
        self._wait()
        self._clock.leave(stage)
        if self._trace is not None:
            self._traced(stage.value, begins=False)

    def _wait(self) -> None:
        """Wait for an asynchronous device, so that its work counts for the stage that began it."""
        if self._synchronize is not None:
            self._synchronize()
            return
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _utilization(self) -> float | None:
        """How busy a CUDA device is. Without nvidia-ml-py, or on a MIG instance, nobody knows."""
        torch: Any = sys.modules.get("torch")
        now = time.monotonic()
        if torch is None or now < self._ask_nvml_at or not torch.cuda.is_initialized():
            return None
        self._ask_nvml_at = now + NVML_SECONDS
        try:
            return int(torch.cuda.utilization()) / 100
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


class _StageContext:
    """The context of one stage. Exceptions of the training pass through."""

    __slots__ = ("_profiler", "_stage")

    def __init__(self, profiler: Profiler, stage: Stage) -> None:
        self._profiler, self._stage = profiler, stage

    def __enter__(self) -> None:
        self._profiler._quietly("a stage cannot begin", lambda: self._profiler._enter(self._stage))

    def __exit__(self, *_: object) -> None:
        self._profiler._quietly("a stage cannot end", lambda: self._profiler._leave(self._stage))


def _number(loss: Any) -> float | None:
    """Return the value of a number or of a tensor with one element."""
    if loss is None:
        return None
    return float(loss.detach() if hasattr(loss, "detach") else loss)


def _count(samples: int | None) -> int | None:
    return int(samples) if samples is not None else None


def _device_peak() -> int | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated())
