"""All checks of one pytest session, and the baseline after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import CompilewatchError
from compilewatch.extras.gate.baseline import Identity, KnownBreak, load, renewed, resolved, save
from compilewatch.extras.gate.settings import baseline_path, project_settings


@dataclass(kw_only=True)
class GateSession:
    """What the checks met by test, and the known breaks before them."""

    path: Path
    name: str
    before: Mapping[Identity, KnownBreak]
    met: Mapping[str, Sequence[KnownBreak]]
    checks: Sequence[Mapping[str, Any]]
    changes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, config: pytest.Config, collected: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> GateSession:
        """Return the session from what its tests reported."""
        root = config.rootpath
        try:
            settings = project_settings(root)
            path = baseline_path(root, settings, config.getoption("--compilewatch-baseline"))
            before = load(path)
        except CompilewatchError:  # each check has said so
            path, before = root, {}
        met = {
            test: [
                KnownBreak(**known | {"checks": ()}) for check in checks for known in check["own"]
            ]
            for test, checks in collected.items()
        }
        every = [check for checks in collected.values() for check in checks]
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
        return cls(path=path, name=name, before=before, met=met, checks=every)

    @property
    def resolved(self) -> tuple[KnownBreak, ...]:
        return resolved(self.before, self.met)

    def update(self) -> None:
        """Write the baseline, and remember what changed."""
        after = renewed(self.before, self.met)
        if after == dict(self.before):
            self.changes.append(f"{self.name} is up to date")
            return
        save(self.path, after.values())
        added, removed = after.keys() - self.before.keys(), self.before.keys() - after.keys()
        self.changes.append(f"{self.name} written: {len(after)} known breaks")
        self.changes += [f"  + {_words(after[each])}" for each in sorted(added)]
        self.changes += [f"  - {_words(self.before[each])}" for each in sorted(removed)]

    def lines(self) -> Iterator[str]:
        """The table at the end of a session, and what changed or is resolved."""
        own = {known.identity for breaks in self.met.values() for known in breaks}
        others = {place for check in self.checks for place in check["third_party"]}
        counts = {
            "checks": len(self.checks),
            "new": sum(check["new"] for check in self.checks),
            "known": len(own & self.before.keys()),
            "resolved": len(self.resolved),
            "in other packages": len(others),
            "recompilations": sum(check["recompilations"] for check in self.checks),
        }
        yield "  ".join(f"{name}: {count}" for name, count in counts.items())
        if self.changes:
            yield from self.changes
            return
        for known in self.resolved:
            yield f"resolved: {_words(known)}"
        if self.resolved:
            yield f"renew {self.name} with: pytest --compilewatch-update"


def _words(known: KnownBreak) -> str:
    return f"{known.reason} in {known.function}, {known.file}"
