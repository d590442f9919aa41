"""Which release of torch or Transformers changed the result of a model.

It is a binary search over *states*. Two results have the same state if their verdict and their set
of graph breaks are equal. That a release does not have the model is a state like any other; that
nothing is known of a release (a timeout, an environment that cannot be created) is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import unified_diff
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from packaging.version import Version

from compilewatch import records
from compilewatch.api.sweep import sweep_models
from compilewatch.config import PushgatewaySettings, S3Settings, ServiceSettings, Settings
from compilewatch.environments import SUPPORTED_TRANSFORMERS, Environments, package_folder
from compilewatch.environments.creation import releases
from compilewatch.errors import InterpreterError, UnknownModelError, UsageError, did_you_mean
from compilewatch.launchers import Launcher
from compilewatch.plan import load_expectations, place, plan
from compilewatch.store import Store

Launch = Callable[[Settings, Sequence[str]], AbstractContextManager[Launcher]]
"""Returns the launcher of these environments; as a context manager, it closes it."""


class EvaluatedVersion(NamedTuple):
    """A result, and the run that has it; `reused` if that run was there before."""

    result: records.Result
    run: str | None = None
    reused: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates models in one environment after the other. `selection` says for what."""

    settings: Settings
    launch: Launch
    selection: Mapping[str, Any]

    def evaluate(
        self,
        specs: Sequence[records.ModelSpec],
        target: records.Target,
        environment: records.Environment,
        **how: Any,
    ) -> dict[str, EvaluatedVersion]:
        """Return the results by model name, stored ones first; `target` names no environment.

        `how` are settings that count instead of the usual ones. KeyboardInterrupt, LauncherError
        and StoreError propagate; all finished results are stored.
        """
        settings = msgspec.structs.replace(
            self.settings,
            environments=(environment.name,),
            baseline="none",
            sinks=(),  # and it is published nowhere
            pushgateway=PushgatewaySettings(),
            loki=ServiceSettings(),
            s3=S3Settings(),
            **how,
        )
        placed = place([target], settings.environments, [environment])
        expectations = load_expectations(Path(settings.expectations_file))
        planned = plan(
            specs,
            placed,
            settings,
            [environment],
            expectations=expectations,
            named=True,
        )
        answers = {
            skipped.request.model.name: EvaluatedVersion(skipped) for skipped in planned.skipped
        }
        store = Store(Path(settings.output_dir))
        stored = store.lookup_many([request.key for request in planned.requests])
        waiting = []
        for request in planned.requests:
            if known := stored.get(request.key):
                result = msgspec.structs.replace(known.result, request=request)
                answers[request.model.name] = EvaluatedVersion(result, known.run, reused=True)
            else:
                waiting.append(request.model)
        if waiting:
            with (
                store.latest_kept(),
                self.launch(settings, [environment.name]) as launcher,
            ):
                view = sweep_models(
                    store,
                    launcher,
                    waiting,
                    [target],
                    settings,
                    source=waiting[0].source,
                    selection={**self.selection, "names": [spec.name for spec in waiting]},
                )
            for result in view.results:
                answers[result.request.model.name] = EvaluatedVersion(result, view.run.id)
        return answers


PACKAGES = ("transformers", "torch")

MACHINES = frozenset({records.Status.TIMEOUT, records.Status.OOM, records.Status.CRASHED})
"""Statuses that say nothing about a release, because the machine may have been the cause."""

CONTEXT_LINES = 2

Choose = Callable[[str, str], records.ModelSpec]
"""Returns the model with a name in an environment. Raises UnknownModelError."""

Prepare = Callable[[str, str], records.Environment]
"""Returns an environment with these releases of torch and Transformers, and creates it if needed.
"""


class Kind(StrEnum):
    """`failed`: an error before the compiler ran; `absent`: the release has no such model."""

    VERDICT = "verdict"
    FAILED = "failed"
    ABSENT = "absent"
    UNDETERMINED = "undetermined"


