"""The fixes of a stored run: its cases, its file, and what the report and the sinks see."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from compilewatch import extras
from compilewatch.analysis.leverage import breaks_of
from compilewatch.analysis.summary import downloads_of
from compilewatch.contract.targets import CPU, target_label, target_label_value
from compilewatch.extras.fixes import records
from compilewatch.files import safe_name
from compilewatch.records import Link, ModelFix, Result, Status
from compilewatch.report.wording import plural
from compilewatch.sinks.prometheus import RUN, Definition
from compilewatch.store import RunFolder, StoredRun
from compilewatch.store.journal import append_record, read_records

if TYPE_CHECKING:
    from compilewatch.extras.fixes.search import Limits

FILE = "fixes.jsonl"

STATES = tuple(status for status in records.FixStatus if status is not records.FixStatus.NO_BREAK)
"""What is known of a case: it had a graph break when the run was made."""

Key = tuple[str, str, str]
"""The request's key, and the model and the environment, which it does not name."""


def key_of(case: Result) -> Key:
    request = case.request
    return request.key, request.model.name, request.target.environment


def places_of(case: Result) -> frozenset[str]:
    """Return the fingerprints of the graph breaks of a case."""
    return frozenset(graph_break.fingerprint for graph_break in breaks_of(case))


def cases_of(results: Iterable[Result]) -> tuple[tuple[Result, ...], tuple[str, ...]]:
    """Return the results of a run to search, and a note for each kind that is left out."""
    broken = [r for r in results if r.breaks and r.request.target.name == "dynamo"]
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
    return tuple(cases), tuple(notes)


# --- the file -------------------------------------------------------------------------------------


