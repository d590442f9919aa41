"""`compilewatch fix --all-of RUN`: searches a few models of each place, then checks all others.

Three stages, in each of which several finders may work at a time: the samples of all places, then
known changes on the other models, then a search for those of them that may still have a fix. What
is found is stored at once, so that a command that is stopped goes on where it was.
"""

import contextlib
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from rich import progress as bars
from rich.console import Group, RenderableType
from rich.text import Text

from compilewatch.analysis.leverage import verified_total
from compilewatch.analysis.summary import downloads_of
from compilewatch.cli import options
from compilewatch.cli.progress import clock
from compilewatch.config import Settings
from compilewatch.errors import StoreError
from compilewatch.extras.fixes import records, run_fixes, search
from compilewatch.extras.fixes.fixing import Finder, searching
from compilewatch.extras.fixes.run_fixes import Key, cases_of, key_of, places_of
from compilewatch.extras.fixes.text import status_text
from compilewatch.records import Result, Status
from compilewatch.report.terminal import console, plain, spaced, table
from compilewatch.report.wording import plural, quantity, verified_total_words
from compilewatch.store import Store, StoredRun

SAMPLES = 3
"""On so many models a place is searched: the most downloaded ones, then the smallest."""

QUIET_SECONDS = 30.0
"""Where the output is no terminal, a step is a line only after so long a time without one."""


def fix_run(
    reference: str,
    settings: Settings,
    *,
    limits: search.Limits,
    max_seconds: float | None,
    rewrites: bool,
    as_json: bool,
) -> int:
    """Search for the fixes of a run, store and print them; return the exit status."""
    store = Store(Path(settings.output_dir))
    stored = store.open(reference)
    cases, notes = cases_of(stored.results())
    keys = set(map(key_of, cases))
    for other in store.runs():
        if other.path != stored.path and (other.path / run_fixes.FILE).exists():
            with contextlib.suppress(StoreError):  # what cannot be read is searched again
                run_fixes.adopt_fixes(
                    other.path,
                    stored.path,
                    lambda key, fix: key in keys and run_fixes.is_final(fix, limits),
                )
    with FixProgress() as progress:
        work = RunSearch(
            cases, stored.path, progress, limits, max_seconds=max_seconds, rewrites=rewrites
        )
        left = [case for case in cases if key_of(case) not in work.found]
        environments = dict.fromkeys(case.request.target.environment for case in cases)
        for environment in environments if left else ():
            with contextlib.ExitStack() as stack:
                alone = settings.jobs == 1
                finders = [
                    stack.enter_context(searching(settings, environment, alone=alone))
                    for _ in range(settings.jobs)
                ]
                work.run(finders, environment)
    summary = summarised(stored, notes)
    options.show(summary, as_json, summary_text(summary))
    return exit_status(summary)


class FixProgress(bars.Progress):
    """A bar on a terminal and lines elsewhere; on standard error."""

    def __init__(self) -> None:
        err = console(stderr=True)
        columns = (bars.SpinnerColumn(), bars.BarColumn(), bars.MofNCompleteColumn())
        what = bars.TextColumn("{task.description}", markup=False)
        live = err.is_terminal
        super().__init__(
            *columns, bars.TimeElapsedColumn(), what, console=err, transient=True, disable=not live
        )
        self._began = self._printed = time.monotonic()
        self._task = self.add_task("reading results", total=None)

    def on_cases(self, total: int, done: int) -> None:
        known = f", {done:,} of them known from before" if done else ""
        self._print(plain(f"{total:,} models and targets with graph breaks{known}."))
        self.update(self._task, total=total, completed=done)

    def on_step(self, model: str, what: str) -> None:
        if not self.console.is_terminal and time.monotonic() > self._printed + QUIET_SECONDS:
            self._print(self._head().append_text(plain(f"now {model}: {what}", "dim")))
        self.update(self._task, description=f"{model}: {what}"[:100])

    def on_fix(self, run_fix: records.RunFix) -> None:
        self.update(self._task, advance=1)
        result = search.names_of(run_fix.fix.changes) or run_fix.fix.detail
        line = self._head().append_text(plain(f"{run_fix.model}  ", "bold"))
        line.append_text(status_text(run_fix.fix.status))
        self._print(line.append_text(plain(f"  {result}")))

    def _head(self) -> Text:
        task = self.tasks[0]
        counts = f"{int(task.completed):,} of {int(task.total or 0):,}"
        return plain(f"{clock(time.monotonic() - self._began)}  {counts}  ", "dim")

    def _print(self, line: Text) -> None:
        self._printed = time.monotonic()
        # Always one line: on a terminal, what exceeds its width is cut off.
        self.console.print(line, no_wrap=True, overflow="ellipsis", crop=True)