class Evaluated(records.Record, frozen=True, kw_only=True):
    """What one release gave.

    `architecture` is the class that was built. `run` is the stored run that has the result, None
    where there is no result; `reused` says that an earlier run had it already. `detail` is one
    line.
    """

    release: str
    kind: Kind
    environment: str = ""
    architecture: str | None = None
    status: records.Status | None = None
    phase: records.Phase | None = None
    code: str = ""
    fullgraph: bool | None = None
    breaks: tuple[records.GraphBreak, ...] = ()
    detail: str = ""
    run: str | None = None
    reused: bool = False

    @property
    def state(self) -> tuple[object, ...]:
        """What must be equal for two releases to have the same result."""
        verdict = (self.kind, self.status, self.phase, self.code, self.fullgraph)
        return (*verdict, frozenset(graph_break.fingerprint for graph_break in self.breaks))

    def lacks(self, other: Evaluated) -> tuple[records.GraphBreak, ...]:
        """Return the graph breaks of another release that this one does not have."""
        own = {graph_break.fingerprint for graph_break in self.breaks}
        return tuple(
            graph_break for graph_break in other.breaks if graph_break.fingerprint not in own
        )


class Bisection(records.Record, frozen=True, kw_only=True):
    """A finished search, with its evaluations in the order of the releases from good to bad.

    `pair` has the last release with the state of the good one, and the first one known to differ;
    None where the ends do not differ, or one of them has no state.
    """

    releases: tuple[str, ...]
    evaluated: tuple[Evaluated, ...]
    pair: tuple[str, str] | None = None

    @property
    def between(self) -> tuple[str, ...]:
        """The releases in the pair of which nothing is known: it is adjacent if there are none."""
        if self.pair is None:
            return ()
        last, first = map(self.releases.index, self.pair)
        return self.releases[last + 1 : first]

    def of(self, release: str) -> Evaluated:
        """Return what a release gave, which must have been evaluated."""
        return next(one for one in self.evaluated if one.release == release)

    @property
    def changes_again(self) -> bool:
        """Whether the bad release differs from the pair's second one, too."""
        return self.pair is not None and self.of(self.pair[1]).state != self.evaluated[-1].state


def most_evaluations(releases: int) -> int:
    """Return the limit of a search over this many releases: two for the ends, two to spare."""
    return 4 + math.ceil(math.log2(releases))


def search(releases: Sequence[str], evaluate: Callable[[str], Evaluated]) -> Bisection:
    """Search releases, which run from the good one to the bad one (at least two).

    A release without a state costs one of the evaluations, and its neighbour is evaluated instead.
    """
    results: dict[int, Evaluated] = {}

    def ask(index: int) -> Evaluated:
        results[index] = evaluate(releases[index])
        return results[index]

    low, high = 0, len(releases) - 1
    good, bad = ask(low), ask(high)
    known = Kind.UNDETERMINED not in (good.kind, bad.kind)
    differ = known and good.state != bad.state
    while differ and len(results) < most_evaluations(len(releases)):
        middle = (low + high) / 2
        open_ = [index for index in range(low + 1, high) if index not in results]
        if not open_:
            break
        index = min(open_, key=lambda result: abs(result - middle))
        state = ask(index)
        if state.kind is Kind.UNDETERMINED:
            continue
        if state.state == good.state:
            low = index
        else:
            high = index
    return Bisection(
        releases=tuple(releases),
        evaluated=tuple(results[index] for index in sorted(results)),
        pair=(releases[low], releases[high]) if differ else None,
    )


def evaluated(release: str, version: EvaluatedVersion, environment: str) -> Evaluated:
    """Return what a result says about a release."""
    result = version.result
    kind = Kind.VERDICT if result.is_verdict else Kind.FAILED
    in_setup = result.status is records.Status.ERROR and result.phase is records.Phase.SETUP
    if result.status in MACHINES or in_setup:
        kind = Kind.UNDETERMINED
    return Evaluated(
        release=release,
        kind=kind,
        environment=environment,
        architecture=result.request.model.architecture,
        status=result.status,
        phase=result.phase,
        code=result.error.code if result.error is not None else "",
        fullgraph=result.fullgraph.accepted if result.fullgraph is not None else None,
        breaks=result.breaks,
        detail=result.detail,
        run=version.run,
        reused=version.reused,
    )


