"""Graph breaks as a SARIF 2.1.0 file, for code scanning, editors and reviewers' tools.

A file has at most as many results as GitHub accepts (docs.github.com, "SARIF support for code
scanning"). There every result needs a location, only `primaryLocationLineHash` identifies a result,
and `baselineState` is ignored.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from compilewatch import __version__, records
from compilewatch.contract.targets import target_label
from compilewatch.files import write_atomically
from compilewatch.report.wording import plural, registry_page

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

MOST_RESULTS = 25_000

_NAME_CHARACTERS = 255
_DESCRIPTION_CHARACTERS = 1024
_TEXT_CHARACTERS = 4000

_REPOSITORY, _PACKAGES = "%SRCROOT%", "SITEPACKAGES"
_BASES = {
    _REPOSITORY: "The root of the repository.",
    _PACKAGES: "The folder of installed packages (site-packages).",
}

Level = Literal["error", "warning", "note"]
State = Literal["new", "unchanged"]

_RANK: dict[Level, int] = {"error": 0, "warning": 1, "note": 2}


class SarifLocation(records.StackFrame, frozen=True, kw_only=True):
    """A line of a file; `installed` files are relative to site-packages, others to the repository.

    Without a `line` it is the file.
    """

    line: int = 0
    function: str = ""
    installed: bool = False


@dataclass(frozen=True, kw_only=True)
class SarifResult:
    """One graph break, where a reader of the file finds it, and the calls to it (`path`).

    `state` is relative to a baseline, None without one. `checks` names what met it.
    """

    graph_break: records.GraphBreak
    level: Level
    location: SarifLocation
    state: State | None = None
    path: tuple[SarifLocation, ...] = ()
    checks: tuple[str, ...] = ()


def encoded(results: Iterable[SarifResult], problems: Sequence[str] = ()) -> bytes:
    """Return the content of a file with no more results than GitHub accepts, the gravest first.

    `problems` are messages that belong to no line of code.
    """
    every = sorted(
        results,
        key=lambda r: (
            *(_RANK[r.level], r.state == "unchanged"),
            *(r.location.file, r.location.line, r.graph_break.code),
        ),
    )
    notes = [*problems]
    if (left_out := len(every) - MOST_RESULTS) > 0:
        notes.append(f"{plural(left_out, 'result')} left out: the file would be too large")
    content = json.dumps(document(every[:MOST_RESULTS], notes), indent=1, ensure_ascii=False)
    return content.encode() + b"\n"


def document(results: Sequence[SarifResult], problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return the log as JSON values, with one run."""
    rules: dict[str, dict[str, Any]] = {}
    for result in results:
        rules.setdefault(result.graph_break.code, _rule(result.graph_break))
    index = {code: number for number, code in enumerate(rules)}
    times: Counter[str] = Counter()
    notes = [{"level": "error", "message": {"text": _cut(result)}} for result in problems]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "compilewatch",
                        "version": __version__,
                        "rules": list(rules.values()),
                    }
                },
                "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notes}],
                "originalUriBaseIds": {
                    name: {"description": {"text": text}} for name, text in _BASES.items()
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(result, index, times) for result in results],
            }
        ],
    }


def _rule(graph_break: records.GraphBreak) -> dict[str, Any]:
    page, reason = registry_page(graph_break.code), records.reason_label(graph_break)
    help_lines = [graph_break.explanation or reason, *(f"- {hint}" for hint in graph_break.hints)]
    if page is not None:
        help_lines.append(page)
    rule: dict[str, Any] = {
        "id": graph_break.code,
        "name": _cut(reason, _NAME_CHARACTERS),
        "shortDescription": {"text": _cut(reason, _DESCRIPTION_CHARACTERS)},
        "fullDescription": {
            "text": _cut(
                f"{reason}: torch.compile cannot capture this line, so the graph ends here "
                "and another one begins after it.",
                _DESCRIPTION_CHARACTERS,
            )
        },
        "help": {"text": _cut("\n".join(help_lines))},
        "defaultConfiguration": {"level": "warning"},
        "properties": {
            "tags": ["torch.compile", "graph-break"],
            "precision": "very-high",
            "problem.severity": "warning",
        },
    }
    return rule | ({"helpUri": page} if page is not None else {})


