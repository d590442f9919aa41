"""Graph breaks as a SARIF 2.1.0 file, for code scanning, editors and reviewers' tools.

A file is at most what GitHub accepts (docs.github.com, "SARIF support for code scanning"). There
every result needs a location, only `primaryLocationLineHash` identifies a result, and
`baselineState` is ignored.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from compilewatch import __version__
from compilewatch.files import write_atomically
from compilewatch.report.wording import plural, registry_page

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"

MOST_RESULTS = 25_000
MOST_BYTES = 10 * 1024 * 1024
"""Of the file after gzip."""

_NAME_CHARACTERS = 255
_DESCRIPTION_CHARACTERS = 1024
_TEXT_CHARACTERS = 4000

_REPOSITORY, _PACKAGES = "%SRCROOT%", "SITEPACKAGES"
_BASES = {
    _REPOSITORY: "The root of the repository.",
    _PACKAGES: "The folder of installed packages (site-packages).",
}

Level = Literal["error", "warning", "note", "none"]
State = Literal["new", "unchanged", "absent"]

_RANK: dict[Level, int] = {"error": 0, "warning": 1, "note": 2, "none": 3}


@dataclass(frozen=True, kw_only=True)
class SarifLocation:
    """A line of a file; `installed` files are relative to site-packages, others to the repository.

    Without a `line` it is the file.
    """

    file: str
    line: int | None = None
    installed: bool = False
    text: str = ""
    function: str = ""


@dataclass(frozen=True, kw_only=True)
class SarifResult:
    """One graph break. `code` is its rule, `reason` the rule's name, `path` the calls to it.

    `state` is relative to a baseline, None without one. `explanation` and `hints` help with the
    rule. `checks` names what met it.
    """

    code: str
    reason: str
    level: Level
    fingerprint: str
    location: SarifLocation
    state: State | None = None
    explanation: str = ""
    hints: tuple[str, ...] = ()
    path: tuple[SarifLocation, ...] = ()
    checks: tuple[str, ...] = field(default=())


def write(path: Path, results: Iterable[SarifResult], problems: Sequence[str] = ()) -> None:
    """Write a file with the results, the gravest first, as many as fit.

    `problems` are messages that belong to no line of code. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, encoded(results, problems))


def encoded(results: Iterable[SarifResult], problems: Sequence[str] = ()) -> bytes:
    """Return the content of a file that is no larger than what GitHub accepts."""
    every = sorted(results, key=_order)
    kept = every[:MOST_RESULTS]
    while True:
        left_out = len(every) - len(kept)
        notes = [*problems]
        if left_out:
            notes.append(f"{plural(left_out, 'result')} left out: the file would be too large")
        content = json.dumps(document(kept, notes), indent=1, ensure_ascii=False).encode()
        if not kept or len(gzip.compress(content, 6)) <= MOST_BYTES:
            return content + b"\n"
        kept = kept[: len(kept) // 2]


def _order(result: SarifResult) -> tuple[int, bool, str, int, str]:
    place = result.location
    return (
        _RANK[result.level],
        result.state == "unchanged",
        place.file,
        place.line or 0,
        result.code,
    )


def document(results: Sequence[SarifResult], problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return the log as JSON values, with one run."""
    rules: dict[str, dict[str, Any]] = {}
    for each in results:
        rules.setdefault(each.code, _rule(each))
    index = {code: number for number, code in enumerate(rules)}
    times: Counter[str] = Counter()
    notes = [{"level": "error", "message": {"text": _cut(each)}} for each in problems]
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
                "results": [_result(each, index, times) for each in results],
            }
        ],
    }


def _rule(result: SarifResult) -> dict[str, Any]:
    page = registry_page(result.code)
    help_lines = [result.explanation or result.reason, *(f"- {hint}" for hint in result.hints)]
    if page is not None:
        help_lines.append(page)
    rule: dict[str, Any] = {
        "id": result.code,
        "name": _cut(result.reason, _NAME_CHARACTERS),
        "shortDescription": {"text": _cut(result.reason, _DESCRIPTION_CHARACTERS)},
        "fullDescription": {
            "text": _cut(
                f"{result.reason}: torch.compile cannot capture this line, so the graph ends here "
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
    times[result.fingerprint] += 1
    place = result.location
    where = f" in {place.function}" if place.function else ""
    found: dict[str, Any] = {
        "ruleId": result.code,
        "ruleIndex": index[result.code],
        "level": result.level,
        "message": {"text": _cut(f"{result.reason}{where}. {result.explanation}".strip())},
        "locations": [_location(place)],
        "partialFingerprints": {
            # The second line of a function with the same cause is another result.
            "primaryLocationLineHash": f"{result.fingerprint}:{times[result.fingerprint]}",
            "compilewatch/v1": result.fingerprint,
        },
    }
    if result.level == "none":
        found["kind"] = "pass"
    if result.state is not None:
        found["baselineState"] = result.state
    if len(result.path) > 1:
        flow = [{"location": _location(each)} for each in result.path]
        found["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if result.checks:
        found["properties"] = {"checks": list(result.checks[:100])}
    return found


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
    found: dict[str, Any] = {"physicalLocation": physical}
    if place.function:
        found["message"] = {"text": _cut(place.function)}
    return found


def _cut(text: str, most: int = _TEXT_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
