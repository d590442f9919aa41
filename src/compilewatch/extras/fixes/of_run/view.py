"""The fixes of a stored run, as the report, commands of the core and the sinks see them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import msgspec

from compilewatch import extras
from compilewatch.analysis.leverage import breaks_of
from compilewatch.analysis.summary import downloads_of
from compilewatch.contract.targets import CPU, target_label, target_label_value
from compilewatch.extras.fixes.fixing import Limits
from compilewatch.extras.fixes.records import (
    FIXES_VERSION,
    LATE,
    Fix,
    FixKind,
    FixStatus,
    FixTrial,
    Rejection,
    RunFix,
    VerificationStep,
)
from compilewatch.extras.fixes.search import Changes
from compilewatch.files import safe_name
from compilewatch.records import Link, ModelFix, Request, Result, Status
from compilewatch.report.wording import plural
from compilewatch.sinks.prometheus import RUN, Definition
from compilewatch.store import RunFolder, StoredRun
from compilewatch.store.journal import append_record, read_records

TARGET = "dynamo"

SAMPLES = 3
"""On so many models a place is searched: the most downloaded ones, then the smallest."""

Key = tuple[str, str, str]
"""The request's key, and the model and the environment, which it does not name."""

_KINDS = tuple(FixKind)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and target with graph breaks; `places` are their fingerprints."""

    result: Result

    @property
    def request(self) -> Request:
        return self.result.request

    @property
    def name(self) -> str:
        return self.request.model.name

    @property
    def key(self) -> Key:
        return self.request.key, self.name, self.request.target.environment

    @property
    def places(self) -> frozenset[str]:
        return frozenset(each.fingerprint for each in breaks_of(self.result))


def cases_of(results: Iterable[Result]) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """Return the cases of a run, and a note for each kind of results that is none."""
    broken = [
        result for result in results if result.breaks and result.request.target.name == TARGET
    ]
    here = [result for result in broken if result.request.target.device == CPU]
    cases = [result for result in here if result.request.model.source not in extras.SANDBOXED]
    notes: list[str] = []
    if elsewhere := len(broken) - len(here):
        notes.append(
            f"{plural(elsewhere, 'result')} on declared devices not searched: nothing is "
            "verified on a device that is not here"
        )
    if generated := len(here) - len(cases):
        notes.append(
            f"{plural(generated, 'result')} of generated code not searched: such code only runs in "
            "the sandbox"
        )
    return tuple(Case(result=case) for case in cases), tuple(notes)


def sampled_cases(cases: Sequence[Case]) -> dict[str, tuple[Case, ...]]:
    """Place -> the cases on which it is searched; the place of most models first."""
    having: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        for place in case.places:
            having[place].append(case)
    ranked = sorted(having, key=lambda place: (-len(having[place]), place))
    return {place: tuple(sorted(having[place], key=_first)[:SAMPLES]) for place in ranked}


def ordered(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Return the cases in the order in which they are worked on.

    First one model of each place, then a second and a third one, then all others: whatever limit
    ends it, the places that many models share are done.
    """
    chosen = sampled_cases(cases)
    first = (
        change[number]
        for number in range(SAMPLES)
        for change in chosen.values()
        if number < len(change)
    )
    return tuple({case.key: case for case in (*first, *sorted(cases, key=_first))}.values())


@dataclass(frozen=True, kw_only=True)
class KnownChanges:
    """Changes that were verified for `models`; `minimal` if the case needs each of them."""

    models: tuple[str, ...]
    changes: Changes
    minimal: bool


def known_changes(case: Case, known: Sequence[RunFix]) -> KnownChanges | None:
    """Return the known changes to try first, which the fixes of other models have.

    They are the smallest set that removed all graph breaks of the case elsewhere; of equal ones the
    one that did for most models. Without one, those that removed one of them each are joined.
    """
    covering = [run_fix for run_fix in known if run_fix.fix.removed >= case.places]
    if covering:
        times = Counter(_change_names(run_fix) for run_fix in covering)
        best = min(
            covering, key=lambda other: (len(other.fix.changes), -times[_change_names(other)])
        )
        minimal = best.fix.removed == case.places
        return KnownChanges(models=(best.model,), changes=best.fix.changes, minimal=minimal)
    parts: list[RunFix] = []
    for place in sorted(case.places):
        having = [run_fix for run_fix in known if place in run_fix.fix.removed]
        if having:
            parts.append(min(having, key=lambda other: len(other.fix.changes)))
    changes = {change.name: change for part in parts for change in part.fix.changes}
    if not changes:
        return None
    ranked = sorted(
        changes.values(), key=lambda other: (other.removes_check, _KINDS.index(other.kind))
    )
    removed = frozenset().union(*(part.fix.removed for part in parts))
    return KnownChanges(
        models=tuple(dict.fromkeys(part.model for part in parts)),
        changes=tuple(ranked),
        minimal=removed == case.places,
    )


def _change_names(known: RunFix) -> tuple[str, ...]:
    return tuple(change.name for change in known.fix.changes)


