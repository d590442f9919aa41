"""The gate of a run: what a sweep of a team's list means for the baseline of its repository.

A sweep of the source `manifest` in a repository with a table `[tool.compilewatch]` is judged by the
same rules as the pytest plug-in and `compilewatch gate`. What it means is stored in the run.
"""

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from compilewatch.errors import CompilewatchError, StoreError
from compilewatch.events import Event, EventFactory
from compilewatch.extras.gate import judgement
from compilewatch.extras.gate.command import located_check
from compilewatch.extras.gate.session import GateSession
from compilewatch.files import DamagedError, from_json
from compilewatch.records import CodePlace, Link, Record, Result, reason_label
from compilewatch.report.wording import plural
from compilewatch.sinks.prometheus import RUN, Definition
from compilewatch.store import RunFolder, RunWriter, StoredRun

FILE = "gate.json"

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_gate_breaks",
        "Places of graph breaks that a run of a team's list met, by what its baseline says of "
        "them; absent for a repository without settings of the gate.",
        ("baseline_state",),
        RUN,
    ),
    Definition(
        "compilewatch_gate_baseline_timestamp_seconds",
        "When the baseline was last committed; absent without one.",
        (),
        RUN,
    ),
)

LABELS: dict[str, str] = {
    "baseline_state": "`new`, `known` and `resolved` in own code, `third_party` in other packages",
}

MEANINGS: dict[str, str] = {
    "place": "`file:line` of a new graph break, relative to the repository",
    "models": "the models that meet it, separated by commas",
}


class NewBreak(Event, frozen=True, kw_only=True, tag="gate_break"):
    """A run of a team's list met a graph break in own code that its baseline does not hold."""

    place: str
    function: str
    reason: str
    models: str


EVENTS: tuple[type[Event], ...] = (NewBreak,)

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""


class GateBreak(CodePlace, frozen=True, kw_only=True):
    """A graph break in own code that the baseline does not hold, and the models that meet it."""

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

    def links(self, model: str) -> Iterable[Link]:
        """Return nothing for the page of a model: the notes of the run name the new breaks."""
        del model
        return ()


def judge_run(writer: RunWriter) -> None:
    """Judge a run whose results are stored: write `gate.json`, and log each new break.

    Nothing is written without `[tool.compilewatch]` in the repository around the current folder. A
    setting or a baseline that cannot be read is a problem of the result, not of the sweep.
    """
    if writer.run.shard is not None:
        return  # only the merged run has all models
    root = judgement.project_root(Path.cwd())
    try:
        if not judgement.project_settings(root):
            return
        result = gate_result(StoredRun(writer.path).results(), root)
    except CompilewatchError as error:
        result = GateResult(baseline="", models=0, problems=(str(error),))
    RunFolder(writer.path).write(FILE, msgspec.json.encode(result) + b"\n")
    author = EventFactory(writer.run)
    writer.events(
        [
            NewBreak(
                **author.stamp("warning"),
                place=f"{new.file}:{new.line}",
                function=new.function,
                reason=new.reason,
                models=", ".join(new.models),
            )
            for new in result.new
        ]
    )


def gate_result(results: Iterable[Result], root: Path) -> GateResult:
    """Return what results on Dynamo mean for the repository at `root`, by its settings.

    Raises ConfigError, UsageError for settings or a baseline that cannot be read.
    """
    rules, path, known = judgement.opened(root, baseline=None)
    reports: dict[str, list[judgement.CheckReport]] = {}
    for result in results:
        model = result.request.model.name
        if result.request.target.name == "dynamo" and result.is_verdict:
            checked, _ = located_check(result, root)
            reports.setdefault(model, []).append(judgement.judge(checked, known, rules, name=model))
    session = GateSession(root, reports, update="")
    counts = session.counts()
    return GateResult(
        baseline=session.name,
        models=len(reports),
        new=tuple(
            GateBreak(
                file=graph_break.file,
                line=graph_break.line,
                function=graph_break.function,
                code=graph_break.code,
                reason=reason_label(graph_break),
                models=tuple(sorted(models)),
            )
            for graph_break, models in sorted(session.breaks, key=lambda pair: pair[0].place)
            if graph_break.state == "new"
        ),
        known=counts["known"] + counts["moved"],
        resolved=counts["resolved"],
        third_party=counts["in other packages"],
        baseline_changed_at=_changed_at(path),
        problems=(
            *(f"{r.name}: {line}" for r in session.checks for line in r.problems),
            *session.twice,
        ),
    )


def _changed_at(path: Path) -> str | None:
    """When a file was last committed; where git says nothing, when it was written."""
    if not path.is_file():
        return None
    command = ["git", "-C", str(path.parent), "log", "-1", "--format=%cI", "--", path.name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        committed = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        committed = ""
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return committed or written.isoformat(timespec="seconds")


def view_of_run(stored: StoredRun, baseline: StoredRun | None) -> tuple[GateResult, Sequence[str]]:
    """The stored result of the gate, and what a person must know of it. Raises StoreError."""
    del baseline
    path = RunFolder(stored.path).path(FILE)
    try:
        result = from_json(path.read_bytes(), GateResult)
    except (OSError, DamagedError) as error:
        raise StoreError(f"{path} is damaged ({error}): delete it") from None
    return result, tuple(_notes(result))


def _notes(result: GateResult) -> Iterator[str]:
    for new in result.new:
        place = f"{new.file}:{new.line} in {new.function}"
        yield f"new graph break in own code: {place}: {new.reason} ({', '.join(new.models)})"
    if result.resolved:
        count = plural(result.resolved, "graph break")
        yield f"{count} of {result.baseline} resolved: compilewatch gate --update removes them"
    yield from (f"gate: {problem}" for problem in result.problems)


def samples(result: GateResult) -> Iterator[Sample]:
    """Yield the samples of a run that was judged; zeros too, because alerts see values fall."""
    yield "compilewatch_gate_breaks", ("new",), len(result.new)
    for state in ("known", "resolved", "third_party"):
        yield "compilewatch_gate_breaks", (state,), getattr(result, state)
    if result.baseline_changed_at is not None:
        changed = datetime.fromisoformat(result.baseline_changed_at).timestamp()
        yield "compilewatch_gate_baseline_timestamp_seconds", (), changed