@cache
def search_digest() -> str:
    """Return a digest of the code that searches and verifies."""
    folder, total = Path(__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        if path.name not in ("run_fixes.py", "of_run.py"):
            total.update(f"{path.relative_to(folder)}\0".encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


def read(folder: Path) -> tuple[dict[Key, records.RunFix], tuple[str, ...]]:
    """Return what the folder of a run has by key, and one line for each line that is damaged.

    Raises StoreError.
    """
    stored, damaged = read_records(folder / FILE, records.RunFix)
    return {(r.key, r.model, r.target.environment): r for r in stored}, damaged


def append(folder: Path, run_fix: records.RunFix) -> records.RunFix:
    """Store a fix with its script; return it as stored. Raises StoreError."""
    name = ""
    if run_fix.fix.script:
        label = safe_name(target_label(run_fix.target))
        name = f"fixes/{safe_name(run_fix.model)}/{label}.py"
        RunFolder(folder).write(name, run_fix.fix.script.encode())
    fix = msgspec.structs.replace(run_fix.fix, script="")
    stored = msgspec.structs.replace(run_fix, fix=fix, script_file=name)
    append_record(folder / FILE, stored)
    return stored


def adopt_fixes(
    source: Path, target: Path, is_wanted: Callable[[Key, records.RunFix], bool] = lambda *_: True
) -> None:
    """Copy the fixes of one run into another that has none of the same keys, with their scripts."""
    here = read(target)[0]
    for key, run_fix in read(source)[0].items():
        if key in here or not is_wanted(key, run_fix):
            continue
        if run_fix.script_file:
            try:
                script = (source / run_fix.script_file).read_bytes()
            except OSError:
                continue  # a fix without its verification is none: it is searched again
            RunFolder(target).write(run_fix.script_file, script)
        reused = run_fix.reused_from or source.name
        append_record(target / FILE, msgspec.structs.replace(run_fix, reused_from=reused))


def is_final(run_fix: records.RunFix, limits: Limits) -> bool:
    """Whether a case need not be searched again.

    What is verified stays so. Where nothing was, another version of the search may find it, a
    search that a limit ended may come further with a larger one, and a timeout may not come again.
    """
    fix = run_fix.fix
    if fix.verification is not None:
        return True
    if fix.status is records.FixStatus.NO_VERDICT or any(
        r.reason.startswith(records.LATE) for r in fix.rejections
    ):
        return False
    larger = limits.evaluations > run_fix.max_evaluations or limits.seconds > run_fix.max_seconds
    return run_fix.search == search_digest() and not (fix.limit and larger)


# --- views ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RunFixes:
    """What `fix --all-of` stored in a run. `cases` are all models and targets to search."""

    cases: tuple[Result, ...]
    found: tuple[records.RunFix, ...]

    @cached_property
    def model_fixes(self) -> Sequence[ModelFix]:
        return tuple(map(model_fix, self.found))

    def links(self, model: str) -> Iterator[Link]:
        """Yield a link to each verification of a model."""
        for run_fix in self.found:
            if run_fix.model == model and run_fix.script_file:
                about = f"A script of plain PyTorch: {run_fix.fix.detail}."
                yield Link(run_fix.script_file, "Open the verification of the fix", about)

    def by_state(self) -> Iterator[tuple[Result, records.FixStatus, records.RunFix | None]]:
        """Yield each case, its state, and what was found."""
        found = {(run_fix.model, run_fix.target): run_fix for run_fix in self.found}
        for case in self.cases:
            run_fix = found.get((case.request.model.name, case.request.target))
            yield case, run_fix.fix.status if run_fix else records.FixStatus.NOT_SEARCHED, run_fix


def view_of_run(stored: StoredRun, _: StoredRun | None) -> tuple[RunFixes, Sequence[str]]:
    """The fixes of a run, and notes on damaged lines."""
    by_key, damaged = read(stored.path)
    cases, _notes = cases_of(stored.results())
    found = tuple(by_key[key_of(case)] for case in cases if key_of(case) in by_key)
    return RunFixes(cases=cases, found=found), damaged


def fixes_of_run(stored: StoredRun) -> tuple[Sequence[ModelFix], Sequence[str]]:
    """The fixes of a run for commands of the core, and notes on damaged lines."""
    by_key, damaged = read(stored.path)
    return tuple(map(model_fix, by_key.values())), damaged


def model_fix(run_fix: records.RunFix) -> ModelFix:
    """Return what the report shows of one stored fix."""
    fix = run_fix.fix
    detail = f"{fix.status.value.replace('_', ' ')}: {fix.detail}" if fix.detail else ""
    if fix.status is records.FixStatus.CAPTURED:
        detail = f"captured, not verified: {fix.rejections[-1].reason}"
    steps = fix.verification.steps if fix.verification is not None else ()
    return ModelFix(
        model=run_fix.model,
        target=run_fix.target,
        detail=detail,
        verified=fix.verification is not None,
        single_graph=fix.status is records.FixStatus.VERIFIED,
        changes=tuple(change.name for change in fix.changes),
        removed=fix.removed,
        code=fix.code,
        verification=tuple(f"{step.name}: {step.detail or 'equal'}" for step in steps),
        script=run_fix.script_file,
        tried=tried_hints(fix),
    )


def tried_hints(fix: records.Fix) -> dict[str, str]:
    """Return what became of the model under each hint that was tried and is no part of the fix."""
    outcomes: dict[str, str] = {}
    for hint in sorted({hint for graph_break in fix.breaks for hint in graph_break.hints}):
        named = [trial for trial in fix.trials if any(_names(c, hint) for c in trial.changes)]
        if named and not any(_names(change.name, hint) for change in fix.changes):
            outcomes[hint] = _outcome(min(named, key=lambda trial: len(trial.changes)), fix)
    return outcomes


def _names(change: str, hint: str) -> bool:
    """Whether a hint is about the setting or function with which the name of a change begins."""
    word = re.match(r"[A-Za-z_][\w.]*", change)
    return word is not None and ("_" in word[0] or "." in word[0]) and word[0] in hint


def _outcome(trial: records.FixTrial, fix: records.Fix) -> str:
    also = f", with {' and '.join(trial.changes)}" if len(trial.changes) > 1 else ""
    if trial.error:
        return f"compiler error {trial.error}{also}"
    if trial.status == Status.PASS:
        rejected = [r.reason for r in fix.rejections if {*r.changes} == {*trial.changes}]
        why = f"the script rejects it: {rejected[-1]}" if rejected else "not verified"
        return f"one graph{also}, but {why}"
    return f"{plural(trial.breaks, 'graph break')}{also}" if trial.breaks else trial.detail


_LABELS = ("target", "mode")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_fixes_models",
        "Models with graph breaks by what a search for fixes found; absent for a run whose graph "
        "breaks were not searched.",
        ("fix_state", *_LABELS),
        RUN,
    ),
    Definition(
        "compilewatch_fixes_downloads",
        "Downloads over 30 days of the models in compilewatch_fixes_models; absent where the "
        "source knows none.",
        ("fix_state", *_LABELS),
        RUN,
    ),
    Definition(
        "compilewatch_fix_changes_models",
        "Models with a verified fix of a single graph, by the kinds of changes in it; a fix with "
        "changes of two kinds counts for both.",
        ("change_kind", *_LABELS),
        RUN,
    ),
)

LABELS: dict[str, str] = {
    "fix_state": ", ".join(f"`{state.value}`" for state in STATES)
    + ": the states of a `RunFix` ([records](records.md))",
    "change_kind": ", ".join(f"`{kind.value}`" for kind in records.FixKind),
}


def samples(part: RunFixes) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield metric, label values and value of a run that was searched; zeros too, so that a state
    falls to zero.
    """
    states: defaultdict[tuple[str, str], defaultdict[records.FixStatus, list[Result]]] = (
        defaultdict(lambda: defaultdict(list))
    )
    kinds: Counter[tuple[str, str, str]] = Counter()
    for case, state, run_fix in part.by_state():
        target = case.request.target
        where = (target_label_value(target), target.mode_label)
        states[where][state].append(case)
        if run_fix is not None and state is records.FixStatus.VERIFIED:
            kinds.update((kind, *where) for kind in {c.kind.value for c in run_fix.fix.changes})
    for where, by_state in states.items():
        for state in STATES:
            cases = by_state[state]
            yield "compilewatch_fixes_models", (state.value, *where), len(cases)
            downloads = downloads_of(case.request.model for case in cases)
            if downloads is not None:
                yield "compilewatch_fixes_downloads", (state.value, *where), downloads
        for kind in records.FixKind:
            labels = (kind.value, *where)
            yield "compilewatch_fix_changes_models", labels, kinds[labels]
