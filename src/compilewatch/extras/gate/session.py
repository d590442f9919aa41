"""All checks of one session, of pytest or of the command, and the baseline after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from compilewatch.errors import CompilewatchError
from compilewatch.extras.gate.baseline import ATTRIBUTES, KnownBreak, Renewal, load, renewal, save
from compilewatch.extras.gate.judgement import CheckReport, JudgedBreak, removed_from
from compilewatch.extras.gate.own_code import clone_of
from compilewatch.extras.gate.settings import Rules, baseline_path, project_settings, rules_of
from compilewatch.records import Status, reason_label
from compilewatch.report.wording import plural

_COMPLETE = frozenset({Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH})
"""Statuses after which all breaks of a check are known."""

_MOST_ELSEWHERE = 20


@dataclass(kw_only=True)
class GateSession:
    """What the checks met by name, and the known breaks before them.

    `partial` are the names of those that may have ended before all of their checks. `update` is the
    command that renews the baseline; `changes` says what it changed, `problems` what it could not.
    """

    rules: Rules
    path: Path
    before: Sequence[KnownBreak]
    reports: Mapping[str, Sequence[CheckReport]]
    update: str
    partial: frozenset[str] = frozenset()
    changes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        root: Path,
        reports: Mapping[str, Sequence[CheckReport]],
        *,
        update: str,
        baseline: str | None = None,
        partial: frozenset[str] = frozenset(),
    ) -> GateSession:
        """Return the session of what was reported; `baseline` is an option with its path."""
        rules, path = Rules(root=root), root
        before: tuple[KnownBreak, ...] = ()
        try:
            settings = project_settings(root)
            rules = rules_of(root, settings)
            path = baseline_path(root, settings, baseline)
            before = load(path, both_sides=True)
        except CompilewatchError:  # each check has said so, and nothing is written over it
            path = root
        return cls(
            rules=rules, path=path, before=before, reports=reports, update=update, partial=partial
        )

    @property
    def name(self) -> str:
        """The path of the baseline as messages say it."""
        root = self.rules.root
        inside = self.path.is_relative_to(root)
        return self.path.relative_to(root).as_posix() if inside else str(self.path)

    def in_clone(self, file: str) -> str:
        """The path of an own file relative to the top of the clone, which may hold more projects.

        Code scanning and annotations count from there.
        """
        top = clone_of(self.rules.root)
        path = Path(self.rules.root.resolve(), file)
        return (
            path.resolve().relative_to(top).as_posix()
            if path.resolve().is_relative_to(top)
            else file
        )

    @property
    def checks(self) -> tuple[CheckReport, ...]:
        return tuple(check for reports in self.reports.values() for check in reports)

    @cached_property
    def breaks(self) -> tuple[tuple[JudgedBreak, tuple[str, ...]], ...]:
        """Each place once, with the checks that met it; new if it is in any of them."""
        places: dict[tuple[str, int, str], JudgedBreak] = {}
        checks: dict[tuple[str, int, str], list[str]] = {}
        for check in self.checks:
            for graph_break in check.breaks:
                if graph_break.place not in places or graph_break.state == "new":
                    places[graph_break.place] = graph_break
                names = checks.setdefault(graph_break.place, [])
                names += [check.name] if check.name not in names else []
        return tuple((graph_break, tuple(checks[place])) for place, graph_break in places.items())

    def of_state(self, state: str) -> tuple[JudgedBreak, ...]:
        """The places with a state, each once."""
        return tuple(graph_break for graph_break, _ in self.breaks if graph_break.state == state)

    @cached_property
    def renewal(self) -> Renewal:
        """What the checks mean for the baseline."""
        met: dict[str, list[tuple[KnownBreak, KnownBreak | None]]] = {}
        ended: set[str] = set()
        for name, reports in self.reports.items():
            met[name] = [(b.entry, b.known) for r in reports for b in r.breaks if b.own]
            if name not in self.partial and all(report.status in _COMPLETE for report in reports):
                ended.add(name)
        return renewal(self.before, met, ended, removed_from(self.rules))

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
            + ", ".join(
                f"{graph_break.function} in {graph_break.file}" for graph_break in sorted(several)
            )
            for known, several in places.items()
            if len(several) > list(self.before).count(known)
        )

    def strict_problems(self) -> Iterator[str]:
        """Yield what `--strict` fails for: resolved breaks, entries without a reason or a link."""
        if self.resolved:
            yield f"strict: {plural(len(self.resolved), 'known break')} resolved"
        for known in sorted(set(self.renewal.kept)):
            missing = [name for name in ("why", "link") if not getattr(known, name)]
            if missing:
                yield f"strict: {self.name} has no {' and no '.join(missing)} for {known}"

    def renew(self) -> None:
        """Write the baseline, and remember what changed. A damaged one is left as it is."""
        if self.path.is_dir():
            return
        before, after = self.before, self.renewal.known
        attributes = self.path.with_name(ATTRIBUTES)
        written = attributes.exists() and attributes.read_bytes()
        try:
            if not save(self.path, after):
                self.changes.append(f"{self.name} is up to date")
                return
        except (OSError, CompilewatchError) as error:
            self.problems.append(f"the baseline is not renewed: {error}")
            return
        self.changes.append(f"{self.name} written: {plural(len(after), 'known break')}")
        if written != (attributes.exists() and attributes.read_bytes()):
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
        yield from self.elsewhere()
        if self.changes:
            yield from self.changes
            return
        for graph_break in self.of_state("moved"):
            yield f"{graph_break.note}: {place_line(graph_break)}"
        for known in self.resolved:
            yield f"resolved: {known}"
        if self.resolved or self.of_state("moved"):
            yield f"renew {self.name} with: {self.update}"

    def elsewhere(self) -> Iterator[str]:
        """Yield a line for each break in another package."""
        breaks = self.of_state("elsewhere")
        for graph_break in breaks[:_MOST_ELSEWHERE]:
            yield f"in another package: {place_line(graph_break)}"
        if len(breaks) > _MOST_ELSEWHERE:
            yield f"… and {len(breaks) - _MOST_ELSEWHERE} more in other packages"


def place_line(graph_break: JudgedBreak) -> str:
    """A graph break in one line: where it is, and why."""
    place = f"{graph_break.file}:{graph_break.line} in {graph_break.function}"
    return f"{place}: {reason_label(graph_break)}"
