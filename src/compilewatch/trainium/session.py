"""What a run has started: a small file, so that `down` stops that and nothing else."""

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


class Session(Record, frozen=True, kw_only=True):
    """One `up`, not yet followed by its `down`.

    `started`: this run started the instance; written before EC2 is asked, so that even a killed
    `up` leaves word. `launched` is EC2's own time of that start, empty until it is known: another
    one means that somebody has started the instance anew since, and it is not ours to stop.
    """

    instance: str
    region: str
    started: bool
    since: datetime.datetime
    launched: datetime.datetime | None = None
    schema_version: Annotated[int, Meta(ge=1, le=1)] = 1

    def seconds(self) -> float:
        """How long ago it began."""
        return (datetime.datetime.now(datetime.UTC) - self.since).total_seconds()


def begin(instance: str, region: str, *, started: bool) -> Session:
    """A session from now on."""
    now = datetime.datetime.now(datetime.UTC)
    return Session(instance=instance, region=region, started=started, since=now)


def read(file: Path) -> Session | None:
    """The session there is. Raises TrainiumError for a file that is not ours."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Session)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TrainiumError(f"{file} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TrainiumError(
            f"{file} is no state of compilewatch trainium ({error}): name another with --state, or "
            "see in EC2 whether the instance runs and remove the file"
        ) from None


def write(file: Path, session: Session) -> None:
    """Replace the file at once. Raises TrainiumError."""
    try:
        new = file.with_name(f"{file.name}.new")
        new.write_bytes(msgspec.json.encode(session) + b"\n")
        new.replace(file)
    except OSError as error:
        raise TrainiumError(f"{file} cannot be written: {error.strerror}") from None


def end(file: Path) -> None:
    """Forget the session."""
    file.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(file: Path, seconds: float, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a session's file: `up` and `down` of one run take turns.

    Raises TrainiumUnavailableError if another process holds it for longer than `seconds`.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        held = file.with_name(f"{file.name}.lock").open("w")
    except OSError as error:
        raise TrainiumError(f"{error.filename} cannot be written: {error.strerror}") from None
    with held:
        waiting = partial(say, "another compilewatch trainium is at work: waiting for it")
        if not lock(held.fileno(), seconds=seconds, told=waiting):
            raise TrainiumUnavailableError(
                f"another compilewatch trainium has held {file} for {seconds:g} s: wait for it, "
                "or end it"
            )
        yield
