"""Publications that wait to be sent: `outputs/spool/<sink>/<run>.json`, one small file each.

A run is put into the spool before it is sent and removed when the sink has accepted it, so that
neither an unavailable sink nor a killed process loses a publication. The spool only names the run,
whose files are read from the store when it is sent.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.files import DamagedError, failed, from_json, write_atomically
from compilewatch.records import Record, now

LAST_FILE = "last.json"

_Kind = TypeVar("_Kind", bound=Record)


class Spooled(Record, frozen=True, kw_only=True):
    """A waiting publication. `since` is RFC 3339; `attempts` failed, the last one for `why`."""

    run: str
    since: str
    attempts: int = 0
    why: str = ""


class Delivered(Record, frozen=True, kw_only=True):
    """The last publication that a sink accepted; `at` is RFC 3339."""

    run: str
    at: str


class Spool:
    """The spool of one outputs folder. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root / "spool"

    def waiting(self, sink: str) -> tuple[Spooled, ...]:
        """Return the publications that wait for a sink, oldest run first."""
        try:
            paths = sorted(p for p in (self._root / sink).glob("*.json") if p.name != LAST_FILE)
        except OSError as error:
            raise failed("read", self._root, error) from None
        # The file name is sufficient: a damaged file is still a waiting publication.
        return tuple(_read(p, Spooled) or Spooled(run=p.stem, since=now()) for p in paths)

    def sinks_of(self, run: str) -> tuple[str, ...]:
        """Return the sinks for which a publication of the run waits."""
        return tuple(sorted(path.parent.name for path in self._root.glob(f"*/{run}.json")))

    def put(self, sink: str, spooled: Spooled) -> None:
        """Add a publication, in place of an earlier one of the same run."""
        self._write(sink, f"{spooled.run}.json", spooled)

    def drop(self, sink: str, run: str) -> None:
        """Remove a publication, if it exists."""
        path = self._root / sink / f"{run}.json"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failed("delete", path, error) from None

    def delivered(self, sink: str, run: str) -> None:
        """Remove a publication that the sink has accepted, and record it as the last one."""
        self._write(sink, LAST_FILE, Delivered(run=run, at=now()))
        self.drop(sink, run)

    def last(self, sink: str) -> Delivered | None:
        """Return the last publication that a sink accepted."""
        return _read(self._root / sink / LAST_FILE, Delivered)

    def _write(self, sink: str, name: str, record: Record) -> None:
        write_atomically(self._root / sink / name, msgspec.json.encode(record))


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    with contextlib.suppress(OSError, DamagedError):
        return from_json(path.read_bytes(), kind)
    return None
