"""A stored run as a sink that sends files sees it, without a store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from tests import factories

VIEW = factories.view(factories.result())
RUN = VIEW.run.id
SHARED = {"run": RUN, "source": "library", "device": "cpu", "schema_version": 1}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """The files of one run."""

    root: Path

    def write(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def names(self) -> tuple[str, ...]:
        files = (path for path in self.root.rglob("*") if path.is_file())
        return tuple(sorted(path.relative_to(self.root).as_posix() for path in files))

    def path(self, name: str) -> Path:
        return self.root / name


def stamp(ago: timedelta = timedelta(), nanoseconds: int = 0) -> str:
    """A `ts` so long ago; `nanoseconds` tell lines of one microsecond apart."""
    at = datetime.now(UTC) - ago
    return f"{at:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09d}Z"


def line(ts: str, model: str = "BertModel", **fields: Any) -> bytes:
    """A line of a log, as events are written."""
    about = {"model": model, "family": "bert", "target": "dynamo", "mode": "eval"}
    answer = {"dynamic": False, "status": "pass", "phase": "done", "graphs": 1}
    event = {"event": "model_checked", "ts": ts, "level": "info"}
    return msgspec.json.encode({**event, **SHARED, **about, **answer, **fields})


def with_log(root: Path, lines: Iterable[bytes]) -> Folder:
    folder = Folder(root=root)
    folder.write(f"logs/{RUN}.jsonl", b"".join(one + b"\n" for one in lines))
    return folder
