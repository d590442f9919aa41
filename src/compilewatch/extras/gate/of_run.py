"""The gate of a run: what a sweep of a team's list means for the baseline of its repository.

A sweep of the source `manifest` in a repository with a table `[tool.compilewatch]` is judged by the
same rules as the pytest plug-in and `compilewatch gate`. What it means is stored in the run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec

from compilewatch.api.check import CheckResult
from compilewatch.errors import CompilewatchError, StoreError
from compilewatch.events import Author, Event
from compilewatch.extras.gate.baseline import load, resolved
from compilewatch.extras.gate.events import NewBreak
from compilewatch.extras.gate.findings import BreakPlace, CheckReport, Finding, known_breaks
from compilewatch.extras.gate.judgement import judge
from compilewatch.extras.gate.named import files_of
from compilewatch.extras.gate.places import located, source_folders
from compilewatch.extras.gate.settings import (
    baseline_path,
    project_root,
    project_settings,
    rules_of,
)
from compilewatch.records import FactoryBuild, Record, Result, Run
from compilewatch.records.views import Link
from compilewatch.report.wording import plural
from compilewatch.store import RunFolder, StoredRun

FILE = "gate.json"

TARGET = "dynamo"

GIT_SECONDS = 10.0

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""


class GateBreak(Record, frozen=True, kw_only=True):
    """A graph break in own code that the baseline does not hold, and the models that meet it."""

    place: BreakPlace
    code: str
    reason: str
    models: tuple[str, ...]


class GateResult(Record, frozen=True, kw_only=True):
    """`gate.json`: what a run means for a repository.

    `baseline` is the path of the file in the repository; `baseline_changed_at` is when it was last
    committed, or else written (RFC 3339), None without such a file. `known` counts the places in
    own code that it holds, `resolved` those that no model meets any more, `third_party` the places
    in other packages. `problems` are those of the rules other than new breaks, or why nothing was
    judged.
    """

    baseline: str
    models: int
    new: tuple[GateBreak, ...] = ()
    known: int = 0
    resolved: int = 0
    third_party: int = 0
    baseline_changed_at: str | None = None
    problems: tuple[str, ...] = ()
    schema_version: int = 1


class FinishedRun(Protocol):
    """The writer of a run whose results are all stored."""

    @property
    def path(self) -> Path: ...

    @property
    def run(self) -> Run: ...

    def events(self, events: Sequence[Event]) -> None:
        """Append events to the log of the run."""


def judge_run(writer: FinishedRun) -> None:
    """Judge a run whose results are stored: write `gate.json`, and log each new break.

    Nothing is written without `[tool.compilewatch]` in the repository around the current folder. A
    setting or a baseline that cannot be read is a problem of the result, not of the sweep.
    """
    root = project_root(Path.cwd())
    if writer.run.shard is not None:
        return  # only the merged run has all models
    try:
        settings = project_settings(root)
    except CompilewatchError as error:
        found = GateResult(baseline="", models=0, problems=(str(error),))
    else:
        if not settings:
            return
        found = gate_result(StoredRun(writer.path).results(), root, settings)
    RunFolder(writer.path).write(FILE, msgspec.json.encode(found) + b"\n")
    author = Author(writer.run)
    writer.events([_event(author, each) for each in found.new])


def _event(author: Author, new: GateBreak) -> NewBreak:
    return NewBreak(
        **author.stamp("warning"),
        place=f"{new.place.file}:{new.place.line}",
        function=new.place.function,
        reason=new.reason,
        models=", ".join(new.models),
    )


def gate_result(results: Iterable[Result], root: Path, settings: dict[str, object]) -> GateResult:
    """Return what results on Dynamo mean for the repository at `root`, by its settings."""
    path = baseline_path(root, settings, None)
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    try:
        known = load(path)
        rules = rules_of(root, settings)
    except CompilewatchError as error:
        return GateResult(baseline=name, models=0, problems=(str(error),))
    reports: dict[str, list[CheckReport]] = {}
    for result in results:
        request = result.request
        if request.target.name != TARGET or not result.is_verdict:
            continue
        build = request.model.build
        further = build.python_path if isinstance(build, FactoryBuild) else ()
        files = located(files_of(result), source_folders(root, further))
        checked = CheckResult(result=result, files=files)
        report = judge(checked, known, rules, name=request.model.name)
        reports.setdefault(report.name, []).append(report)
    everything = [each for group in reports.values() for each in group]
    met = {
        model: known_breaks(each for report in group for each in report.findings)
        for model, group in reports.items()
    }
    own = {identity for breaks in met.values() for identity in (b.identity for b in breaks)}
    fresh = _new(everything)
    return GateResult(
        baseline=name,
        models=len(reports),
        new=fresh,
        known=len(own & known.keys()),
        resolved=len(resolved(known, met)),
        third_party=len({_at(each) for report in everything for each in report.third_party}),
        baseline_changed_at=_changed_at(path),
        problems=tuple(f"{r.name}: {line}" for r in everything for line in r.problems),
    )


def _new(reports: Sequence[CheckReport]) -> tuple[GateBreak, ...]:
    """Each place once, with the models that meet it."""
    found: dict[tuple[BreakPlace, str], GateBreak] = {}
    for report in reports:
        for each in report.new:
            held = found.get(_at(each))
            models = {report.name, *(held.models if held is not None else ())}
            found[_at(each)] = GateBreak(
                place=each.place, code=each.code, reason=each.reason, models=tuple(sorted(models))
            )
    return tuple(sorted(found.values(), key=lambda each: (each.place.file, each.place.line)))


def _at(finding: Finding) -> tuple[BreakPlace, str]:
    return finding.place, finding.code


def _changed_at(path: Path) -> str | None:
    """When a file was last committed; where git says nothing, when it was written."""
    if not path.is_file():
        return None
    command = ["git", "-C", str(path.parent), "log", "-1", "--format=%cI", "--", path.name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=GIT_SECONDS
        )
        said = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    return said or datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class RunGate:
    """What a stored run says of the gate, for the report and the sinks."""

    result: GateResult

    def links(self, model: str) -> Iterator[Link]:
        """Yield nothing: the notes of the run name the new breaks."""
        del model
        yield from ()


def view_of_run(stored: StoredRun, baseline: StoredRun | None) -> tuple[RunGate, Sequence[str]]:
    """The stored result of the gate, and what a person must know of it. Raises StoreError."""
    del baseline
    path = RunFolder(stored.path).path(FILE)
    try:
        result = msgspec.json.decode(path.read_bytes(), type=GateResult)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"{path} is damaged ({error}): delete it") from None
    return RunGate(result=result), tuple(_notes(result))


def _notes(result: GateResult) -> Iterator[str]:
    for each in result.new:
        place = f"{each.place.file}:{each.place.line} in {each.place.function}"
        yield f"new graph break in own code: {place}: {each.reason} ({', '.join(each.models)})"
    if result.resolved:
        said = plural(result.resolved, "graph break")
        yield f"{said} of {result.baseline} resolved: compilewatch gate --update removes them"
    yield from (f"gate: {problem}" for problem in result.problems)


def samples(part: RunGate) -> Iterator[Sample]:
    """Yield the samples of a run that was judged; zeros too, because alerts see values fall."""
    result = part.result
    counts = {
        "new": len(result.new),
        "known": result.known,
        "resolved": result.resolved,
        "third_party": result.third_party,
    }
    for state, count in counts.items():
        yield "compilewatch_gate_breaks", (state,), count
    if result.baseline_changed_at is not None:
        changed = datetime.fromisoformat(result.baseline_changed_at).timestamp()
        yield "compilewatch_gate_baseline_timestamp_seconds", (), changed