class RunSearch:
    """The search for fixes of all cases of a run; `found` is what is known, and grows.

    `max_seconds` is the time after which nothing new is begun; `limits` are those of one model.
    """

    def __init__(
        self,
        cases: Sequence[Result],
        folder: Path,
        progress: FixProgress,
        limits: search.Limits,
        *,
        max_seconds: float | None = None,
        rewrites: bool = True,
    ) -> None:
        self._cases, self._folder, self._progress = cases, folder, progress
        self._limits, self._rewrites = limits, rewrites
        self._ends = math.inf if max_seconds is None else time.monotonic() + max_seconds
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._samples = sampled_cases(cases)
        keys = set(map(key_of, cases))
        self.found = {
            key: run_fix
            for key, run_fix in run_fixes.read(folder)[0].items()
            if key in keys and run_fixes.is_final(run_fix, limits)
        }
        progress.on_cases(len(keys), len(self.found))

    def run(self, finders: Sequence[Finder], environment: str) -> None:
        """Work on all cases of an environment, one at a time with each finder."""
        sampled = {key_of(case) for cases in self._samples.values() for case in cases}
        own = [c for c in ordered(self._cases) if c.request.target.environment == environment]
        waiting: dict[Key, records.Fix] = {}

        def work(finder: Finder, case: Result) -> None:
            fix = waiting.get(key_of(case)) or self._with_known(finder, case)
            if fix.status is records.FixStatus.VERIFIED:
                self._store(case, fix, records.FixOrigin.KNOWN)
            elif key_of(case) in sampled or key_of(case) in waiting:
                self._search(finder, case, fix)
            elif self._is_hopeful(case):
                waiting[key_of(case)] = fix
            elif fix.verification is not None or fix.rejections:
                self._store(case, fix, records.FixOrigin.KNOWN)
            else:
                samples = (other for place in places_of(case) for other in self._samples[place])
                others = list(dict.fromkeys(sample.request.model.name for sample in samples))
                detail = f"its graph breaks were searched in vain on {', '.join(others[:SAMPLES])}"
                fix = msgspec.structs.replace(fix, detail=detail)
                self._store(case, fix, records.FixOrigin.PLACES)

        self._each(finders, [case for case in own if key_of(case) in sampled], work)
        self._each(finders, [case for case in own if key_of(case) not in sampled], work)
        self._each(finders, [case for case in own if key_of(case) in waiting], work)

    def _each(
        self,
        finders: Sequence[Finder],
        cases: Sequence[Result],
        function: Callable[[Finder, Result], None],
    ) -> None:
        """Call a function with each case that is not done, one at a time with each finder."""
        waiting = iter(cases)

        def work(finder: Finder) -> None:
            for case in waiting:  # which all finders share
                if self._stop.is_set() or time.monotonic() >= self._ends:
                    return
                if key_of(case) not in self.found:
                    function(finder, case)

        if len(finders) == 1:
            work(finders[0])
            return
        with ThreadPoolExecutor(len(finders)) as pool:
            try:
                for _ in pool.map(work, finders):
                    pass
            except BaseException:
                self._stop.set()  # the other finders end after what they evaluate just now
                raise

    def _with_known(self, finder: Finder, case: Result) -> records.Fix:
        """Try changes that are verified for other models: cheaper than a search."""
        began, trials = time.monotonic(), list[records.FixTrial]()
        known = [run_fix for run_fix in list(self.found.values()) if run_fix.fix.changes]
        changes, minimal = known_changes(case, known)

        def is_captured(changes: search.Changes) -> bool:
            self._report(case, f"trying {search.names_of(changes)}")
            (result,) = finder.evaluate(case.request, [changes])
            trials.append(search.trial_of(changes, result))
            return result.status is Status.PASS

        def verify(changes: search.Changes) -> tuple[str, records.Verification]:
            self._report(case, f"verifying {search.names_of(changes)}")
            return finder.verify(case.request, changes)

        fix = search.nothing(case.request, case.breaks)
        if changes and is_captured(changes):
            for change in () if minimal else reversed(changes):
                without = tuple(other for other in changes if other is not change)
                if without and is_captured(without):
                    changes = without
            fix = search.verified(verify, fix, changes)
        seconds = round(time.monotonic() - began, 1)
        # Which graph breaks went is not known where some remain.
        left = () if fix.status is records.FixStatus.VERIFIED else fix.left
        return msgspec.structs.replace(fix, left=left, trials=tuple(trials), seconds=seconds)

    def _search(self, finder: Finder, case: Result, tried: records.Fix) -> None:
        seconds = min(self._limits.seconds, self._ends - time.monotonic())
        fix = finder(
            case.request,
            search.Limits(evaluations=self._limits.evaluations, seconds=seconds),
            rewrites=self._rewrites,
            report=lambda what, _: self._report(case, what),
        )
        if tried.status is records.FixStatus.IMPROVES:
            fix = fix if fix.verification is not None else tried
        elif (
            fix.limit
            and seconds < self._limits.seconds
            and fix.status is not records.FixStatus.VERIFIED
        ):
            return  # the time for all models ended it: the next command searches this one again
        if fix is not tried:
            fix = msgspec.structs.replace(
                fix,
                trials=(*tried.trials, *fix.trials),
                rejections=(*tried.rejections, *fix.rejections),
            )
        self._store(case, fix, records.FixOrigin.SEARCH)

    def _is_hopeful(self, case: Result) -> bool:
        """Whether a search may find something: not if it found nothing at each place elsewhere."""
        found = dict(self.found)
        removed = {place for run_fix in found.values() for place in run_fix.fix.removed}
        for place in places_of(case):
            searched = [found.get(key_of(sample)) for sample in self._samples[place]]
            if place in removed or not all(s and s.fix.status in records.IN_VAIN for s in searched):
                return True
        return False

    def _store(self, case: Result, fix: records.Fix, origin: records.FixOrigin) -> None:
        if fix.status is records.FixStatus.NO_BREAK:  # it had one when the run was made
            fix = msgspec.structs.replace(fix, status=records.FixStatus.NO_VERDICT)
        run_fix = records.RunFix(
            key=case.request.key,
            search=run_fixes.search_digest(),
            max_evaluations=self._limits.evaluations,
            max_seconds=self._limits.seconds,
            model=case.request.model.name,
            target=case.request.target,
            origin=origin,
            fix=search.with_captured(fix),
        )
        with self._lock:
            self.found[key_of(case)] = stored = run_fixes.append(self._folder, run_fix)
            self._progress.on_fix(stored)

    def _report(self, case: Result, what: str) -> None:
        if self._stop.is_set():
            raise CancelledError
        self._progress.on_step(case.request.model.name, what)


