"""What waits to be published: `outputs/spool/<sink>/<run>.json`, one small file each.

A run is put here before it is handed to a sink and taken away when the sink has taken it, so that
neither a sink that is down nor a process that is killed loses a publication. The run itself stays
where it is; a spooled one is read again from the store.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.errors import StoreError
from compilewatch.files import failed, write_atomically
from compilewatch.records import Record
from compilewatch.records.clock import now

LAST_FILE = "last.json"

_Kind = TypeVar("_Kind", bound=Record)


class Spooled(Record, frozen=True, kw_only=True):
    """A publication that waits. `since` is RFC 3339; `attempts` failed, the last for `why`."""

    run: str
    since: str
    attempts: int = 0
    why: str = ""


class Delivered(Record, frozen=True, kw_only=True):
    """The last publication that a sink took; `at` is RFC 3339."""

    run: str
    at: str


class Spool:
    """The spool of one folder of runs. Raises StoreError."""

    def __init__(self, root: Path) -> None:
        self._root = root / "spool"

    def waiting(self, sink: str) -> tuple[Spooled, ...]:
        """What waits for a sink, oldest run first."""
        try:
            paths = sorted(p for p in (self._root / sink).glob("*.json") if p.name != LAST_FILE)
        except OSError as error:
            raise failed("read", self._root, error) from None
        # The name says all that is needed: a damaged file is still a publication that waits.
        return tuple(_read(p, Spooled) or Spooled(run=p.stem, since=now()) for p in paths)

    def sinks_of(self, run: str) -> tuple[str, ...]:
        """The sinks that a run waits for."""
        return tuple(sorted(path.parent.name for path in self._root.glob(f"*/{run}.json")))

    def put(self, sink: str, spooled: Spooled) -> None:
        """Have a publication wait, in place of what waited for the same run."""
        self._write(sink, f"{spooled.run}.json", spooled)

    def drop(self, sink: str, run: str) -> None:
        """Take a publication away. One that is not there is no error."""
        path = self._root / sink / f"{run}.json"
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failed("delete", path, error) from None

    def delivered(self, sink: str, run: str) -> None:
        """Take a publication away because the sink has it."""
        self._write(sink, LAST_FILE, Delivered(run=run, at=now()))
        self.drop(sink, run)

    def last(self, sink: str) -> Delivered | None:
        """The last publication that a sink took."""
        return _read(self._root / sink / LAST_FILE, Delivered)

    def _write(self, sink: str, name: str, record: Record) -> None:
        write_atomically(self._root / sink / name, msgspec.json.encode(record))


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    with contextlib.suppress(OSError, msgspec.DecodeError, StoreError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None
