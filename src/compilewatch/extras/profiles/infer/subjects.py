"""The subjects of a profile: started, measured in turns round by round, and ended.

For each batch size there is a subject for each target: a process with its own copy of the model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from compilewatch.extras.profiles.infer import messages as orders
from compilewatch.extras.profiles.infer.parts import Job, ProfileObserver, Profilers, RunningSubject
from compilewatch.extras.profiles.infer.records import BatchPoint, target_kind
from compilewatch.extras.profiles.infer.server_client import SubjectError
from compilewatch.extras.profiles.infer.store import ProfileFolder
from compilewatch.records import Status

LEAST_ROUNDS = 3
"""Rounds that are measured even if the time for a batch is over."""

END_SECONDS = 10.0


class Subjects:
    """Starts and measures the subjects of one job.

    `prepared` is what each target said of its model, `done` the share of the profile that is done.
    """

    def __init__(
        self, job: Job, profilers: Profilers, folder: ProfileFolder, observer: ProfileObserver
    ) -> None:
        self.job = job
        self.prepared: dict[str, orders.Prepared] = {}
        self.done = 0.0
        self._profilers = profilers
        self._folder = folder
        self._observer = observer
        self._number = 0

    @property
    def deadline(self) -> float:
        """Seconds for each step after the first call."""
        return self.job.request.deadlines.profile_seconds

    def step(self, what: str, share: float = 0.0) -> None:
        """Report a step that begins, and which share of the profile it is."""
        self._observer.on_step(what, self.done)
        self.done = min(1.0, self.done + share)

    def start(
        self,
        target: str,
        size: int,
        settings: dict[str, bool] | None = None,
        texts: Sequence[str] = (),
    ) -> RunningSubject:
        """Prepare a subject and compile; a failure is in its point.

        With `texts`, it is prepared to classify them, and compiles when it gets the first.
        """
        self._number += 1
        folder = self._folder.scratch / f"{target}-{self._number}"
        folder.mkdir()
        if texts:
            (folder / orders.TEXTS_FILE).write_bytes(msgspec.json.encode(texts))
        found = RunningSubject(
            number=self._number,
            target=target,
            profiler=self._profilers.of(target),
            folder=folder,
            point=BatchPoint(batch_size=size, status=Status.PASS),
        )
        try:
            found.prepared = found.ask(self._order(found, size, settings or {}), orders.Prepared)
            if self.job.data is not None:
                self.job.data.classes(found.prepared.labels)  # find an unknown label now
            if not texts:
                self.prepared.setdefault(target, found.prepared)
                self._compile(found, found.prepared)
        except SubjectError as error:
            found.failed(error)
        return found

    def _order(self, each: RunningSubject, size: int, settings: dict[str, bool]) -> orders.Prepare:
        options, limits = self.job.options, self.job.request.deadlines
        return orders.Prepare(
            subject=each.number,
            deadline_seconds=limits.create_seconds + limits.inputs_seconds + limits.eager_seconds,
            folder=str(each.folder),
            request=self.job.request,
            target=target_kind(each.target),
            batch_size=size,
            device=options.device,
            dtype=options.dtype,
            threads=options.threads,
            max_length=options.max_length,
            full_size=options.size == "full",
            settings=settings,
        )

    def _compile(self, each: RunningSubject, prepared: orders.Prepared) -> None:
        order = orders.FirstCall(
            subject=each.number,
            deadline_seconds=self.job.request.deadlines.compile_seconds,
            warmup=self.job.options.warmup,
        )
        called = each.ask(order, orders.Called)
        breaks = called.breaks
        each.point = msgspec.structs.replace(
            each.point,
            batch_size=prepared.batch_size,
            load_seconds=prepared.load_seconds,
            first_call_seconds=called.seconds,
            graphs=called.graphs,
            graph_breaks=sum(b.occurrences for b in breaks) if breaks is not None else None,
        )

    def rounds(self, size: int, running: Sequence[RunningSubject], share: float) -> None:
        """Measure in turns; every other round runs the other way around."""
        if not running:
            return
        options, began = self.job.options, time.monotonic()
        each_seconds = options.max_seconds / (options.rounds * len(running))
        for number in range(options.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began > options.max_seconds:
                break
            names = " and ".join(each.target for each in running)
            self.step(
                f"batch {size}: {names} in turns, round {number + 1} of {options.rounds}",
                share / options.rounds,
            )
            for each in running if number % 2 == 0 else reversed(running):
                self._measure(each, each_seconds)

    def _measure(self, each: RunningSubject, seconds: float) -> None:
        if not each.alive:
            return
        order = orders.Measure(
            subject=each.number,
            deadline_seconds=self.deadline,
            runs=self.job.options.runs,
            seconds=seconds,
        )
        try:
            found = each.ask(order, orders.Measured)
        except SubjectError as error:
            each.failed(error)
            return
        each.wall.append(found.wall_seconds)
        each.cpu.append(found.cpu_seconds)

    def end(self, each: RunningSubject) -> None:
        """End the process of a subject, which may have ended before."""
        with suppress(SubjectError):
            each.ask(orders.End(subject=each.number, deadline_seconds=END_SECONDS), orders.Ended)