def sampled_cases(cases: Sequence[Result]) -> dict[str, tuple[Result, ...]]:
    """Place -> the cases on which it is searched; the place of most models first."""
    having: defaultdict[str, list[Result]] = defaultdict(list)
    for case in cases:
        for place in places_of(case):
            having[place].append(case)
    ranked = sorted(having, key=lambda place: (-len(having[place]), place))
    return {place: tuple(sorted(having[place], key=_rank)[:SAMPLES]) for place in ranked}


def ordered(cases: Sequence[Result]) -> tuple[Result, ...]:
    """Return the cases in the order in which they are worked on.

    First one model of each place, then a second and a third one, then all others: whatever limit
    ends it, the places that many models share are done.
    """
    samples = sampled_cases(cases).values()
    first = (chosen[n] for n in range(SAMPLES) for chosen in samples if n < len(chosen))
    return tuple({key_of(case): case for case in (*first, *sorted(cases, key=_rank))}.values())


def _rank(case: Result) -> tuple[int, int, str]:
    """The most downloaded first, then the smallest."""
    model, size = case.request.model, case.parameters
    return -(model.downloads or 0), size if size is not None else 2**63, model.name


def known_changes(case: Result, known: Sequence[records.RunFix]) -> tuple[search.Changes, bool]:
    """Return known changes to try first, and if all are needed.

    They are the smallest set that removed all graph breaks of the case elsewhere; of equal ones the
    one that did for most models. Without one, those that removed one of them each are joined.
    """
    places = places_of(case)
    covering = [run_fix for run_fix in known if run_fix.fix.removed >= places]
    if covering:
        times = Counter(search.names_of(run_fix.fix.changes) for run_fix in covering)
        best = min(
            covering,
            key=lambda r: (len(r.fix.changes), -times[search.names_of(r.fix.changes)]),
        )
        return best.fix.changes, best.fix.removed == places
    parts: list[records.RunFix] = []
    for place in sorted(places):
        having = [run_fix for run_fix in known if place in run_fix.fix.removed]
        parts += [min(having, key=lambda r: len(r.fix.changes))] if having else []
    changes = {change.name: change for part in parts for change in part.fix.changes}.values()
    kinds = list(records.FixKind)
    ranked = sorted(changes, key=lambda change: kinds.index(change.kind))
    removed = frozenset().union(*(part.fix.removed for part in parts))
    return tuple(ranked), removed == places


