"""Proven fixes that an extra stored with runs, and the public `fix`, which asks that extra."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from compilewatch import extras, plugins
from compilewatch.errors import StoreError, UsageError
from compilewatch.records import GraphBreak, Mode, Result
from compilewatch.records.views import ModelFix
from compilewatch.store import Store, StoredRun


class FixResult(Protocol):
    """What `fix` found. `print` shows it as `compilewatch fix` does.

    `status` is `proven` (a single graph), `improves` (fewer graph breaks), `nothing`, `no_break` or
    `no_verdict`, `detail` the same in one line. `breaks` are the graph breaks of the model as it
    is, `left` those that remain with the fix. `changes` are its parts, with `name` and `summary`.
    `code` is the context manager to paste, and `script` the proof, a complete script of plain
    PyTorch; both are empty without a fix. `proof` is what the script found, None without a fix.
    """

    @property
    def status(self) -> str: ...
    @property
    def detail(self) -> str: ...
    @property
    def breaks(self) -> tuple[GraphBreak, ...]: ...
    @property
    def left(self) -> tuple[GraphBreak, ...]: ...
    @property
    def changes(self) -> tuple[Any, ...]: ...
    @property
    def proof(self) -> Any: ...
    @property
    def code(self) -> str: ...
    @property
    def script(self) -> str: ...
    def to_json(self) -> str: ...


def fix(
    model: str,
    *,
    mode: str = "eval",
    dynamic: bool | None = None,
    inputs: str | None = None,
    max_evaluations: int | None = None,
    max_seconds: float | None = None,
    rewrites: bool = True,
) -> FixResult:
    """Search for changes that remove the graph breaks of a model, and prove them.

    `model` is what `compilewatch fix` takes (`BertModel`, `./net.py`, `net:factory`), and `inputs`
    what its option `--inputs` takes. Each evaluation, and the proof, has a process of its own, so
    that nothing of this process changes. `max_evaluations` (24) and `max_seconds` (600) limit the
    search; without `rewrites`, nothing is tried that edits the source of a library.

    Raises UsageError for arguments that cannot be meant, and MissingExtraError without the extra
    `fixes`.
    """
    if not isinstance(model, str):
        raise UsageError(
            "fix takes a model by its name, such as './net.py:build', because each evaluation "
            "builds it anew in a process of its own"
        )
    if mode not in set(Mode):
        raise UsageError(f"mode is 'eval' or 'train', not {mode!r}")
    found: FixResult = plugins.provided("fix", "fix")(
        model,
        mode=mode,
        dynamic=dynamic,
        inputs=inputs,
        max_evaluations=max_evaluations,
        max_seconds=max_seconds,
        rewrites=rewrites,
    )
    return found


@dataclass(frozen=True, kw_only=True)
class StoredFix:
    """A proven fix of a stored run for graph breaks of another result.

    `covered` are the fingerprints of that result which the fix removed from the model `fix.model`.
    """

    run: str
    fix: ModelFix
    covered: frozenset[str]


def stored_fixes(stored: StoredRun) -> tuple[tuple[ModelFix, ...], tuple[str, ...]]:
    """Return what is stored of the fixes of a run, and notes on what cannot be read."""
    fixes: list[ModelFix] = []
    notes: list[str] = []
    for _, reference in extras.of_run(stored.path, "fixes"):
        try:
            found, said = plugins.load(reference)(stored)
        except StoreError as error:
            found, said = (), [str(error)]  # the results of the run are readable without it
        fixes += found
        notes += said
    return tuple(fixes), tuple(notes)


def stored_fix_for(store: Store, result: Result) -> StoredFix | None:
    """Return a proven fix of the newest run that has one for the graph breaks of a result.

    One of the same model comes first, then the one that removed most of these graph breaks.
    """
    wanted = {each.fingerprint for each in result.breaks}
    if not wanted:
        return None
    name = result.request.model.name
    for stored in store.runs():
        candidates = list(_of_run(stored, wanted))
        if candidates:
            return max(candidates, key=lambda each: (each.fix.model == name, *_worth(each)))
    return None


def _worth(found: StoredFix) -> tuple[int, bool, int]:
    return len(found.covered), found.fix.single_graph, -len(found.fix.changes)


def _of_run(stored: StoredRun, wanted: set[str]) -> Iterator[StoredFix]:
    fixes: Sequence[ModelFix] = stored_fixes(stored)[0]
    for fix in fixes:
        covered = frozenset(wanted & fix.removed)
        if fix.proven and covered:
            yield StoredFix(run=stored.run.id, fix=fix, covered=covered)
