"""Profiles of inference: one model at a time, its targets in turns, round by round.

All subjects of a batch size are prepared first, then measured in turns, and only then looked into:
what disturbs a time (memory, numbers, traces) comes after the last round.
"""

from __future__ import annotations

import msgspec

import compilewatch
from compilewatch.extras.profiles.infer import analysis, measured_once, page, plots, report_files
from compilewatch.extras.profiles.infer.inspection import INDUCTOR, inspect
from compilewatch.extras.profiles.infer.machine import busy_note, load, this_machine
from compilewatch.extras.profiles.infer.messages import Prepared
from compilewatch.extras.profiles.infer.parts import (
    Job,
    ProfileObserver,
    Profilers,
    RunningSubject,
    profile_key,
)
from compilewatch.extras.profiles.infer.records import (
    BatchPoint,
    InferenceProfile,
    OpStat,
    Samples,
    Software,
    TargetProfile,
    eager_of,
    target_kind,
)
from compilewatch.extras.profiles.infer.store import ProfileFolder, StoredProfile
from compilewatch.extras.profiles.infer.subjects import Subjects
from compilewatch.records import Phase, Status
from compilewatch.records.clock import now
from compilewatch.sources.labelled import LabelledTexts


class Inference:
    """The profile of one job in progress."""

    def __init__(
        self, job: Job, profilers: Profilers, folder: ProfileFolder, observer: ProfileObserver
    ) -> None:
        self.job = job
        self.options = job.options
        self.folder = folder
        self.subjects = Subjects(job, profilers, folder, observer)
        self.points: dict[str, list[BatchPoint]] = {t: [] for t in self.options.targets}
        self.samples: list[Samples] = []
        self.operators: dict[str, tuple[OpStat, ...]] = {}
        self.extras: dict[str, dict[str, object]] = {t: {} for t in self.options.targets}
        self.notes: list[str] = []
        self._profilers = profilers

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
        known = self._prepared()
        if known is not None:
            machine = msgspec.structs.replace(machine, device=known.device)
        model = self.job.request.model
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

    def _prepared(self) -> Prepared | None:
        """What the first target said of the model; a note names targets with another model."""
        found = self.subjects.prepared
        first = next(iter(found), None)
        if first is None:
            return None
        for target, each in found.items():
            if each.parameters != found[first].parameters:
                self.notes.append(
                    f"the model has {each.parameters:,} parameters on {target} and "
                    f"{found[first].parameters:,} on {first}: their times are of different models"
                )
        return found[first]

    def _target(self, name: str) -> TargetProfile:
        environment = self._profilers.of(name).environment
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
            best_batch_size=analysis.best_batch(self.points[name]),
            operators=self.operators.get(name, ()),
        )
        return msgspec.structs.replace(found, **self.extras[name])

    # --- one batch size ----------------------------------------------------------------------

    def _batch(self, size: int, *, first: bool, share: float) -> None:
        subjects, step = self.subjects, share / 10
        running: list[RunningSubject] = []
        try:
            for target in self.options.targets:
                refused = self._refused(target, size)
                if refused is not None:
                    self.points[target].append(refused)
                    continue
                subjects.step(f"batch {size}: {target} is loaded and compiled", step)
                running.append(subjects.start(target, size))
            subjects.rounds(size, [each for each in running if each.alive], share / 2)
            self._finish_points(running)
            for each in running:
                if each.alive:
                    subjects.step(f"batch {size}: looking into {each.target}", step)
                    inspect(self, each, first=first)
            self._compare(running)
            if first:
                self._setting_fixes(running)
        finally:
            for each in running:
                subjects.end(each)
                self.points[each.target].append(each.point)

    def _refused(self, target: str, size: int) -> BatchPoint | None:
        """Why a batch size is not tried, from what smaller ones ended with."""
        earlier, known = self.points[target], self.subjects.prepared.get(target)
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

    def _finish_points(self, running: list[RunningSubject]) -> None:
        for each in running:
            if each.alive and each.wall:
                each.point = analysis.with_latency(
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

    def _compare(self, running: list[RunningSubject]) -> None:
        """Compare with eager mode, and with the same target of the first environment."""
        measured = {each.target: each for each in running if each.alive and each.wall}
        first: dict[str, RunningSubject] = {}
        for name, each in measured.items():
            eager = measured.get(eager_of(name, measured) or "")
            if eager is not None and eager is not each:
                each.point = analysis.with_speedup(
                    each.point, each.measurement(), eager.measurement()
                )
            known = first.setdefault(target_kind(name), each)
            if known is not each:
                each.point = analysis.with_first(
                    each.point, each.measurement(), known.measurement()
                )

    def _setting_fixes(self, running: list[RunningSubject]) -> None:
        for each in running:
            if each.alive and target_kind(each.target) == INDUCTOR and each.point.breaks:
                found = tuple(measured_once.setting_fixes(self, each))
                self.extras[each.target]["setting_fixes"] = found

    def _evaluate(self, data: LabelledTexts) -> None:
        for target, found in measured_once.evaluate(self, data):
            self.extras[target]["accuracy"] = found


def profile_model(
    job: Job,
    profilers: Profilers,
    folder: ProfileFolder,
    observer: ProfileObserver,
    profile_id: str,
) -> StoredProfile:
    """Profile one model and store everything: the files first, the record last."""
    progress = Inference(job, profilers, folder, observer)
    try:
        profile = progress.run(profile_id, folder.place)
        observer.on_step("writing files", 1.0)
        folder.write(dict(report_files.files(profile, progress.samples)))
        folder.write(dict(plots.plots(profile)))
        folder.write(dict(page.render(profile, progress.samples)))
        profile = msgspec.structs.replace(profile, files=folder.names())
        folder.finish(profile)
    finally:
        folder.close()
    return StoredProfile(profile=profile, folder=folder.path)