def summarised(stored: StoredRun, notes: Sequence[str]) -> dict[str, Any]:
    """Return what is stored for the cases of a run, as `--json` prints it.

    `states` and `downloads` are by state. `places` are the distinct fingerprints of graph breaks,
    `removed` those that a verified fix removes from one model at least. `searches` counts the
    searches; the others got by with known changes. `seconds` is the time of all of it.
    """
    view, damaged = run_fixes.view_of_run(stored, None)
    by_state: dict[records.FixStatus, list[Result]] = {state: [] for state in run_fixes.STATES}
    for case, state, _ in view.by_state():
        by_state[state].append(case)
    fixes = [run_fix.fix for run_fix in view.found]
    places = {place for case in view.cases for place in places_of(case)}
    return {
        "run": stored.run.id,
        "states": {state: len(cases) for state, cases in by_state.items()},
        "downloads": {s: downloads_of(c.request.model for c in by_state[s]) for s in by_state},
        "places": len(places),
        "removed": len(places & frozenset().union(*(fix.removed for fix in fixes))),
        "searches": sum(run_fix.origin is records.FixOrigin.SEARCH for run_fix in view.found),
        "evaluations": sum(len(fix.trials) for fix in fixes),
        "seconds": round(sum(fix.seconds for fix in fixes), 1),
        "total": verified_total(view.cases, view.model_fixes),
        "fixes": view.found,
        "notes": (*damaged, *notes),
    }


def exit_status(summary: dict[str, Any]) -> int:
    """0 if all have a single graph, verified; 3 if a limit left some; 1 for anything else."""
    states = summary["states"]
    if states[records.FixStatus.NOT_SEARCHED]:
        return 3
    return 0 if states[records.FixStatus.VERIFIED] == sum(states.values()) else 1


def summary_text(summary: dict[str, Any]) -> RenderableType:
    """What `fix --all-of` prints at its end."""
    total, downloads = summary["total"], summary["downloads"]
    rows = [
        (status_text(state), f"{count:,}", quantity(downloads[state]))
        for state, count in summary["states"].items()
        if count
    ]
    parts: list[RenderableType] = [table(("Graph breaks", ">Models", ">Downloads"), rows)]
    lines = [plain(f"note: {note}", "yellow") for note in summary["notes"]]
    if total is not None:
        if total.changes:
            changes = [(name, f"{models:,}") for name, models in total.changes.items()]
            parts.append(table(("Part of verified fixes", ">Models"), changes))
        lines.append(plain(verified_total_words(total), "bold"))
    counts = (
        f"{summary['removed']:,} of {plural(summary['places'], 'place')} removed",
        plural(summary["searches"], "search", "searches"),
        plural(summary["evaluations"], "evaluation"),
        f"{summary['seconds']:,.0f} s",
    )
    lines.append(plain("; ".join(counts), "dim"))
    return spaced([*parts, Group(*lines)])
