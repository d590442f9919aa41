"""Profiles of inference: one model at a time, its targets in turns, round by round.

For each batch size there is a subject for each target: a process with its own copy of the model.
All are prepared first, then measured in turns, and only then looked into: what disturbs a time
(memory, numbers, traces) comes after the last round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

import compilewatch
from compilewatch.analysis import profiling
from compilewatch.contract import profiling as orders
from compilewatch.launchers.local.profiler import SubjectError
from compilewatch.records import (
    Phase,
    Record,
    Status,
)
from compilewatch.records.clock import now
from compilewatch.records.profiles import (
    EAGER,
    BatchPoint,
    InferenceProfile,
    OpStat,
    Samples,
    Software,
    TargetProfile,
)
from compilewatch.report import plots, profile_files, profile_page
from compilewatch.sources.labelled import LabelledTexts
from compilewatch.store.profiles import ProfileFolder, StoredProfile
from compilewatch.workflows import profile_extras
from compilewatch.workflows.machine import busy_note, load, this_machine
from compilewatch.workflows.profile_parts import (
    Job,
    Observer,
    Profilers,
    Running,
    profile_key,
)

LEAST_ROUNDS = 3
"""Rounds that are measured even if the time for a batch is over."""

SEGMENT_CALLS = 5
TRACE_CALLS = 3

R = TypeVar("R", bound=Record)


class Inference:
    """The profile of one job in progress."""

    def __init__(
        self, job: Job, profilers: Profilers, folder: ProfileFolder, observer: Observer
    ) -> None:
        self.job = job
        self.options = job.options
        self.profilers = profilers
        self.folder = folder
        self.observer = observer
        self.points: dict[str, list[BatchPoint]] = {t: [] for t in self.options.targets}
        self.samples: list[Samples] = []
        self.operators: dict[str, tuple[OpStat, ...]] = {}
        self.extras: dict[str, dict[str, object]] = {t: {} for t in self.options.targets}
        self.prepared: orders.Prepared | None = None
        self.notes: list[str] = []
        self._numbers = iter(range(1, 1_000_000))
        self.done = 0.0

    # --- the complete profile ----------------------------------------------------------------

    def run(self, profile_id: str, place: str = ".") -> InferenceProfile:
        """Measure everything and return the profile; nothing is stored but traces."""
        started, seen, machine = now(), load(), this_machine()
        if (note := busy_note(machine, seen)) is not None:
            self.notes.append(note)
        sizes = self.options.batch_sizes
        for index, size in enumerate(sizes):
            self._batch(size, first=index == 0, share=1 / len(sizes))
        if self.job.data is not None:
            self._evaluate(self.job.data)
        model = self.job.request.model
        known = self.prepared
        return InferenceProfile(
            id=profile_id,
            key=profile_key(self.job, machine),
            model=model.name,
            family=model.family,
            task=model.task,
            downloads=model.downloads,
            machine=machine,
            options=self.options,
            targets=tuple(self._target(name) for name in self.options.targets),
            started_at=started,
            finished_at=now(),
            parameters=known.parameters if known else None,
            trainable_parameters=known.trainable_parameters if known else None,
            model_bytes=known.model_bytes if known else None,
            inputs=known.inputs if known else (),
            inputs_strategy=known.strategy if known else "",
            tokens_per_sample=known.tokens_per_sample if known else None,
            load=seen,
            place=place,
            notes=tuple(self.notes),
        )

    def _target(self, name: str) -> TargetProfile:
        environment = self.profilers.of(name).environment
        found = TargetProfile(
            target=name,
            software=Software(
                environment=environment.name,
                python=environment.python,
                torch=environment.torch,
                transformers=environment.transformers or "",
                digest=environment.digest,
                compilewatch=compilewatch.__version__,
            ),
            points=tuple(self.points[name]),
            best_batch_size=profiling.best_batch(self.points[name]),
            operators=self.operators.get(name, ()),
        )
        return msgspec.structs.replace(found, **self.extras[name])

    # --- one batch size ----------------------------------------------------------------------

    def _batch(self, size: int, *, first: bool, share: float) -> None:
        step = share / 10
        running: list[Running] = []
        try:
            for target in self.options.targets:
                refused = self._refused(target, size)
                if refused is not None:
                    self.points[target].append(refused)
                    continue
                self._step(f"batch {size}: {target} is loaded and compiled", step)
                running.append(self.start(target, size))
            self.rounds(size, [each for each in running if each.alive], share / 2)
            self._finish_points(running)
            for each in running:
                if each.alive:
                    self._step(f"batch {size}: looking into {each.target}", step)
                    self._look_into(each, first=first)
            self._compare_with_eager(running)
            if first:
                self._cures(running)
        finally:
            for each in running:
                self.end(each)
                self.points[each.target].append(each.point)

    def _refused(self, target: str, size: int) -> BatchPoint | None:
        """Why a batch size is not tried, from what smaller ones ended with."""
        earlier = self.points[target]
        if earlier and self.prepared is not None and self.prepared.is_fixed:
            return BatchPoint(
                batch_size=size,
                status=Status.UNSUPPORTED,
                phase=Phase.INPUTS,
                detail="the inputs have no batch dimension: give inputs of your own with --inputs",
            )
        for point in earlier:
            if point.status is Status.OOM:
                detail = f"not tried: batch {point.batch_size} already ran out of memory"
            elif point.status not in (Status.PASS, Status.UNSUPPORTED, Status.SKIPPED):
                detail = f"not tried: batch {point.batch_size} ended with {point.status}"
            elif point.status is Status.UNSUPPORTED:
                detail = point.detail
            else:
                continue
            return BatchPoint(batch_size=size, status=Status.SKIPPED, detail=detail)
        return None

    def start(
        self,
        target: str,
        size: int,
        settings: dict[str, bool] | None = None,
        texts: Sequence[str] = (),
    ) -> Running:
        """Prepare a subject and compile; a failure is in its point.

        With `texts`, it is prepared to classify them, and compiles when it gets the first.
        """
        number = next(self._numbers)
        folder = self.folder.scratch / f"{target}-{number}"
        folder.mkdir()
        if texts:
            (folder / orders.TEXTS_FILE).write_bytes(msgspec.json.encode(texts))
        found = Running(
            number=number,
            target=target,
            profiler=self.profilers.of(target),
            folder=folder,
            point=BatchPoint(batch_size=size, status=Status.PASS),
        )
        limits = self.job.request.deadlines
        before = limits.create_seconds + limits.inputs_seconds + limits.eager_seconds
        order = orders.Prepare(
            subject=number,
            deadline_seconds=before,
            folder=str(folder),
            request=self.job.request,
            target=target,
            batch_size=size,
            dtype=self.options.dtype,
            threads=self.options.threads,
            max_length=self.options.max_length,
            full_size=self.options.size == "full",
            settings=settings or {},
        )
        try:
            prepared = found.ask(order, orders.Prepared)
            found.prepared = prepared
            if self.job.data is not None:
                self.job.data.classes(prepared.labels)  # find an unknown label now
            if texts:
                return found
            self.prepared = self.prepared or prepared
            called = found.ask(
                orders.FirstCall(
                    subject=number,
                    deadline_seconds=limits.compile_seconds,
                    warmup=self.options.warmup,
                ),
                orders.Called,
            )
        except SubjectError as error:
            found.failed(error)
            return found
        found.point = msgspec.structs.replace(
            found.point,
            batch_size=prepared.batch_size,
            load_seconds=prepared.load_seconds,
            first_call_seconds=called.seconds,
            graphs=called.graphs,
            graph_breaks=sum(b.occurrences for b in called.breaks)
            if called.breaks is not None
            else None,
        )
        return found

    def rounds(self, size: int, running: list[Running], share: float) -> None:
        """Measure in turns; every other round runs the other way around."""
        if not running:
            return
        options, began = self.options, time.monotonic()
        each_seconds = options.max_seconds / (options.rounds * len(running))
        for number in range(options.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began > options.max_seconds:
                break
            names = " and ".join(each.target for each in running)
            self._step(
                f"batch {size}: {names} in turns, round {number + 1} of {options.rounds}",
                share / options.rounds,
            )
            for each in running if number % 2 == 0 else reversed(running):
                self._measure(each, each_seconds)

    def _measure(self, each: Running, seconds: float) -> None:
        if not each.alive:
            return
        order = orders.Measure(
            subject=each.number,
            deadline_seconds=self.deadline(),
            runs=self.options.runs,
            seconds=seconds,
        )
        try:
            found = each.ask(order, orders.Measured)
        except SubjectError as error:
            each.failed(error)
            return
        each.wall.append(found.wall_seconds)
        each.cpu.append(found.cpu_seconds)

    def _finish_points(self, running: list[Running]) -> None:
        for each in running:
            if each.alive and each.wall:
                each.point = profiling.with_latency(
                    each.point,
                    each.measurement(),
                    tokens_per_sample=each.prepared.tokens_per_sample if each.prepared else None,
                    threads=self.options.threads,
                )
                self.samples.append(
                    Samples(
                        target=each.target,
                        batch_size=each.point.batch_size,
                        wall_seconds=tuple(each.wall),
                        cpu_seconds=tuple(each.cpu),
                    )
                )

    def _compare_with_eager(self, running: list[Running]) -> None:
        eager = next((each for each in running if each.target == EAGER and each.wall), None)
        for each in running:
            if eager is not None and each is not eager and each.alive:
                each.point = profiling.with_speedup(
                    each.point, each.measurement(), eager.measurement()
                )

    # --- looking into a subject --------------------------------------------------------------

    def _look_into(self, each: Running, *, first: bool) -> None:
        """Everything that would disturb a time. What fails is missing, and a note says why."""
        number, deadline = each.number, self.deadline()
        steps: list[tuple[str, Callable[[], None]]] = [("memory", lambda: self._memory(each))]
        if each.target != EAGER:
            steps.append(("comparison with eager mode", lambda: self._numerics(each)))
        if each.target == "inductor":
            steps.append(("trace of a call", lambda: self._segments(each)))
        if first and self.job.trace and each.target in (EAGER, "inductor"):
            steps.append(("trace", lambda: self._trace(each)))
        if first and each.prepared is not None and each.prepared.generates:
            steps.append(("generation", lambda: self._generation(each)))
        if first and each.target == "inductor":
            steps.append(("warm first call", lambda: self._warm(each, number, deadline)))
        for what, step in steps:
            try:
                step()
            except SubjectError as error:
                where = f"{each.target} at batch {each.point.batch_size}"
                self.notes.append(f"{what} of {where} failed: {error.failure.detail}")
                if error.failure.status in (Status.TIMEOUT, Status.OOM, Status.CRASHED):
                    return  # its process has ended

    def _memory(self, each: Running) -> None:
        order = orders.MeasureMemory(subject=each.number, deadline_seconds=self.deadline())
        found = each.ask(order, orders.Used)
        each.point = msgspec.structs.replace(each.point, memory=found.memory)

    def _numerics(self, each: Running) -> None:
        seconds = self.job.request.deadlines.compare_seconds
        order = orders.Compare(subject=each.number, deadline_seconds=seconds)
        found = each.ask(order, orders.Compared)
        each.point = msgspec.structs.replace(each.point, numerics=found.numerics)
        if found.numerics.deterministic and not found.numerics.matches:
            self.notes.append(
                f"{each.target} at batch {each.point.batch_size} differs from eager in "
                f"{found.numerics.mismatches[0]}: its speed-up is not shown"
            )

    def _segments(self, each: Running) -> None:
        order = orders.Segment(
            subject=each.number, deadline_seconds=self.deadline(), calls=SEGMENT_CALLS
        )
        found = each.ask(order, orders.Segmented)
        each.point = msgspec.structs.replace(
            each.point, segments=profiling.segments_of(found), breaks=profiling.costs_of(found)
        )

    def _trace(self, each: Running) -> None:
        order = orders.Trace(
            subject=each.number, deadline_seconds=self.deadline(), calls=TRACE_CALLS
        )
        found = each.ask(order, orders.Traced)
        self.operators[each.target] = found.operators
        # The names of a profile are those of its compiled target, or of eager mode alone.
        compiled = any(t != EAGER for t in self.options.targets)
        folder = "profiler_traces" + ("/eager" if each.target == EAGER and compiled else "")
        for name in found.files:
            self.folder.adopt(each.folder / name, f"{folder}/{name}")

    def _generation(self, each: Running) -> None:
        self.extras[each.target]["generation"] = profile_extras.generation(each, self.deadline())

    def _warm(self, each: Running, number: int, deadline: float) -> None:
        order = orders.Recompile(subject=number, deadline_seconds=deadline)
        found = each.ask(order, orders.Called)
        each.point = msgspec.structs.replace(each.point, warm_first_call_seconds=found.seconds)

    def _cures(self, running: list[Running]) -> None:
        for each in running:
            if each.alive and each.target == "inductor" and each.point.breaks:
                self.extras[each.target]["cures"] = tuple(profile_extras.cures(self, each))

    def _evaluate(self, data: LabelledTexts) -> None:
        for target, found in profile_extras.evaluate(self, data):
            self.extras[target]["accuracy"] = found

    # --- small things ------------------------------------------------------------------------

    def end(self, each: Running) -> None:
        with suppress(SubjectError):
            each.ask(orders.End(subject=each.number, deadline_seconds=10.0), orders.Ended)

    def deadline(self) -> float:
        return self.job.request.deadlines.profile_seconds

    def _step(self, what: str, share: float) -> None:
        self.observer.on_step(what, self.done)
        self.done = min(1.0, self.done + share)


def profile_model(
    job: Job,
    profilers: Profilers,
    folder: ProfileFolder,
    observer: Observer,
    profile_id: str,
) -> StoredProfile:
    """Profile one model and store everything: the files first, the record last."""
    progress = Inference(job, profilers, folder, observer)
    try:
        profile = progress.run(profile_id, folder.place)
        observer.on_step("writing files", 1.0)
        folder.write(dict(profile_files.files(profile, progress.samples)))
        folder.write(dict(plots.plots(profile)))
        folder.write(dict(profile_page.render(profile, progress.samples)))
        profile = msgspec.structs.replace(profile, files=folder.names())
        folder.finish(profile)
    finally:
        folder.close()
    return StoredProfile(profile=profile, folder=folder.path)
