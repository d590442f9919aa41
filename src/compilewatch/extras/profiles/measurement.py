"""Profiles of inference: one model at a time, its targets interleaved, round by round.

For each batch size there is a subject for each target: a process with its own copy of the model.
All of them are prepared first, then measured alternately, and only then inspected: what disturbs a
time (memory, numbers, traces) comes after the last round.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

import compilewatch
from compilewatch.analysis import scores
from compilewatch.contract.targets import CPU, default_environment
from compilewatch.environments import Environments, module_command, worker_variables
from compilewatch.errors import LauncherError, UsageError
from compilewatch.extras.profiles import analysis, report
from compilewatch.extras.profiles.messages import (
    END,
    PREPARE,
    STACKS_FILE,
    TEXTS_FILE,
    TRACE_FILE,
    FirstCall,
    Generated,
    MemoryUse,
    Order,
    Prepared,
    Round,
    StepReply,
    SubjectJob,
)
from compilewatch.extras.profiles.records import (
    EAGER,
    BatchPoint,
    BreakCost,
    InferenceOptions,
    InferenceProfile,
    Machine,
    OpStat,
    ProfileFailure,
    Samples,
    Segments,
    SettingFix,
    Software,
    TargetProfile,
    TextGeneration,
    Verdict,
    eager_of,
    target_kind,
)
from compilewatch.extras.profiles.store import ProfileFolder, StoredProfile
from compilewatch.launchers.peer import Peer
from compilewatch.records import (
    DEFAULT_ENVIRONMENT,
    ConfigBuild,
    Environment,
    Numerics,
    Phase,
    Request,
    Status,
    digest,
    now,
)
from compilewatch.sources.labelled import LabelledTexts

INDUCTOR = "inductor"

TARGETS = (EAGER, INDUCTOR, "xla")
"""What inference can be profiled on."""

MODEL_FACTS = ("parameters", "trainable_parameters", "model_bytes", "tokens_per_sample")
"""What a profile has of what its first target reported about the model, by the same names."""

LEAST_ROUNDS = 3
"""Rounds that are measured even if the time for a batch is over."""

END_SECONDS = 10.0

SEGMENT_CALLS = 5
TRACE_CALLS = 3

NEW_TOKENS = 16
TEXTS = 10
"""Texts that are generated: each is one sample of prefill and one of decode."""

CLASSIFIER_BATCH = 16
CHUNK = 8 * CLASSIFIER_BATCH
"""Texts that are classified between two steps of the progress."""

_SETTING = re.compile(r"\bcapture_(?:scalar_outputs|dynamic_output_shape_ops)\b")
"""Settings of `torch._dynamo.config` that torch itself suggests in the reason of a break."""

ReportStep = Callable[[str, float], None]
"""Called before each step of a profile, with the share of the profile that is done."""

T = TypeVar("T")

START_SECONDS = 180.0
GRACE_SECONDS = 10.0
"""How much longer than the deadline of an order its reply may take, before the server counts as
hung: it has to end a subject that takes too long."""

SEES_DEVICES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With it, asking torch for CUDA devices leaves a process able to fork."""

BUSY = 0.5
"""Above this load for each core, times may be those of other programs."""

_CPU_NAMES = ("model name", "Model")


