"""What a run has started: a small file, so that `down` stops that instance and no other."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from compilewatch.errors import TrainiumError, TrainiumUnavailableError
from compilewatch.files import lock
from compilewatch.records import Record


class InstanceSession(Record, frozen=True, kw_only=True):
    """One `up` without its `down` so far.

    `started`: this run started the instance; stored before EC2 is called, so that even a killed
    `up` is recorded. `launched` is EC2's time of that start, empty until it is known: another time
    means that another user has restarted the instance since, so this run must not stop it.
    """

    instance: str
    region: str
    started: bool
    since: datetime.datetime
    launched: datetime.datetime | None = None
    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1

    def seconds(self) -> float:
        """Return the age of the session in seconds."""
        return (datetime.datetime.now(datetime.UTC) - self.since).total_seconds()


def begin(instance: str, region: str, *, started: bool) -> InstanceSession:
    """Return a new session that starts now."""
    now = datetime.datetime.now(datetime.UTC)
    return InstanceSession(instance=instance, region=region, started=started, since=now)


def read(file: Path) -> InstanceSession | None:
    """Return the stored session, if any. Raises TrainiumError for a file of another format."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=InstanceSession)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainiumError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrainiumError(
            f"{file} is not a state file of compilewatch trainium ({error}): use another --state, "
            "or check in EC2 whether the instance is running and delete the file"
        ) from None


def write(file: Path, session: InstanceSession) -> None:
    """Replace the file atomically. Raises TrainiumError."""
    try:
        new = file.with_name(f"{file.name}.new")
        new.write_bytes(msgspec.json.encode(session) + b"\n")
        new.replace(file)
    except OSError as error:
        raise TrainiumError(f"{file} cannot be written: {error.strerror}") from None


def end(file: Path) -> None:
    """Delete the session's file."""
    file.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(file: Path, seconds: float, say: Callable[[str], None]) -> Iterator[None]:
    """Lock a session's file, so that `up` and `down` of one run do not overlap.

    Raises TrainiumUnavailableError if another process holds the lock for longer than `seconds`.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        held = file.with_name(f"{file.name}.lock").open("w")
    except OSError as error:
        raise TrainiumError(f"{error.filename} cannot be written: {error.strerror}") from None
    with held:
        waiting = partial(say, "waiting for another compilewatch trainium to end")
        if not lock(held.fileno(), seconds=seconds, on_wait=waiting):
            raise TrainiumUnavailableError(
                f"another compilewatch trainium has held {file} for {seconds:g} s: wait for it, "
                "or end it"
            )
        yield
