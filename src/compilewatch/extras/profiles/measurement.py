"""Profiles of inference: one model at a time, its targets interleaved, round by round.

For each batch size there is a subject for each target: a process with its own copy of the model.
All of them are prepared first, then measured alternately, and only then inspected: what disturbs a
time (memory, numbers, traces) comes after the last round.
"""

import os
import platform
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import compilewatch
from compilewatch import records as core
from compilewatch.contract.targets import CPU
from compilewatch.errors import LauncherError
from compilewatch.extras.profiles import analysis, labelled, messages, records, report, subjects
from compilewatch.extras.profiles.store import ProfileFolder, StoredProfile
from compilewatch.extras.profiles.subjects import environment_of
from compilewatch.records import Phase, Status

INDUCTOR = "inductor"

LEAST_ROUNDS = 3
"""Rounds that are measured even if the time for a batch is over."""

SEGMENT_CALLS = 5
TRACE_CALLS = 3

NEW_TOKENS = 16
TEXTS = 10
"""Texts that are generated: each is one sample of prefill and one of decode."""

CLASSIFIER_BATCH = 16
CHUNK = 8 * CLASSIFIER_BATCH
"""Texts that are classified between two steps of the progress."""

ReportStep = Callable[[str, float], None]
"""Called before each step of a profile, with the share of the profile that is done."""

_CPU = re.compile(r"^(?:model name|Model)\s*:\s*(.+)", re.MULTILINE)

BUSY = 0.5
"""Above this load for each core, times may be those of other programs."""