def _first(case: Case) -> tuple[int, int, str]:
    """The most downloaded first, then the smallest."""
    size = case.result.parameters
    return -(case.request.model.downloads or 0), size if size is not None else 2**63, case.name


FILE = "fixes.jsonl"
FOLDER = "fixes"


@cache
def search_digest() -> str:
    """Return a digest of the code that searches and verifies."""
    folder = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if Path(__file__).parent not in path.parents:
            total.update(f"{path.relative_to(folder)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


class FixJournal:
    """The fixes of the run in a folder. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self) -> tuple[dict[Key, RunFix], tuple[str, ...]]:
        """Return what is stored by key, and one line for each line that cannot be read."""
        found, damaged = read_records(self._root / FILE, RunFix, FIXES_VERSION)
        return {(e.key, e.model, e.target.environment): e for e in found}, damaged

    def done(self, limits: Limits) -> dict[Key, RunFix]:
        """Return what need not be searched again.

        What is verified stays so. Where nothing was, another version of the search may find it, and
        a search that a limit ended may come further with a larger one.
        """
        return {key: each for key, each in self.read()[0].items() if _is_final(each, limits)}

    def append(self, run_fix: RunFix) -> RunFix:
        """Store a fix with its script; return it as stored."""
        folder = RunFolder(self._root)
        name = ""
        if run_fix.fix.script:
            label = safe_name(target_label(run_fix.target))
            name = f"{FOLDER}/{safe_name(run_fix.model)}/{label}.py"
            folder.write(name, run_fix.fix.script.encode())
        fix = msgspec.structs.replace(run_fix.fix, script="")
        stored = msgspec.structs.replace(run_fix, fix=fix, script_file=name)
        append_record(self._root / FILE, stored)
        return stored

    def adopt(self, other: FixJournal, keys: Iterable[Key], limits: Limits | None = None) -> int:
        """Copy fixes of another run by key, with their scripts; return how many.

        With `limits`, only those that need not be searched again. What is here already stays.
        """
        here, theirs = self.read()[0], other.read()[0]
        count = 0
        for key in keys:
            run_fix = theirs.get(key)
            if run_fix is None or key in here or (limits and not _is_final(run_fix, limits)):
                continue
            if run_fix.script_file:
                try:
                    script = (other._root / run_fix.script_file).read_bytes()
                except OSError:
                    continue  # a fix without its verification is none: it is searched again
                RunFolder(self._root).write(run_fix.script_file, script)
            reused = run_fix.reused_from or other._root.name
            append_record(self._root / FILE, msgspec.structs.replace(run_fix, reused_from=reused))
            count += 1
        return count


def adopt_fixes(source: Path, target: Path) -> None:
    """Copy the fixes of one run into another that it is merged into."""
    other = FixJournal(source)
    FixJournal(target).adopt(other, other.read()[0])


def _is_final(run_fix: RunFix, limits: Limits) -> bool:
    if run_fix.fix.verification is not None:
        return True
    late = any(rejection.reason.startswith(LATE) for rejection in run_fix.fix.rejections)
    if late or run_fix.fix.status is FixStatus.NO_VERDICT:
        return False  # a timeout, which another time may not come
    larger = limits.evaluations > run_fix.max_evaluations or limits.seconds > run_fix.max_seconds
    return run_fix.search == search_digest() and not (run_fix.fix.limit and larger)


_WORD = re.compile(r"[A-Za-z_][\w.]*")
"""The beginning of a change's name, which is a setting or a function where a hint names one."""


@dataclass(frozen=True, kw_only=True)
class RunFixes:
    """What `fix --all-of` stored in a run. `cases` are all models and targets to search."""

    cases: tuple[Case, ...]
    found: tuple[RunFix, ...]

    @cached_property
    def model_fixes(self) -> Sequence[ModelFix]:
        return tuple(map(model_fix, self.found))

    def links(self, model: str) -> Iterator[Link]:
        """Yield a link to each verification of a model."""
        for entry in self.found:
            if entry.model == model and entry.script_file:
                yield Link(
                    entry.script_file,
                    "Open the verification of the fix",
                    f"A script of plain PyTorch: {entry.fix.detail}.",
                )


def view_of_run(stored: StoredRun, baseline: StoredRun | None) -> tuple[RunFixes, Sequence[str]]:
    """The fixes of a run, and notes on damaged lines."""
    del baseline
    by_key, damaged = FixJournal(stored.path).read()
    cases, _ = cases_of(stored.results())
    mine = [by_key[case.key] for case in cases if case.key in by_key]
    return RunFixes(cases=cases, found=tuple(mine)), damaged


def fixes_of_run(stored: StoredRun) -> tuple[Sequence[ModelFix], Sequence[str]]:
    """The fixes of a run for commands of the core, and notes on damaged lines."""
    by_key, damaged = FixJournal(stored.path).read()
    return tuple(map(model_fix, by_key.values())), damaged


def model_fix(run_fix: RunFix) -> ModelFix:
    """Return what the report shows of one stored fix."""
    fix, verification = run_fix.fix, run_fix.fix.verification
    detail = f"{run_fix.fix.status.value.replace('_', ' ')}: {fix.detail}" if fix.detail else ""
    if run_fix.fix.status is FixStatus.CAPTURED:
        detail = f"captured, not verified: {fix.rejections[-1].reason}"
    return ModelFix(
        model=run_fix.model,
        target=run_fix.target,
        detail=detail,
        verified=verification is not None,
        single_graph=run_fix.fix.status is FixStatus.VERIFIED,
        changes=tuple(change.name for change in fix.changes),
        removed=fix.removed,
        code=fix.code,
        verification=tuple(_step(step) for step in verification.steps)
        if verification is not None
        else (),
        script=run_fix.script_file,
        tried=tried_hints(fix),
    )


def _step(step: VerificationStep) -> str:
    return f"{step.name}: {step.detail}" if step.detail else f"{step.name}: equal"


def tried_hints(fix: Fix) -> dict[str, str]:
    """Return what became of the model under each hint that was tried and is no part of the fix."""
    used = {change.name for change in fix.changes}
    hints = {hint for graph_break in fix.breaks for hint in graph_break.hints}
    outcomes: dict[str, str] = {}
    for hint in sorted(hints):
        named = [trial for trial in fix.trials if any(_names(c, hint) for c in trial.changes)]
        if not named or any(_names(name, hint) for name in used):
            continue
        trial = min(named, key=lambda tried: len(tried.changes))
        outcomes[hint] = _outcome(trial, fix.rejections)
    return outcomes


def _names(change: str, hint: str) -> bool:
    """Whether a hint is about what a change sets or replaces."""
    word = _WORD.match(change)
    return word is not None and ("_" in word[0] or "." in word[0]) and word[0] in hint


def _outcome(trial: FixTrial, rejections: Sequence[Rejection]) -> str:
    also = f", with {' and '.join(trial.changes)}" if len(trial.changes) > 1 else ""
    if trial.error:
        return f"compiler error {trial.error}{also}"
    if trial.status == Status.PASS:
        names = set(trial.changes)
        reasons = [rejection.reason for rejection in rejections if set(rejection.changes) == names]
        return (
            f"one graph{also}, but the script rejects it: {reasons[-1]}"
            if reasons
            else (f"one graph{also}, but not verified")
        )
    return f"{plural(trial.breaks or 0, 'graph break')}{also}" if trial.breaks else trial.detail


_STATES = tuple(each for each in FixStatus if each is not FixStatus.NO_BREAK)

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_fixes_models",
        "Models with graph breaks by what a search for fixes found; absent for a run whose graph "
        "breaks were not searched.",
        ("fix_state", "target", "mode"),
        RUN,
    ),
    Definition(
        "compilewatch_fixes_downloads",
        "Downloads over 30 days of the models in compilewatch_fixes_models; absent where the "
        "source knows none.",
        ("fix_state", "target", "mode"),
        RUN,
    ),
    Definition(
        "compilewatch_fix_changes_models",
        "Models with a verified fix of a single graph, by the kinds of changes in it; a fix with "
        "changes of two kinds counts for both.",
        ("change_kind", "target", "mode"),
        RUN,
    ),
)

