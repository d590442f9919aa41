"""All checks of one session, of pytest or of the command, and the baseline after them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from compilewatch.errors import CompilewatchError, StoreError
from compilewatch.extras.gate import judgement
from compilewatch.extras.gate.baseline import ATTRIBUTES, KnownBreak, Renewal, renewal, save
from compilewatch.extras.gate.own_code import clone_of
from compilewatch.files import write_atomically
from compilewatch.records import Status, reason_label, source_line, source_lines
from compilewatch.report.sarif import Level, SarifLocation, SarifResult, State, encoded
from compilewatch.report.wording import plural, registry_page

_COMPLETE = frozenset({Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH})
"""Statuses after which all breaks of a check are known."""

_MOST_ELSEWHERE = 20

_MOST_FINDINGS = 50
"""GitHub's summary of a step has at most a MiB, and nobody reads more than this."""

_MOST_ANNOTATIONS = 10
"""GitHub shows ten errors of a step."""

_SARIF_STATES: dict[str, tuple[Level, State | None]] = {
    "new": ("error", "new"),
    "known": ("warning", "unchanged"),
    "moved": ("warning", "unchanged"),
    "elsewhere": ("note", None),  # a baseline says nothing of other packages
}


class GateSession:
    """What the checks met by name, and the known breaks before them.

    `changes` says what a renewal changed in the baseline, `problems` what it could not.
    """

    def __init__(
        self,
        root: Path,
        reports: Mapping[str, Sequence[judgement.CheckReport]],
        *,
        update: str,
        baseline: str | None = None,
        partial: Set[str] = frozenset(),
    ) -> None:
        """Take what was reported in a repository; `baseline` is an option with its path.

        `update` is the command that renews the baseline. `partial` are the names of the checks that
        may have ended before all of their parts.
        """
        self.reports, self.update, self._partial = reports, update, partial
        self.rules, self.path = judgement.Rules(root=root), root
        self.before: tuple[KnownBreak, ...] = ()
        self.changes: list[str] = []
        self.problems: list[str] = []
        # What cannot be read each check has said, and nothing is written over it.
        with suppress(CompilewatchError):
            self.rules, self.path, self.before = judgement.opened(root, baseline=baseline)

    @property
    def name(self) -> str:
        """The path of the baseline as messages say it."""
        inside = self.path.is_relative_to(self.rules.root)
        return self.path.relative_to(self.rules.root).as_posix() if inside else str(self.path)

    def in_clone(self, file: str) -> str:
        """The path of an own file relative to the top of the clone, which may hold more projects.

        Code scanning and annotations count from there.
        """
        top = clone_of(self.rules.root)
        path = Path(self.rules.root, file).resolve()
        return path.relative_to(top).as_posix() if path.is_relative_to(top) else file

    @property
    def checks(self) -> tuple[judgement.CheckReport, ...]:
        return tuple(check for reports in self.reports.values() for check in reports)

    @cached_property
    def breaks(self) -> tuple[tuple[judgement.JudgedBreak, tuple[str, ...]], ...]:
        """Each place once, with the checks that met it; new if it is in any of them."""
        places: dict[tuple[str, int, str], judgement.JudgedBreak] = {}
        checks: dict[tuple[str, int, str], list[str]] = {}
        for check in self.checks:
            for graph_break in check.breaks:
                if graph_break.place not in places or graph_break.state == "new":
                    places[graph_break.place] = graph_break
                names = checks.setdefault(graph_break.place, [])
                names += [check.name] if check.name not in names else []
        return tuple((graph_break, tuple(checks[place])) for place, graph_break in places.items())

    def of_state(self, state: str) -> tuple[judgement.JudgedBreak, ...]:
        """The places with a state, each once."""
        return tuple(graph_break for graph_break, _ in self.breaks if graph_break.state == state)

    @cached_property
    def renewal(self) -> Renewal:
        """What the checks mean for the baseline."""
        met: dict[str, list[tuple[KnownBreak, KnownBreak | None]]] = {}
        ended: set[str] = set()
        for name, reports in self.reports.items():
            met[name] = [(b.entry, b.known) for r in reports for b in r.breaks if b.own]
            if name not in self._partial and all(report.status in _COMPLETE for report in reports):
                ended.add(name)
        return renewal(self.before, met, ended, self.rules.removed)

    @property
    def resolved(self) -> tuple[KnownBreak, ...]:
        """The known breaks that none of their checks met any more."""
        return self.renewal.resolved

    @property
    def twice(self) -> tuple[str, ...]:
        """A line for each entry of the baseline that several places are said to have moved from.

        One check sees one of them only, so that each passed.
        """
        places: dict[KnownBreak, set[KnownBreak]] = {}
        for graph_break in self.of_state("moved"):
            if graph_break.known is not None:
                places.setdefault(graph_break.known, set()).add(graph_break.entry)
        return tuple(
            f"{len(several)} places cannot all have moved from {known}: "
            + ", ".join(f"{entry.function} in {entry.file}" for entry in sorted(several))
            for known, several in places.items()
            if len(several) > self.before.count(known)
        )

    def strict_problems(self) -> Iterator[str]:
        """Yield what `--strict` fails for: resolved breaks, entries without a reason or a link."""
        if self.resolved:
            yield f"strict: {plural(len(self.resolved), 'known break')} resolved"
        for known in sorted(set(self.renewal.kept)):
            missing = [name for name in ("why", "link") if not getattr(known, name)]
            if missing:
                yield f"strict: {self.name} has no {' and no '.join(missing)} for {known}"

    def end(
        self, *, update: bool, strict: bool, **outputs: str | None
    ) -> tuple[list[str], list[str]]:
        """Renew the baseline with `update`, otherwise reject what does not fit it; write files.

        `outputs` are those of `write_outputs`. Returns the lines of what fails, and of what could
        not be written.
        """
        rejected: list[str] = []
        if update:
            self.renew()
        else:
            rejected += [*self.twice, *(self.strict_problems() if strict else ())]
        return rejected, [*self.problems, *write_outputs(self, **outputs)]

    def renew(self) -> None:
        """Write the baseline, and remember what changed. A damaged one is left as it is."""
        if self.path.is_dir():
            return
        before, after = self.before, self.renewal.known
        try:
            written = save(self.path, after)
        except (OSError, CompilewatchError) as error:
            self.problems.append(f"the baseline is not renewed: {error}")
            return
        if not written:
            self.changes.append(f"{self.name} is up to date")
            return
        self.changes.append(f"{self.name} written: {plural(len(after), 'known break')}")
        if ATTRIBUTES in written:
            self.changes.append(f"{ATTRIBUTES} written: git merges two updates line by line")
        old, new = [entry.identity for entry in before], [entry.identity for entry in after]
        self.changes += [f"  + {entry}" for entry in after if entry.identity not in old]
        self.changes += [f"  - {entry}" for entry in before if entry.identity not in new]

    def counts(self) -> dict[str, int]:
        """The numbers of the table, by their names in it; places are counted once."""
        return {
            "checks": len(self.checks),
            "new": len(self.of_state("new")),
            "known": len(self.of_state("known")),
            "moved": len(self.of_state("moved")),
            "resolved": len(self.resolved),
            "in other packages": len(self.of_state("elsewhere")),
            "recompilations": sum(check.recompilations for check in self.checks),
        }

    def lines(self) -> Iterator[str]:
        """The table at the end of a session, other packages' breaks, and what changed."""
        yield "  ".join(f"{name}: {count}" for name, count in self.counts().items())
        elsewhere = self.of_state("elsewhere")
        for graph_break in elsewhere[:_MOST_ELSEWHERE]:
            yield f"in another package: {place_line(graph_break)}"
        if len(elsewhere) > _MOST_ELSEWHERE:
            yield f"… and {len(elsewhere) - _MOST_ELSEWHERE} more in other packages"
        if self.changes:
            yield from self.changes
            return
        for graph_break in self.of_state("moved"):
            yield f"{graph_break.note}: {place_line(graph_break)}"
        for known in self.resolved:
            yield f"resolved: {known}"
        if self.resolved or self.of_state("moved"):
            yield f"renew {self.name} with: {self.update}"