class SubjectError(Exception):
    """A subject did not carry out an order; `failure` says why. This is data about the model."""

    def __init__(self, failure: ProfileFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class ProfileServerClient:
    """A running profiling server of one environment. A context manager.

    `environment` is the server's own description of its environment.
    """

    def __init__(
        self, name: str, targets: Iterable[str], environments: Environments, device: str = CPU
    ) -> None:
        """Start it. Raises InterpreterError or LauncherError if that fails."""
        interpreter = environments.interpreter(name)
        module = "compilewatch.extras.profiles.worker.server"
        command = module_command(interpreter.path, module, "--environment", name)
        command += ["--device", device, "--targets", ",".join(targets)]
        self.name = name
        variables = worker_variables(interpreter, devices=device != CPU)
        if device != CPU:
            variables |= SEES_DEVICES
        try:
            self._peer = Peer(command, variables)
        except OSError as error:
            raise LauncherError(
                f"environment {name!r}: {interpreter.path} cannot be started: {error.strerror}"
            ) from None
        try:
            self.environment = self._receive(START_SECONDS, Environment)
        except SubjectError as error:
            self._peer.close(GRACE_SECONDS)
            raise LauncherError(f"environment {name!r}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close(GRACE_SECONDS)

    def ask(self, order: Order, kind: type[T]) -> T:
        """Send an order and return what its step returned.

        Raises SubjectError if the subject could not carry it out, and LauncherError if the server
        itself has ended or hangs.
        """
        self._peer.send(order)
        return self._receive(order.deadline_seconds + GRACE_SECONDS, kind)

    def _receive(self, seconds: float, kind: type[T]) -> T:
        end = time.monotonic() + seconds
        while True:
            lines = self._peer.receive(max(0.0, end - time.monotonic()))
            if lines is None:
                raise self._lost("ended")
            if lines:
                break
            if time.monotonic() > end:
                raise self._lost(f"did not respond within {seconds:g} s")
        reply = msgspec.json.decode(lines[0], type=StepReply)
        if reply.failure is not None:
            raise SubjectError(reply.failure)
        return msgspec.json.decode(reply.value, type=kind)

    def _lost(self, how: str) -> LauncherError:
        last = self._peer.last_line()
        self._peer.kill()
        return LauncherError(
            f"the profiling server of environment {self.name!r} {how}: {last} "
            f"(try: compilewatch env check {self.name})"
        )


def environment_of(target: str) -> str:
    """The environment in which a target is profiled: the one that it names, or its default."""
    kind, _, named = target.partition("@")
    return named or (DEFAULT_ENVIRONMENT if kind == EAGER else default_environment(kind))


class Profilers(ExitStack):
    """The profiling servers of some targets, one for each environment. A context manager."""

    def __init__(
        self, targets: Sequence[str], environments: Environments, device: str = CPU
    ) -> None:
        super().__init__()
        self._of: dict[str, ProfileServerClient] = {}
        try:
            for name in dict.fromkeys(map(environment_of, targets)):
                kinds = [target_kind(t) for t in targets if environment_of(t) == name]
                compiled = [kind for kind in kinds if kind != EAGER]
                server = ProfileServerClient(name, compiled, environments, device)
                self._of[name] = self.enter_context(server)
        except BaseException:
            self.close()
            raise

    def of(self, target: str) -> ProfileServerClient:
        return self._of[environment_of(target)]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One model to profile. `request` is of the real tier; its target does not matter."""

    request: Request
    options: InferenceOptions
    trace: bool = False
    data: LabelledTexts | None = None

    def key(self, machine: Machine) -> str:
        """A digest of model, options and machine, but not of the software.

        The software is what two profiles with one key are compared for. The content of a person's
        own module is left out for the same reason.
        """
        model, build = self.request.model, self.request.model.build
        config = build.config_sha256 if isinstance(build, ConfigBuild) else ""
        facts = [model.name, model.revision, config, self.options, machine]
        return digest(msgspec.to_builtins(facts))


def canonical(target: str) -> str:
    """The name of a target without an environment that is its default one."""
    kind = target_kind(target)
    return kind if environment_of(target) == environment_of(kind) else target


def check_targets(targets: Sequence[str], device: str = CPU) -> None:
    """Raises UsageError for a target that cannot be profiled, or that is named twice."""
    for name in targets:
        kind, at, environment = name.partition("@")
        if kind not in TARGETS:
            hint = (
                ": profile it on an instance with `compilewatch profile neuron`"
                if kind == "neuron"
                else f"; known: {', '.join(TARGETS)}, each with @ENVIRONMENT"
            )
            raise UsageError(f"inference on {name!r} cannot be profiled here{hint}")
        if at and not environment:
            raise UsageError(f"{name!r} names no environment, such as {kind}@torch-2.13")
        if kind == "xla" and device != CPU:
            raise UsageError(f"xla is profiled on the CPU only: leave out --device {device}")
    if len({canonical(name) for name in targets}) != len(targets) or not targets:
        raise UsageError("--targets names each target once, such as eager,inductor")


@dataclass(kw_only=True)
class RunningSubject:
    """A subject that runs, with what is known of it so far."""

    number: int
    target: str
    profiler: ProfileServerClient
    folder: Path
    point: BatchPoint
    prepared: Prepared | None = None
    wall: list[tuple[float, ...]] = field(default_factory=list)
    cpu: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        return self.point.status is Status.PASS

    def ask(
        self,
        step: str,
        kind: type[T],
        deadline_seconds: float,
        job: SubjectJob | None = None,
        **options: object,
    ) -> T:
        """Let the subject do a step, and return what that returns. Raises SubjectError."""
        order = Order(
            subject=self.number,
            step=step,
            deadline_seconds=deadline_seconds,
            options=options,
            job=job,
        )
        return self.profiler.ask(order, kind)

    def update(self, **values: object) -> None:
        """Set figures of its point."""
        self.point = msgspec.structs.replace(self.point, **values)

    def failed(self, error: SubjectError) -> None:
        self.update(**msgspec.structs.asdict(error.failure))

    def samples(self) -> Samples:
        return Samples(
            target=self.target,
            batch_size=self.point.batch_size,
            wall_seconds=tuple(self.wall),
            cpu_seconds=tuple(self.cpu),
        )


class Inference:
    """The profile of one job in progress.

    `prepared` is what each target reported about its model, `done` the share of the profile that is
    done.
    """

    def __init__(
        self, job: Job, profilers: Profilers, folder: ProfileFolder, on_step: ReportStep
    ) -> None:
        self.job = job
        self.options = job.options
        self.folder = folder
        self.prepared: dict[str, Prepared] = {}
        self.points: dict[str, list[BatchPoint]] = {t: [] for t in self.options.targets}
        self.samples: list[Samples] = []
        self.extras: dict[str, dict[str, Any]] = {t: {} for t in self.options.targets}
        self.notes: list[str] = []
        self.done = 0.0
        self.deadline = job.request.deadlines.profile_seconds
        self._profilers = profilers
        self._on_step = on_step
        self._number = 0

    def run(self, profile_id: str, place: str = ".") -> InferenceProfile:
        """Measure everything and return the profile; nothing is stored but traces."""
        started, machine = now(), this_machine()
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        if (note := busy_note(machine, busy)) is not None:
            self.notes.append(note)
        sizes = self.options.batch_sizes
        for index, size in enumerate(sizes):
            self._batch(size, first=index == 0, share=1 / len(sizes))
        if self.job.data is not None:
            self._evaluate(self.job.data)
        known = self._model_facts()
        if known is not None:
            machine = msgspec.structs.replace(machine, device=known.device)
        model = self.job.request.model
        facts: dict[str, Any] = {name: getattr(known, name, None) for name in MODEL_FACTS}
        return InferenceProfile(
            id=profile_id,
            key=self.job.key(machine),
            model=model.name,
            family=model.family,
            task=model.task,
            downloads=model.downloads,
            machine=machine,
            options=self.options,
            targets=tuple(self._target(name) for name in self.options.targets),
            started_at=started,
            finished_at=now(),
            inputs=known.inputs if known else (),
            inputs_strategy=known.strategy if known else "",
            load=busy,
            place=place,
            notes=tuple(self.notes),
            **facts,
        )

    def _model_facts(self) -> Prepared | None:
        """What the first target reported; a note names targets with another model."""
        first = next(iter(self.prepared), None)
        if first is None:
            return None
        known = self.prepared[first]
        for target, prepared in self.prepared.items():
            if prepared.parameters != known.parameters:
                self.notes.append(
                    f"the model has {prepared.parameters:,} parameters on {target} and "
                    f"{known.parameters:,} on {first}: their times are of different models"
                )
        return known

    def _target(self, name: str) -> TargetProfile:
        environment = self._profilers.of(name).environment
        points = tuple(self.points[name])
        return TargetProfile(
            target=name,
            software=Software(
                environment=environment.name,
                python=environment.python,
                torch=environment.torch,
                transformers=environment.transformers or "",
                digest=environment.digest,
                compilewatch=compilewatch.__version__,
            ),
            points=points,
            best_batch_size=analysis.best_batch(points),
            **self.extras[name],
        )

    def step(self, what: str, share: float = 0.0) -> None:
        """Report a step that begins, and which share of the profile it is."""
        self._on_step(what, self.done)
        self.done = min(1.0, self.done + share)

    # --- one batch size --------------------------------------------------------------------------

    def _batch(self, size: int, *, first: bool, share: float) -> None:
        step = share / 10
        running: list[RunningSubject] = []
        try:
            for target in self.options.targets:
                refused = self._refused(target, size)
                if refused is not None:
                    self.points[target].append(refused)
                    continue
                self.step(f"batch {size}: {target} is loaded and compiled", step)
                running.append(self._start(target, size))
            self._rounds(size, [subject for subject in running if subject.alive], share / 2)
            self._finish_points(running)
            for subject in running:
                if subject.alive:
                    self.step(f"batch {size}: looking into {subject.target}", step)
                    self._inspect(subject, first=first)
            self._compare(running)
            if first:
                self._measure_setting_fixes(running)
        finally:
            for subject in running:
                self._end(subject)
                self.points[subject.target].append(subject.point)

    def _refused(self, target: str, size: int) -> BatchPoint | None:
        """Why a batch size is not tried, from what smaller ones ended with."""
        earlier, known = self.points[target], self.prepared.get(target)
        if earlier and known is not None and known.is_fixed:
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

    def _start(
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
        folder = self.folder.scratch / f"{target}-{self._number}"
        folder.mkdir()
        if texts:
            (folder / TEXTS_FILE).write_bytes(msgspec.json.encode(texts))
        subject = RunningSubject(
            number=self._number,
            target=target,
            profiler=self._profilers.of(target),
            folder=folder,
            point=BatchPoint(batch_size=size, status=Status.PASS),
        )
        options, limits = self.options, self.job.request.deadlines
        job = SubjectJob(
            folder=str(folder),
            request=self.job.request,
            target=target_kind(target),
            batch_size=size,
            device=options.device,
            dtype=options.dtype,
            threads=options.threads,
            max_length=options.max_length,
            full_size=options.size == "full",
            settings=settings or {},
        )
        seconds = limits.create_seconds + limits.inputs_seconds + limits.eager_seconds
        try:
            prepared = subject.ask(PREPARE, Prepared, seconds, job)
            subject.prepared = prepared
            if self.job.data is not None:
                self.job.data.classes(prepared.labels)  # find an unknown label now
            if not texts:
                self.prepared.setdefault(target, prepared)
                self._compile(subject, prepared)
        except SubjectError as error:
            subject.failed(error)
        return subject

    def _compile(self, subject: RunningSubject, prepared: Prepared) -> None:
        seconds = self.job.request.deadlines.compile_seconds
        first = subject.ask("first_call", FirstCall, seconds, warmup=self.options.warmup)
        breaks = first.breaks
        subject.update(
            batch_size=prepared.batch_size,
            load_seconds=prepared.load_seconds,
            first_call_seconds=first.seconds,
            graphs=first.graphs,
            graph_breaks=sum(b.occurrences for b in breaks) if breaks is not None else None,
        )

    def _rounds(self, size: int, running: Sequence[RunningSubject], share: float) -> None:
        """Measure alternately; every other round runs the other way around."""
        if not running:
            return
        options, began = self.options, time.monotonic()
        seconds = options.max_seconds / (options.rounds * len(running))
        names = " and ".join(subject.target for subject in running)
        for number in range(options.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() - began > options.max_seconds:
                break
            self.step(
                f"batch {size}: {names} interleaved, round {number + 1} of {options.rounds}",
                share / options.rounds,
            )
            for subject in running if number % 2 == 0 else reversed(running):
                if not subject.alive:
                    continue
                try:
                    times = subject.ask(
                        "measure", Round, self.deadline, runs=options.runs, seconds=seconds
                    )
                except SubjectError as error:
                    subject.failed(error)
                    continue
                subject.wall.append(times.wall_seconds)
                subject.cpu.append(times.cpu_seconds)

    def _finish_points(self, running: Sequence[RunningSubject]) -> None:
        for subject in running:
            if subject.alive and subject.wall and subject.prepared:
                samples = subject.samples()
                subject.point = analysis.with_latency(
                    subject.point,
                    samples,
                    tokens_per_sample=subject.prepared.tokens_per_sample,
                    threads=self.options.threads,
                )
                self.samples.append(samples)

    def _compare(self, running: Sequence[RunningSubject]) -> None:
        """Compare with eager mode, and with the same target of the first environment."""
        measured = {one.target: one for one in running if one.alive and one.wall}
        first: dict[str, RunningSubject] = {}
        for name, subject in measured.items():
            eager = measured.get(eager_of(name, measured) or "")
            if eager is not None and eager is not subject:
                subject.point = analysis.with_speedup(
                    subject.point, subject.samples(), eager.samples()
                )
            other = first.setdefault(target_kind(name), subject)
            if other is not subject:
                judged = analysis.in_turns(other.wall, subject.wall)
                subject.update(against_first=judged)

    def _end(self, subject: RunningSubject) -> None:
        """End the process of a subject, which may have ended before."""
        with suppress(SubjectError):
            subject.ask(END, object, END_SECONDS)

    # --- what would disturb a time ---------------------------------------------------------------

    def _inspect(self, subject: RunningSubject, *, first: bool) -> None:
        """Look into a subject. What fails is missing, and a note says why."""
        for what, step in self._inspections(subject, first=first):
            try:
                step(subject)
            except SubjectError as error:
                where = f"{subject.target} at batch {subject.point.batch_size}"
                self.notes.append(f"{what} of {where} failed: {error.failure.detail}")
                if error.failure.status in (Status.TIMEOUT, Status.OOM, Status.CRASHED):
                    return  # its process has ended

    def _inspections(
        self, subject: RunningSubject, *, first: bool
    ) -> Iterator[tuple[str, Callable[[RunningSubject], None]]]:
        kind = target_kind(subject.target)
        yield "memory", self._memory
        if kind != EAGER:
            yield "comparison with eager mode", self._numerics
        if kind == INDUCTOR and self.options.device == CPU:
            yield "trace of a call", self._segments
        if first and self.job.trace and kind in analysis.TRACED:
            yield "trace", self._trace
        if first and subject.prepared is not None and subject.prepared.generates:
            yield "generation", self._generation
        if first and kind == INDUCTOR:
            yield "warm first call", self._warm_first_call

    def _memory(self, subject: RunningSubject) -> None:
        use = subject.ask("memory", MemoryUse, self.deadline)
        subject.update(memory=use.memory, device_utilization=use.device_utilization)
        if use.device_note and use.device_note not in self.notes:
            self.notes.append(use.device_note)

    def _numerics(self, subject: RunningSubject) -> None:
        seconds = self.job.request.deadlines.compare_seconds
        numerics = subject.ask("compare", Numerics, seconds)
        subject.update(numerics=numerics)
        if numerics.deterministic and not numerics.matches:
            self.notes.append(
                f"{subject.target} at batch {subject.point.batch_size} differs from eager in "
                f"{numerics.mismatches[0]}: its speed-up is not shown"
            )

    def _segments(self, subject: RunningSubject) -> None:
        segments, costs = self._costs(subject, SEGMENT_CALLS)
        subject.update(segments=segments, breaks=costs)

    def _costs(self, subject: RunningSubject, calls: int) -> tuple[Segments, tuple[BreakCost, ...]]:
        return subject.ask(
            "segments", tuple[Segments, tuple[BreakCost, ...]], self.deadline, calls=calls
        )

    def _trace(self, subject: RunningSubject) -> None:
        operators = subject.ask("trace", tuple[OpStat, ...], self.deadline, calls=TRACE_CALLS)
        self.extras[subject.target]["operators"] = operators
        folder = analysis.trace_folder(subject.target, self.options.targets)
        for name in (TRACE_FILE, STACKS_FILE):
            self.folder.adopt(subject.folder / name, f"{folder}/{name}")

    def _generation(self, subject: RunningSubject) -> None:
        times = subject.ask("generate", Generated, self.deadline, tokens=NEW_TOKENS, runs=TEXTS)
        # Each text is a round: prompt and tokens take turns.
        prefill, decode = (
            analysis.timing([(seconds,) for seconds in part.wall_seconds], [part.cpu_seconds])
            for part in (times.prefill, times.decode)
        )
        size = subject.point.batch_size
        self.extras[subject.target]["generation"] = TextGeneration(
            batch_size=size,
            prompt_tokens=times.prompt_tokens,
            new_tokens=NEW_TOKENS,
            prefill=prefill,
            decode=decode,
            prefill_tokens_per_second=size * times.prompt_tokens / prefill.median_seconds,
            decode_tokens_per_second=size / decode.median_seconds,
        )

    def _warm_first_call(self, subject: RunningSubject) -> None:
        first = subject.ask("recompile", FirstCall, self.deadline)
        subject.update(warm_first_call_seconds=first.seconds)

    # --- what is measured once -------------------------------------------------------------------

    def _measure_setting_fixes(self, running: Sequence[RunningSubject]) -> None:
        """Compile once more with each setting that torch suggests; measure both alternately."""
        for base in running:
            breaks = base.point.breaks
            if not (base.alive and target_kind(base.target) == INDUCTOR and breaks):
                continue
            fixes = []
            for setting in suggested_settings(breaks):
                self.step(f"what {setting} saves")
                changed = self._start(base.target, base.point.batch_size, {setting: True})
                try:
                    fixes.append(self._setting_fix(base, changed, setting))
                finally:
                    self._end(changed)
            self.extras[base.target]["setting_fixes"] = tuple(fixes)

    def _setting_fix(
        self, base: RunningSubject, changed: RunningSubject, setting: str
    ) -> SettingFix:
        before = base.point
        fix = SettingFix(
            setting=setting,
            breaks_before=before.graph_breaks or 0,
            breaks_after=changed.point.graph_breaks or 0,
            graphs_before=before.graphs or 0,
            graphs_after=changed.point.graphs or 0,
        )
        if not changed.alive:
            return msgspec.structs.replace(fix, detail=changed.point.detail)
        # The base was measured before; a fair comparison needs new, interleaved rounds of both.
        kept = len(base.wall)
        self._rounds(before.batch_size, [base, changed], 0.0)
        try:
            matches = changed.ask("compare", Numerics, self.deadline).matches
            left = {cost.fingerprint for cost in self._costs(changed, 1)[1]}
        except SubjectError as error:
            return msgspec.structs.replace(fix, detail=error.failure.detail)
        rounds = base.wall[kept:]
        del base.wall[kept:], base.cpu[kept:]
        judged = analysis.in_turns(rounds, changed.wall)
        if judged.ratio is None or before.latency is None:
            return msgspec.structs.replace(fix, detail=judged.reason)
        seconds = analysis.timing(rounds, []).median_seconds
        return msgspec.structs.replace(
            fix,
            removed=tuple(c.fingerprint for c in before.breaks if c.fingerprint not in left),
            saving_seconds=seconds * (1 - judged.ratio),
            saving_low_seconds=seconds * (1 - (judged.ratio_high or judged.ratio)),
            saving_high_seconds=seconds * (1 - (judged.ratio_low or judged.ratio)),
            certain=judged.verdict is Verdict.FASTER,
            matches=matches,
            detail=judged.reason,
        )

    def _evaluate(self, data: LabelledTexts) -> None:
        """Classify the complete file on eager mode and on Inductor, and score both."""
        predicted: dict[str, list[int]] = {}
        for target in self.options.targets:
            if target_kind(target) not in (EAGER, INDUCTOR):
                continue
            subject = self._start(target, CLASSIFIER_BATCH, texts=data.texts)
            try:
                if not subject.alive or subject.prepared is None:
                    self.notes.append(f"{target} was not scored: {subject.point.detail}")
                    continue
                truth = data.classes(subject.prepared.labels)
                classes, seconds = self._classified(subject, len(data.texts))
            except SubjectError as error:
                self.notes.append(f"{target} was not scored: {error.failure.detail}")
                continue
            finally:
                self._end(subject)
            predicted[target] = classes
            known = eager_of(target, predicted)
            eager = predicted[known] if known not in (None, target) else None
            accuracy = scores.accuracy_of(truth, classes, eager=eager, seconds=seconds)
            self.extras[target]["accuracy"] = accuracy

    def _classified(self, subject: RunningSubject, count: int) -> tuple[list[int], float]:
        classes: list[int] = []
        seconds = 0.0
        for start in range(0, count, CHUNK):
            self.done = start / count
            self.step(f"{subject.target} classifies {start:,} of {count:,} texts")
            part, taken = subject.ask(
                "classify",
                tuple[list[int], float],
                self.deadline,
                start=start,
                stop=min(start + CHUNK, count),
            )
            classes += part
            seconds += taken
        return classes, seconds


def suggested_settings(breaks: Sequence[BreakCost]) -> list[str]:
    """The settings that torch suggests against these breaks."""
    return list(dict.fromkeys(s for cost in breaks for s in _SETTING.findall(cost.reason)))


def profile_model(
    job: Job,
    profilers: Profilers,
    folder: ProfileFolder,
    on_step: ReportStep,
    profile_id: str,
) -> StoredProfile:
    """Profile one model and store everything: the files first, the record last."""
    progress = Inference(job, profilers, folder, on_step)
    try:
        profile = progress.run(profile_id, folder.place)
        on_step("writing files", 1.0)
        folder.write(dict(report.files(profile, progress.samples)))
        folder.write(dict(report.plots(profile)))
        folder.write(dict(report.render(profile, progress.samples)))
        profile = msgspec.structs.replace(profile, files=folder.names())
        folder.finish(profile)
    finally:
        folder.close()
    return StoredProfile(profile=profile, folder=folder.path)


def this_machine(device: str = "cpu") -> Machine:
    """Describe this machine."""
    import psutil

    cpu = platform.processor() or platform.machine()
    with suppress(OSError):  # Linux only
        lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        names = (value.strip() for name, _, value in lines if name.strip() in _CPU_NAMES)
        cpu = next(names, cpu)
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return Machine(
        cpu=cpu,
        cores=len(allowed(0)) if allowed else os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.machine()}",
        device=device,
    )


def busy_note(machine: Machine, seen: float | None) -> str | None:
    """A sentence on a machine that is too busy for times that mean something."""
    if seen is None or seen <= BUSY * machine.cores:
        return None
    return (
        f"the machine was busy: a load of {seen:.1f} on {machine.cores} cores; "
        "times include waiting, so trust ratios, which are from interleaved rounds"
    )