class Inference:
    """The profile of one model in progress. `request` is of the real tier; its target is ignored.

    `samples` are the measured values.
    """

    def __init__(
        self,
        request: core.Request,
        options: records.InferenceOptions,
        profilers: subjects.Profilers,
        folder: ProfileFolder,
        on_step: ReportStep,
        *,
        trace: bool = False,
        data: labelled.LabelledTexts | None = None,
    ) -> None:
        work = core.Work(name="profile", options=msgspec.to_builtins(options))
        self.request = msgspec.structs.replace(request, work=work)
        self.options = options
        self.folder = folder
        self.trace = trace
        self.data = data
        self.samples: list[records.Samples] = []
        self._prepared: dict[str, messages.Prepared] = {}
        self._points: dict[str, list[records.BatchPoint]] = {t: [] for t in options.targets}
        self._extras: dict[str, dict[str, Any]] = {t: {} for t in options.targets}
        self._notes: list[str] = []
        self._limits = request.deadlines
        self._profilers = profilers
        self.on_step = on_step
        self._done = 0.0
        self._number = 0

    def run(self, profile_id: str) -> records.InferenceProfile:
        """Measure everything and return the profile; nothing is stored but traces."""
        started, machine = core.now(), this_machine()
        load = os.getloadavg()[0]
        if (note := busy_note(machine, load)) is not None:
            self._notes.append(note)
        for size in self.options.batch_sizes:
            self._batch(size)
        if self.data is not None:
            self._evaluate(self.data)
        facts: dict[str, Any] = {}
        for target, prepared in self._prepared.items():
            if not facts:  # those of the first target
                machine = msgspec.structs.replace(machine, device=prepared.device)
                known = msgspec.structs.asdict(prepared).items()
                facts = {k: v for k, v in known if k in records.InferenceProfile.__struct_fields__}
            if prepared.parameters != facts["parameters"]:
                self._notes.append(
                    f"the model has {prepared.parameters:,} parameters on {target} and "
                    f"{facts['parameters']:,} on {next(iter(self._prepared))}: their times are of "
                    "different models"
                )
        model = self.request.model
        return records.InferenceProfile(
            id=profile_id,
            model=model.name,
            family=model.family,
            task=model.task,
            downloads=model.downloads,
            machine=machine,
            options=self.options,
            targets=tuple(map(self._target, self.options.targets)),
            started_at=started,
            finished_at=core.now(),
            load=load,
            place=self.folder.place,
            notes=tuple(self._notes),
            **facts,
        )

    def _target(self, name: str) -> records.TargetProfile:
        environment = self._profilers.environment(name)
        points = tuple(self._points[name])
        return records.TargetProfile(
            target=name,
            software=records.Software(
                environment=environment.name,
                python=environment.python,
                torch=environment.torch,
                transformers=environment.transformers or "",
                digest=environment.digest,
                compilewatch=compilewatch.__version__,
            ),
            points=points,
            best_batch_size=analysis.best_batch(points),
            **self._extras[name],
        )

    def _step(self, what: str, share: float = 0.0) -> None:
        """Report a step that begins, and which share of its batch size it is."""
        self.on_step(what, self._done)
        self._done = min(1.0, self._done + share / len(self.options.batch_sizes))

    # --- one batch size --------------------------------------------------------------------------

    def _batch(self, size: int) -> None:
        first = size == self.options.batch_sizes[0]
        running: list[subjects.ProfiledSubject] = []
        try:
            for target in self.options.targets:
                if (refused := self._refused(target, size)) is not None:
                    self._points[target].append(refused)
                    continue
                self._step(f"batch {size}: {target} is loaded and compiled", 0.1)
                running.append(self._start(target, size))
            self._rounds(size, [subject for subject in running if subject.alive])
            for subject in running:
                if subject.alive:
                    self._step(f"batch {size}: looking into {subject.target}", 0.1)
                    self._inspect(subject, first=first)
            self._compare([subject for subject in running if subject.alive and subject.wall])
        finally:
            for subject in running:
                subject.end()
                self._points[subject.target].append(subject.point)

    def _refused(self, target: str, size: int) -> records.BatchPoint | None:
        """Why a batch size is not tried, from what smaller ones ended with."""
        earlier, known = self._points[target], self._prepared.get(target)
        if earlier and known is not None and known.is_fixed:
            return records.BatchPoint(
                batch_size=size,
                status=Status.UNSUPPORTED,
                phase=Phase.INPUTS,
                detail="the inputs have no batch dimension: give inputs of your own with --inputs",
            )
        for point in earlier:
            if point.status in (Status.PASS, Status.SKIPPED):
                continue
            detail = f"not tried: batch {point.batch_size} ended with {point.status}"
            if point.status is Status.UNSUPPORTED:
                detail = point.detail
            return records.BatchPoint(batch_size=size, status=Status.SKIPPED, detail=detail)
        return None

    def _start(self, target: str, size: int, texts: Sequence[str] = ()) -> subjects.ProfiledSubject:
        """Prepare a subject and compile; a failure is in its point.

        With `texts`, it is prepared to classify them, and compiles when it gets the first.
        """
        self._number += 1
        folder = self.folder.scratch / f"{target}-{self._number}"
        folder.mkdir()
        if texts:
            (folder / messages.TEXTS_FILE).write_bytes(msgspec.json.encode(texts))
        subject = subjects.ProfiledSubject(target, size, folder)
        self._profilers.start(subject, self.request)
        limits = self._limits
        seconds = limits.create_seconds + limits.inputs_seconds + limits.eager_seconds
        try:
            prepared = subject.prepared = subject.ask(
                "prepare",
                messages.Prepared,
                seconds,
                target=subject.kind,
                batch_size=size,
            )
            if self.data is not None:
                self.data.classes(prepared.labels)  # find an unknown label now
            if not texts:
                self._prepared.setdefault(target, prepared)
                warmup = self.options.warmup
                subject.measure("first_call", limits.compile_seconds, warmup=warmup)
        except subjects.SubjectError as error:
            subject.failed(error)
            if subject.point.status is Status.UNSUPPORTED and subject.point.phase is Phase.SETUP:
                raise LauncherError(f"environment {environment_of(target)!r}: {error}") from None
        except BaseException:
            subject.end()
            raise
        return subject

    def _rounds(self, size: int, running: Sequence[subjects.ProfiledSubject]) -> None:
        """Measure alternately; every other round runs the other way around."""
        if not running:
            return
        options, began = self.options, time.monotonic()
        seconds = options.max_seconds / (options.rounds * len(running))
        names = " and ".join(subject.target for subject in running)
        for number in range(options.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began > options.max_seconds:
                break
            which = f"round {number + 1} of {options.rounds}"
            self._step(f"batch {size}: {names} interleaved, {which}", 0.5 / options.rounds)
            for subject in running if number % 2 == 0 else reversed(running):
                if not subject.alive:
                    continue
                limit, runs = self._limits.profile_seconds, options.runs
                try:
                    times = subject.ask(
                        "measure", messages.Round, limit, runs=runs, seconds=seconds
                    )
                except subjects.SubjectError as error:
                    subject.failed(error)
                    continue
                subject.wall.append(times.wall_seconds)
                subject.cpu.append(times.cpu_seconds)

    def _compare(self, measured: Sequence[subjects.ProfiledSubject]) -> None:
        """Judge the times: alone, against eager mode, against the target's first environment."""
        samples = {}
        for subject in measured:
            known = subject.prepared
            samples[subject.target] = records.Samples(
                target=subject.target,
                batch_size=subject.point.batch_size,
                wall_seconds=tuple(subject.wall),
                cpu_seconds=tuple(subject.cpu),
            )
            subject.point = analysis.with_latency(
                subject.point,
                samples[subject.target],
                tokens_per_sample=known.tokens_per_sample if known is not None else None,
                threads=self.options.threads,
            )
        self.samples += samples.values()
        first: dict[str, subjects.ProfiledSubject] = {}
        for subject in measured:
            eager = records.eager_of(subject.target, samples)
            if eager is not None and eager != subject.target:
                own = samples[subject.target]
                subject.point = analysis.with_speedup(subject.point, own, samples[eager])
            other = first.setdefault(subject.kind, subject)
            if other is not subject:
                judged = analysis.in_turns(other.wall, subject.wall)
                subject.point = msgspec.structs.replace(subject.point, against_first=judged)

    # --- what would disturb a time ---------------------------------------------------------------

    def _inspect(self, subject: subjects.ProfiledSubject, *, first: bool) -> None:
        """Look into a subject. What fails is missing, and a note says why."""
        inductor, limit = subject.kind == INDUCTOR, self._limits.profile_seconds
        by_torch = subject.kind in analysis.TRACED  # and not by XLA
        generates = subject.prepared is not None and subject.prepared.generates
        steps: dict[str, tuple[bool, Callable[[subjects.ProfiledSubject], None]]] = {
            "memory": (True, self._memory),
            "comparison with eager mode": (subject.kind != records.EAGER, self._numerics),
            "trace of a call": (
                inductor and self.options.device == CPU,
                lambda subject: subject.measure("segments", limit, calls=SEGMENT_CALLS),
            ),
            "trace": (first and self.trace and by_torch, self._trace),
            "generation": (first and generates and by_torch, self._generation),
            "warm first call": (
                first and inductor,
                lambda subject: subject.measure("recompile", limit),
            ),
        }
        for what, (is_due, step) in steps.items():
            try:
                if is_due:
                    step(subject)
            except subjects.SubjectError as error:
                where = f"{subject.target} at batch {subject.point.batch_size}"
                self._notes.append(f"{what} of {where} failed: {error.failure.detail}")
                if error.failure.status in (Status.TIMEOUT, Status.OOM, Status.CRASHED):
                    return  # its process has ended

    def _memory(self, subject: subjects.ProfiledSubject) -> None:
        limit = self._limits.profile_seconds
        subject.point, note = subject.ask("memory", tuple[records.BatchPoint, str], limit)
        if note and note not in self._notes:
            self._notes.append(note)

    def _numerics(self, subject: subjects.ProfiledSubject) -> None:
        subject.measure("compare", self._limits.compare_seconds)
        numerics = subject.point.numerics
        if numerics is not None and numerics.differs:
            self._notes.append(
                f"{subject.target} at batch {subject.point.batch_size} differs from eager in "
                f"{numerics.mismatches[0]}: its speed-up is not shown"
            )

    def _trace(self, subject: subjects.ProfiledSubject) -> None:
        limit = self._limits.profile_seconds
        kind = tuple[records.OperatorStat, ...]
        operators = subject.ask("trace", kind, limit, calls=TRACE_CALLS)
        self._extras[subject.target]["traced_operators"] = operators
        folder = analysis.trace_folder(subject.target, self.options.targets)
        for name in (messages.TRACE_FILE, messages.STACKS_FILE):
            self.folder.adopt(subject.folder / name, f"{folder}/{name}")

    def _generation(self, subject: subjects.ProfiledSubject) -> None:
        prompt_tokens, *parts = subject.ask(
            "generate",
            tuple[int, messages.Round, messages.Round],
            self._limits.profile_seconds,
            tokens=NEW_TOKENS,
            runs=TEXTS,
        )
        # Each text is a round: prompt and tokens take turns.
        prefill, decode = (
            analysis.timing([(seconds,) for seconds in part.wall_seconds], [part.cpu_seconds])
            for part in parts
        )
        size = subject.point.batch_size
        self._extras[subject.target]["generation"] = records.TextGeneration(
            batch_size=size,
            prefill=prefill,
            decode=decode,
            prefill_tokens_per_second=size * prompt_tokens / prefill.median_seconds,
            decode_tokens_per_second=size / decode.median_seconds,
        )

    # --- what is measured once -------------------------------------------------------------------

    def _evaluate(self, data: labelled.LabelledTexts) -> None:
        """Classify the complete file on eager mode and on Inductor, and score both."""
        predicted: dict[str, list[int]] = {}
        for target in self.options.targets:
            if records.target_kind(target) not in (records.EAGER, INDUCTOR):
                continue
            subject = self._start(target, CLASSIFIER_BATCH, texts=data.texts)
            try:
                if not subject.alive or subject.prepared is None:
                    self._notes.append(f"{target} was not scored: {subject.point.detail}")
                    continue
                truth = data.classes(subject.prepared.labels)
                predicted[target], seconds = self._classified(subject, len(data.texts))
            except subjects.SubjectError as error:
                self._notes.append(f"{target} was not scored: {error.failure.detail}")
                continue
            finally:
                subject.end()
            known = records.eager_of(target, predicted)
            self._extras[target]["accuracy"] = labelled.accuracy_of(
                truth,
                predicted[target],
                eager=predicted[known] if known not in (None, target) else None,
                seconds=seconds,
            )

    def _classified(self, subject: subjects.ProfiledSubject, count: int) -> tuple[list[int], float]:
        classes: list[int] = []
        seconds = 0.0
        for start in range(0, count, CHUNK):
            self._done = start / count
            self._step(f"{subject.target} classifies {start:,} of {count:,} texts")
            limit, stop = self._limits.profile_seconds, min(start + CHUNK, count)
            part, taken = subject.ask(
                "classify", tuple[list[int], float], limit, start=start, stop=stop
            )
            classes += part
            seconds += taken
        return classes, seconds


def profile_model(progress: Inference, profile_id: str) -> StoredProfile:
    """Profile one model and store everything: the files first, the record last."""
    folder, samples = progress.folder, progress.samples
    try:
        profile = progress.run(profile_id)
        progress.on_step("writing files", 1.0)
        folder.write(dict(report.files(profile, samples)))
        folder.finish(profile)
    finally:
        folder.close()
    return StoredProfile(profile=profile, folder=folder.path)


def this_machine() -> records.Machine:
    """Describe this machine, without its GPU."""
    import psutil

    cpu = platform.processor() or platform.machine()
    with suppress(OSError):  # Linux only
        known = _CPU.search(Path("/proc/cpuinfo").read_text())
        cpu = known[1].strip() if known else cpu
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return records.Machine(
        cpu=cpu,
        cores=len(allowed(0)) if allowed else os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.machine()}",
    )


def busy_note(machine: records.Machine, seen: float) -> str | None:
    """A sentence on a machine that is too busy for times that mean something."""
    if seen <= BUSY * machine.cores:
        return None
    return (
        f"the machine was busy: a load of {seen:.1f} on {machine.cores} cores; "
        "times include waiting, so trust ratios, which are from interleaved rounds"
    )