def place_line(graph_break: judgement.JudgedBreak) -> str:
    """A graph break in one line: where it is, and why."""
    place = f"{graph_break.file}:{graph_break.line} in {graph_break.function}"
    return f"{place}: {reason_label(graph_break)}"


# --- what checks met, in words --------------------------------------------------------------------


def failure(
    report: judgement.CheckReport, *, update: str, verbose: bool = False, fix: Iterable[str] = ()
) -> str:
    """Return the message of a failed check; `verbose` adds Dynamo's own texts and tracebacks.

    `update` is the option with which its command accepts the new breaks, `fix` what is said of a
    fix of them.
    """
    new = report.of("new")
    lines = [f"{plural(len(new), 'new graph break')} in own code"] if new else []
    for graph_break in new:
        lines += ["", *_break_lines(graph_break, verbose=verbose)]
    if report.problems:
        lines += ["", *report.problems] if lines else report.problems
    if verbose and report.error:
        lines += ["", *report.error.splitlines()]
    if new:
        again = f"reproduce:  {report.command}"
        lines += ["", *fix, again, f"accept:     {report.command} {update}"]
    return "\n".join(lines)


def _break_lines(graph_break: judgement.JudgedBreak, *, verbose: bool = False) -> Iterator[str]:
    """The place, the reason, the numbered lines around it, and the way to it in the own code."""
    yield place_line(graph_break)
    if graph_break.note:
        yield f"  ({graph_break.note})"
    lines = source_lines(graph_break)
    for number, text in lines:
        mark = ">" if number == graph_break.line else " "
        yield f"  {mark} {number:>{len(str(lines[-1][0]))}} | {text}".rstrip()
    if len(graph_break.user_stack) > 1:
        yield "  reached through:"
        for frame in graph_break.user_stack:
            yield f"    {frame.file}:{frame.line} in {frame.function}"
    if verbose:
        yield from (f"  {line}" for line in graph_break.reason.strip().splitlines())


