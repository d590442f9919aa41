"""All checks of one session, of pytest or of the command, and the baseline after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compilewatch.errors import CompilewatchError
from compilewatch.extras.gate.baseline import Identity, KnownBreak, load, renewed, resolved, save
from compilewatch.extras.gate.findings import CheckReport, known_breaks
from compilewatch.extras.gate.settings import baseline_path, project_settings
from compilewatch.records import Status
from compilewatch.report.wording import plural

_COMPLETE = frozenset({Status.PASS, Status.GRAPH_BREAK, Status.MISMATCH})
"""Statuses after which all breaks of a check are known."""


@dataclass(kw_only=True)
class GateSession:
    """What the checks met by name, and the known breaks before them.

    `partial` are the names of those that may have ended before all of their checks. `update` is the
    command that renews the baseline; `changes` says what it changed.
    """

    root: Path
    path: Path
    before: Mapping[Identity, KnownBreak]
    reports: Mapping[str, Sequence[CheckReport]]
    update: str
    partial: frozenset[str] = frozenset()
    changes: list[str] = field(default_factory=list)

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
        try:
            path = baseline_path(root, project_settings(root), baseline)
            before = load(path)
        except CompilewatchError:  # each check has said so, and nothing is written over it
            path, before = root, {}
        return cls(
            root=root, path=path, before=before, reports=reports, update=update, partial=partial
        )

    @property
    def name(self) -> str:
        """The path of the baseline as messages say it."""
        inside = self.path.is_relative_to(self.root)
        return self.path.relative_to(self.root).as_posix() if inside else str(self.path)

    def in_repository(self, file: str) -> str:
        """The path of an own file relative to the top of the clone, which may hold more projects.

        Code scanning and annotations count from there.
        """
        for folder in (self.root, *self.root.parents):
            if (folder / ".git").exists():
                return (self.root.relative_to(folder) / file).as_posix()
        return file

    @property
    def checks(self) -> tuple[CheckReport, ...]:
        return tuple(each for reports in self.reports.values() for each in reports)

    @property
    def resolved(self) -> tuple[KnownBreak, ...]:
        """The known breaks that none of their checks met any more."""
        return resolved(self.before, self._met())

    def renew(self) -> None:
        """Write the baseline, and remember what changed. A damaged one is left as it is."""
        if self.path.is_dir():
            return
        after = renewed(self.before, self._met())
        if after == dict(self.before) and self.path.exists():
            self.changes.append(f"{self.name} is up to date")
            return
        save(self.path, after.values())
        added, removed = after.keys() - self.before.keys(), self.before.keys() - after.keys()
        self.changes.append(f"{self.name} written: {plural(len(after), 'known break')}")
        self.changes += [f"  + {words(after[each])}" for each in sorted(added)]
        self.changes += [f"  - {words(self.before[each])}" for each in sorted(removed)]

    def counts(self) -> dict[str, int]:
        """The numbers of the table, by their names in it; places are counted once."""
        findings = [each for check in self.checks for each in check.findings]
        own = {each.identity for each in findings if each.own}
        return {
            "checks": len(self.checks),
            "new": len({(each.identity, each.place.line) for each in findings if each.new}),
            "known": len(own & self.before.keys()),
            "resolved": len(self.resolved),
            "in other packages": len({each.identity for each in findings if not each.own}),
            "recompilations": sum(check.recompilations for check in self.checks),
        }

    def lines(self) -> Iterator[str]:
        """The table at the end of a session, and what changed or is resolved."""
        yield "  ".join(f"{name}: {count}" for name, count in self.counts().items())
        if self.changes:
            yield from self.changes
            return
        for known in self.resolved:
            yield f"resolved: {words(known)}"
        if self.resolved:
            yield f"renew {self.name} with: {self.update}"

    def _met(self) -> dict[str, list[KnownBreak]]:
        """What each check met. One that did not end has also met what it is known to meet."""
        met: dict[str, list[KnownBreak]] = {}
        for name, reports in self.reports.items():
            found = [known for each in reports for known in known_breaks(each.findings)]
            if name in self.partial or not all(each.status in _COMPLETE for each in reports):
                found += [known for known in self.before.values() if name in known.checks]
            met[name] = found
        return met


def words(known: KnownBreak) -> str:
    """A known break in one line."""
    return f"{known.reason} in {known.function}, {known.file}"