def candidates(package: str, good: str, bad: str) -> tuple[str, ...]:
    """Return the releases of a package from the good one to the bad one, which may be the older.

    Raises UsageError if one of the two does not exist, is not supported, or if they are the same.
    """
    known = [str(version) for version in releases(package)]
    if package == "transformers":
        known = [version for version in known if version in SUPPORTED_TRANSFORMERS]
    for name, version in (("good", good), ("bad", bad)):
        if version not in known:
            near = did_you_mean(version, known, most=3)
            raise UsageError(
                f"--{name} {version}: {package} has no such release with a wheel for this Python, "
                f"or it is not supported{near}; known: {known[0]} to {known[-1]}"
            )
    if good == bad:
        raise UsageError(f"--good and --bad are both {good}: name two releases")
    start, end = sorted((known.index(good), known.index(bad)))
    chosen = tuple(known[start : end + 1])
    return chosen if Version(good) < Version(bad) else chosen[::-1]


def bisect(
    model: str,
    target: records.Target,
    package: str,
    other: str,
    versions: Sequence[str],
    evaluator: Evaluator,
    *,
    choose: Choose,
    prepare: Prepare,
    report: Callable[[Evaluated, int, int], None],
) -> Bisection:
    """Search the releases `versions` of a package; `other` is that of the other one, which stays.

    `report` is called after each evaluation, with its number. Environments are kept, and so are
    results: a search that was interrupted begins again where it was, at no cost.
    """
    limit, numbers = most_evaluations(len(versions)), count(1)

    def evaluation(release: str) -> Evaluated:
        pair = (release, other) if package == "torch" else (other, release)
        try:
            environment = prepare(*pair)
        except (InterpreterError, UsageError) as error:
            return Evaluated(release=release, kind=Kind.UNDETERMINED, detail=str(error))
        try:
            spec = choose(model, environment.name)
        except UnknownModelError as error:
            return Evaluated(
                release=release,
                kind=Kind.ABSENT,
                environment=environment.name,
                detail=f"transformers {environment.transformers}: {error}",
            )
        version = evaluator.evaluate([spec], target, environment)[spec.name]
        return evaluated(release, version, environment.name)

    def evaluate(release: str) -> Evaluated:
        result = evaluation(release)
        report(result, next(numbers), limit)
        return result

    return search(versions, evaluate)


class FileChange(records.Record, frozen=True, kw_only=True):
    """The changed lines of one file of Transformers, as a unified diff."""

    file: str
    lines: tuple[str, ...]


def source_changes(
    search: Bisection, environments: Environments, limit: int
) -> tuple[FileChange, ...]:
    """Return what changed, between the two releases, in the model's file and where it breaks.

    At most `limit` lines of each file; files without a change are left out. Empty where a release
    of the pair has no environment.
    """
    pair = [search.of(release) for release in search.pair or ()]
    if not pair or not all(side.environment for side in pair):
        return ()
    folders = [package_folder(environments.interpreter(side.environment)) for side in pair]
    files = {
        modeling_file(folder, one.architecture) for folder, one in zip(folders, pair, strict=True)
    }
    files |= {graph_break.file for side in pair for graph_break in side.breaks}
    changes = []
    for file in sorted(path for path in files if path.startswith("transformers/")):
        paths = [folder / file for folder in folders]
        before, after = (p.read_text("utf-8").splitlines() if p.is_file() else [] for p in paths)
        lines = changed_lines(before, after, limit)
        changes += [FileChange(file=file, lines=lines)] if lines else []
    return tuple(changes)


def modeling_file(packages: Path, class_name: str | None) -> str:
    """Return the file of Transformers that defines a model class, relative; empty if none does."""
    if class_name is None:
        return ""
    definition = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    for path in sorted(packages.glob("transformers/models/*/modeling_*.py")):
        if definition.search(path.read_text("utf-8")):
            return path.relative_to(packages).as_posix()
    return ""


def changed_lines(before: Sequence[str], after: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return a unified diff without its heading: at most `limit` lines, and how many are left."""
    lines = list(unified_diff(before, after, n=CONTEXT_LINES, lineterm=""))[2:]
    left = len(lines) - limit
    return (*lines[:limit], *([f"… and {left} more lines"] if left > 0 else []))