def markdown(session: GateSession) -> str:
    """Return the summary: the table, new breaks with their code, what else fails."""
    counts = session.counts()
    lines = [
        "### compilewatch",
        "",
        f"| {' | '.join(counts)} |",
        f"|{'---:|' * len(counts)}",
        f"| {' | '.join(map(str, counts.values()))} |",
    ]
    new = session.of_state("new")
    for graph_break in new[:_MOST_FINDINGS]:
        page, code = registry_page(graph_break.code), graph_break.code
        lines += ["", f"**New:** {f'[{code}]({page})' if page else code}", ""]
        lines += _block(_break_lines(graph_break))
    if len(new) > _MOST_FINDINGS:
        lines += ["", f"… and {len(new) - _MOST_FINDINGS} more new graph breaks"]
    failed = [check for check in session.checks if check.problems]
    for check in failed[:_MOST_FINDINGS]:
        name = re.sub(r"([\\`*_\[\]|#])", r"\\\1", check.name).replace("<", "&lt;")
        lines += ["", f"**{name}**", "", *_block(check.problems)]
    further = list(session.lines())[1:]
    if further:
        lines += ["", *_block(further)]
    return "\n".join(lines) + "\n"


def _block(lines: Iterable[str]) -> Iterator[str]:
    """A fenced block that none of its lines can end."""
    content = list(lines)
    fence = "```"
    while any(fence in line for line in content):
        fence += "`"
    yield from (f"{fence}text", *content, fence)


# --- files for machines ---------------------------------------------------------------------------


def write_outputs(
    session: GateSession,
    *,
    sarif: str | None = None,
    summary: str | None = None,
    code_quality: str | None = None,
) -> Iterator[str]:
    """Write the files with these paths; yield a line for each one that could not be written."""
    page = markdown(session).encode()
    problems = [f"{check.name}: {line}" for check in session.checks for line in check.problems]
    for name, content in (
        (sarif, encoded(_results(session), problems) if sarif else b""),
        (summary, page),
        (code_quality, _code_quality(session)),
    ):
        if name is None:
            continue
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(Path(name), content)
        except (OSError, StoreError) as error:
            yield f"{name} cannot be written: {getattr(error, 'strerror', '') or error}"
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(path).open("ab") as stream:
                stream.write(page)
        except OSError as error:
            yield f"GITHUB_STEP_SUMMARY cannot be written: {error.strerror or error}"


def _results(session: GateSession) -> Iterator[SarifResult]:
    """All breaks: new ones as errors, known ones as warnings, other packages' as notes."""
    for graph_break, checks in session.breaks:
        own = graph_break.own
        level, state = _SARIF_STATES[graph_break.state]
        file = session.in_clone(graph_break.file) if own else graph_break.file
        yield SarifResult(
            graph_break=graph_break,
            level=level,
            state=state,
            location=SarifLocation(
                file=file,
                line=graph_break.line,
                function=graph_break.function,
                text=source_line(graph_break).strip(),
                installed=not own,
            ),
            path=tuple(
                SarifLocation(file=session.in_clone(f.file), line=f.line, function=f.function)
                for f in (graph_break.user_stack if own else ())
            ),
            checks=checks,
        )


def _code_quality(session: GateSession) -> bytes:
    """The new breaks of own code as GitLab's code quality report."""
    entries = [
        {
            "description": f"graph break: {reason_label(graph_break)} in {graph_break.function}",
            "check_name": graph_break.code,
            "fingerprint": hashlib.sha256(
                "\0".join(graph_break.entry.identity).encode()
            ).hexdigest(),
            "severity": "major",
            "location": {
                "path": session.in_clone(graph_break.file),
                "lines": {"begin": graph_break.line},
            },
        }
        for graph_break in session.of_state("new")
    ]
    return json.dumps(entries, indent=2, ensure_ascii=False).encode() + b"\n"


def error_commands(session: GateSession, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Under GitHub Actions, the lines of a log that mark new breaks in the changed files."""
    if environ.get("GITHUB_ACTIONS") != "true":
        return
    for graph_break in session.of_state("new")[:_MOST_ANNOTATIONS]:
        file = _data(session.in_clone(graph_break.file)).replace(":", "%3A").replace(",", "%2C")
        line = source_line(graph_break).strip()
        text = _data(f"{reason_label(graph_break)} in {graph_break.function}\n{line}".strip())
        yield f"::error file={file},line={graph_break.line},title=New graph break::{text}"


def _data(text: str) -> str:
    """The message of one of GitHub's commands (docs.github.com, "Workflow commands")."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
