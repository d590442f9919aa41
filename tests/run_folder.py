"""A stored run as a sink that sends files sees it, without a store."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.store import RunFolder
from tests import factories

VIEW = factories.view(factories.result())
RUN = VIEW.run.id
SHARED = {"run": RUN, "source": "library", "device": "cpu", "schema_version": 1}


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


def with_log(root: Path, lines: Iterable[bytes]) -> RunFolder:
    folder = RunFolder(root)
    folder.write(f"logs/{RUN}.jsonl", b"".join(one + b"\n" for one in lines))
    return folder