def _result(result: SarifResult, index: Mapping[str, int], times: Counter[str]) -> dict[str, Any]:
    graph_break, place = result.graph_break, result.location
    fingerprint = graph_break.fingerprint
    times[fingerprint] += 1
    where = f" in {place.function}" if place.function else ""
    text = f"{records.reason_label(graph_break)}{where}. {graph_break.explanation}".strip()
    entry: dict[str, Any] = {
        "ruleId": graph_break.code,
        "ruleIndex": index[graph_break.code],
        "level": result.level,
        "message": {"text": _cut(text)},
        "locations": [_location(place)],
        "partialFingerprints": {
            # The second line of a function with the same cause is another result.
            "primaryLocationLineHash": f"{fingerprint}:{times[fingerprint]}",
            "compilewatch/v1": fingerprint,
        },
    }
    if result.state is not None:
        entry["baselineState"] = result.state
    if len(result.path) > 1:
        flow = [{"location": _location(step)} for step in result.path]
        entry["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if result.checks:
        entry["properties"] = {"checks": list(result.checks[:100])}
    return entry


def _location(place: SarifLocation) -> dict[str, Any]:
    base = _PACKAGES if place.installed else _REPOSITORY
    physical: dict[str, Any] = {"artifactLocation": {"uri": quote(place.file), "uriBaseId": base}}
    if place.line:
        stripped = place.text.strip()
        start = place.text.find(stripped) + 1 if stripped else 1
        physical["region"] = {
            "startLine": place.line,
            "startColumn": start,
            "endLine": place.line,
            "endColumn": start + len(stripped),
        }
        if stripped:
            physical["region"]["snippet"] = {"text": _cut(stripped)}
    location: dict[str, Any] = {"physicalLocation": physical}
    if place.function:
        location["message"] = {"text": _cut(place.function)}
    return location


def _cut(text: str, most: int = _TEXT_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def write_run(path: Path, view: records.RunView) -> None:
    """Write the breaks of a run, each place once, and its errors. Raises OSError.

    The state of a break is relative to the run's baseline: it is unchanged if any model already had
    it.
    """
    problems = [
        f"{_name(result.request)}: {result.status.value} in {result.phase.value}: {result.detail}"
        for result in view.results
        if (not result.is_conclusive and result.status not in records.NOT_RUN)
        or result.status is records.Status.ERROR
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encoded(results_of(view), problems))


def results_of(view: records.RunView) -> tuple[SarifResult, ...]:
    """Return each place of a break once, with the models that have it."""
    by_place: dict[tuple[str, str, int], SarifResult] = {}
    for result in _results(view):
        place = result.location
        key = (result.graph_break.fingerprint, place.file, place.line)
        if (known := by_place.get(key)) is not None:
            state = "unchanged" if "unchanged" in (known.state, result.state) else known.state
            checks = tuple(dict.fromkeys((*known.checks, *result.checks)))
            result = replace(result, state=state, checks=checks)
        by_place[key] = result
    return tuple(by_place.values())


def _results(view: records.RunView) -> Iterator[SarifResult]:
    """Yield the breaks of each result."""
    changed = {(change.model, change.target) for change in view.changes}
    for result in view.results:
        identity = result.request.model.name, result.request.target
        old = view.before.get(identity)
        before = {b.fingerprint for b in old.breaks} if old is not None else set()
        same = old is None and identity not in changed
        folders = _folders(result.request)
        for b in result.breaks:
            state: State | None = None
            if view.baseline is not None:
                state = "unchanged" if same or b.fingerprint in before else "new"
            yield _result_of(b, result, folders, state)


def _result_of(
    graph_break: records.GraphBreak,
    result: records.Result,
    folders: Mapping[str, Path],
    state: State | None,
) -> SarifResult:
    def located(place: records.GraphBreak | records.StackFrame, text: str = "") -> SarifLocation:
        """A file below the current folder is the repository's; others lie where packages do."""
        inside = (prefix for prefix, at in folders.items() if (at / place.file).is_file())
        prefix = next(inside, None)
        return SarifLocation(
            file=f"{prefix or ''}{place.file}",
            line=place.line,
            function=place.function,
            text=text,
            installed=prefix is None,
        )

    place = located(graph_break, records.source_line(graph_break))
    return SarifResult(
        graph_break=graph_break,
        level="note" if place.installed else "warning",
        location=place,
        state=state,
        path=tuple(map(located, graph_break.user_stack))[-100:],
        checks=(_name(result.request),),
    )


def _folders(request: records.Request) -> dict[str, Path]:
    """The folders below the current one that have a model's code, with their relative paths."""
    build, here = request.model.build, Path.cwd()
    further = map(Path, build.python_path) if isinstance(build, records.FactoryBuild) else ()
    folders: dict[str, Path] = {}
    for folder in (*further, here, here / "src"):
        if folder.is_relative_to(here):
            inside = folder.relative_to(here).as_posix()
            folders["" if inside == "." else f"{inside}/"] = folder
    return folders


def _name(request: records.Request) -> str:
    return f"{request.model.name} on {target_label(request.target)}"
