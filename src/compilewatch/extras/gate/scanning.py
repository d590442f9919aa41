"""A session's findings for code scanning: SARIF, and GitLab's code quality report."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compilewatch.extras.gate.findings import BreakPlace, Finding
from compilewatch.extras.gate.session import GateSession
from compilewatch.files import write_atomically
from compilewatch.report import sarif
from compilewatch.report.sarif import SarifLocation, SarifResult, State


def write_sarif(path: Path, session: GateSession) -> None:
    """Write all findings: new ones as errors, known ones as warnings, other packages' as notes.

    Resolved breaks are results without a fault. They are left out under GitHub Actions, since
    GitHub would show them as open.
    """
    results = list(_results(session))
    if not os.environ.get("GITHUB_ACTIONS"):
        results += _resolved(session)
    problems = [
        f"{check.name}: {problem}" for check in session.checks for problem in check.problems
    ]
    sarif.write(path, results, problems)


def write_code_quality(path: Path, session: GateSession) -> None:
    """Write the new breaks of own code as GitLab's code quality report. Raises OSError."""
    entries: list[dict[str, Any]] = []
    for each, _ in _distinct(session):
        if not each.new:
            continue
        identity = "\0".join((*each.identity, each.source_line))
        entries.append(
            {
                "description": f"graph break: {each.reason} in {each.place.function}",
                "check_name": each.code,
                "fingerprint": hashlib.sha256(identity.encode()).hexdigest(),
                "severity": "major",
                "location": {
                    "path": session.in_repository(each.place.file),
                    "lines": {"begin": each.place.line},
                },
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(entries, indent=2, ensure_ascii=False).encode() + b"\n")


def _distinct(session: GateSession) -> Iterator[tuple[Finding, tuple[str, ...]]]:
    """Each break once, with the names of the checks that met it; new if it is in any of them."""
    found: dict[tuple[object, ...], Finding] = {}
    checks: dict[tuple[object, ...], list[str]] = {}
    for check in session.checks:
        for each in check.findings:
            key = (*each.identity, each.place.line)
            if key not in found or each.new:
                found[key] = each
            if check.name not in checks.setdefault(key, []):
                checks[key].append(check.name)
    for at, finding in found.items():
        yield finding, tuple(checks[at])


def _results(session: GateSession) -> Iterator[SarifResult]:
    for each, checks in _distinct(session):
        yield SarifResult(
            code=each.code,
            reason=each.reason,
            level="error" if each.new else "warning" if each.own else "note",
            state=_state(each),
            fingerprint=each.fingerprint,
            location=_location(session, each.place, each.source_line, installed=not each.own),
            explanation=each.explanation,
            hints=each.hints,
            path=tuple(_location(session, place) for place in each.path),
            checks=checks,
        )


def _state(finding: Finding) -> State | None:
    """A baseline says nothing of other packages."""
    if not finding.own:
        return None
    return "new" if finding.new else "unchanged"


def _resolved(session: GateSession) -> Iterator[SarifResult]:
    for known in session.resolved:
        identity = "\0".join(known.identity)
        yield SarifResult(
            code=known.code,
            reason=known.reason or known.code,
            level="none",
            state="absent",
            fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:12],
            location=SarifLocation(file=session.in_repository(known.file), function=known.function),
            checks=known.checks,
        )


def _location(
    session: GateSession, place: BreakPlace, text: str = "", *, installed: bool = False
) -> SarifLocation:
    return SarifLocation(
        file=place.file if installed else session.in_repository(place.file),
        line=place.line,
        function=place.function,
        text=text,
        installed=installed,
    )