LABELS: dict[str, str] = {
    "fix_state": ", ".join(f"`{each.value}`" for each in _STATES)
    + ": the states of a `RunFix` ([records](records.md))",
    "change_kind": ", ".join(f"`{each.value}`" for each in FixKind),
}

Sample = tuple[str, tuple[str, ...], float]
"""A metric's name, its label values in the order of the definition, and the value."""


def samples(part: RunFixes) -> Iterator[Sample]:
    """Yield the samples of a run that was searched; zeros too, so that a state falls to zero."""
    by_model = {(entry.model, entry.target): entry for entry in part.found}
    states: defaultdict[tuple[str, str], defaultdict[FixStatus, list[Case]]] = defaultdict(
        lambda: defaultdict(list)
    )
    kinds: Counter[tuple[str, str, str]] = Counter()
    for case in part.cases:
        target = case.request.target
        where = (target_label_value(target), target.mode_label)
        fix = by_model.get((case.name, target))
        states[where][fix.fix.status if fix is not None else FixStatus.NOT_SEARCHED].append(case)
        if fix is not None and fix.fix.status is FixStatus.VERIFIED:
            kinds.update(
                (kind, *where) for kind in {change.kind.value for change in fix.fix.changes}
            )
    for where, by_state in states.items():
        for state in _STATES:
            cases = by_state[state]
            yield "compilewatch_fixes_models", (state.value, *where), len(cases)
            downloads = downloads_of(case.request.model for case in cases)
            if downloads is not None:
                yield "compilewatch_fixes_downloads", (state.value, *where), downloads
        for kind in FixKind:
            labels = (kind.value, *where)
            yield "compilewatch_fix_changes_models", labels, kinds[labels]
