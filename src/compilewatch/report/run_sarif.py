"""The graph breaks of a stored run as results of a SARIF file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from compilewatch.contract.targets import target_label
from compilewatch.records import FactoryBuild, GraphBreak, Request, Result, Status
from compilewatch.records.labels import reason_label, source_line
from compilewatch.records.views import RunView
from compilewatch.report.sarif import SarifLocation, SarifResult, State, write


def write_run(path: Path, view: RunView) -> None:
    """Write the breaks of a run, each place once, and its errors. Raises OSError.

    The state of a break is relative to the run's baseline: it is unchanged if any model already had
    it. Resolved ones are absent.
    """
    problems = [
        f"{_name(result.request)}: {result.status.value} in {result.phase.value}: {result.detail}"
        for result in view.results
        if result.status in (Status.ERROR, Status.TIMEOUT, Status.OOM, Status.CRASHED)
    ]
    write(path, results_of(view), problems)


def results_of(view: RunView) -> tuple[SarifResult, ...]:
    """Return each place of a break once, with the models that have it."""
    found: dict[tuple[str, str, int | None], SarifResult] = {}
    for each in _every(view):
        key = (each.fingerprint, each.location.file, each.location.line)
        known = found.get(key)
        if known is not None:
            state = "unchanged" if "unchanged" in (known.state, each.state) else known.state
            checks = tuple(dict.fromkeys((*known.checks, *each.checks)))
            each = replace(known, state=state, checks=checks)
        found[key] = each
    met = {each.fingerprint for each in found.values() if each.state != "absent"}
    return tuple(e for e in found.values() if e.state != "absent" or e.fingerprint not in met)


def _every(view: RunView) -> Iterator[SarifResult]:
    changed = {(change.model, change.target) for change in view.changes}
    for result in view.results:
        request = result.request
        old = view.before.get((request.model.name, request.target))
        before = {each.fingerprint for each in old.breaks} if old is not None else set()
        same = old is None and (request.model.name, request.target) not in changed
        folders = _folders(request)
        for each in result.breaks:
            state: State | None = None
            if view.baseline is not None:
                state = "unchanged" if same or each.fingerprint in before else "new"
            yield _result(each, result, folders, state)
        gone = before - {each.fingerprint for each in result.breaks}
        for each in old.breaks if old is not None and result.is_verdict else ():
            if each.fingerprint in gone:
                yield replace(_result(each, result, folders, "absent"), level="none", path=())


def _result(
    found: GraphBreak, result: Result, folders: Sequence[tuple[str, Path]], state: State | None
) -> SarifResult:
    place = _location(found.file, found.line, found.function, folders)
    frames = (_location(f.file, f.line, f.function, folders) for f in found.user_stack)
    return SarifResult(
        code=found.code,
        reason=reason_label(found),
        level="note" if place.installed else "warning",
        fingerprint=found.fingerprint,
        location=replace(place, text=source_line(found)),
        state=state,
        explanation=found.explanation,
        hints=found.hints,
        path=tuple(frames)[-100:],
        checks=(_name(result.request),),
    )


def _location(
    file: str, line: int, function: str, folders: Sequence[tuple[str, Path]]
) -> SarifLocation:
    """A file below the current folder is the repository's; others lie where packages do."""
    for prefix, folder in folders:
        if (folder / file).is_file():
            return SarifLocation(file=f"{prefix}{file}", line=line or None, function=function)
    return SarifLocation(file=file, line=line or None, function=function, installed=True)


def _folders(request: Request) -> tuple[tuple[str, Path], ...]:
    """The folders below the current one that have a model's code, with their relative paths."""
    build, here = request.model.build, Path.cwd()
    further = map(Path, build.python_path) if isinstance(build, FactoryBuild) else ()
    found: dict[str, Path] = {}
    for folder in (*further, here, here / "src"):
        if folder.is_relative_to(here):
            inside = folder.relative_to(here).as_posix()
            found["" if inside == "." else f"{inside}/"] = folder
    return tuple(found.items())


def _name(request: Request) -> str:
    return f"{request.model.name} on {target_label(request.target)}"
