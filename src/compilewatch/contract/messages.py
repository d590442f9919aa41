"""What the launcher, the server and a child say to each other; torch-free, so the parent shares it.

Launcher and server exchange one JSON object a line over a socket of their own: what model code
prints can never be mistaken for a message. A child speaks through two files in its request's
folder, each replaced by an atomic rename: `phases.json` (`[[phase, monotonic seconds], …]`,
written before each phase is begun) and `result.json` (an `Answer`). `CLOCK_MONOTONIC` is one clock
for all processes of a machine, so the launcher measures a child that it had to kill.
"""

from __future__ import annotations

import socket
from itertools import pairwise
from pathlib import Path

import msgspec

from compilewatch.records import (
    Environment,
    Phase,
    Record,
    Request,
    Result,
    TensorSummary,
    Tier,
)

START_FILE = "start.json"
PHASES_FILE = "phases.json"
RESULT_FILE = "result.json"
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
ARTIFACTS_FOLDER = "artifacts"

NO_RESULT = 70
"""The exit status of a child that can say nothing in a result, a full disk for instance
(EX_SOFTWARE of sysexits.h)."""

Marks = tuple[tuple[Phase, float], ...]
"""Phases entered, in order, each with the monotonic time of its beginning."""


# --- launcher to server --------------------------------------------------------------------------


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """Start a child for `request` in `folder` (existing, absolute) as soon as a slot is free.

    A child that is not a fork of the server reads it from `start.json` in its folder.
    """

    id: int
    folder: str
    tier: Tier
    request: Request


class Kill(Record, frozen=True, kw_only=True, tag="kill"):
    """Send a signal to the whole process group of a child."""

    id: int
    signal: int


class Abandon(Record, frozen=True, kw_only=True, tag="abandon"):
    """Give the slot of a child away that not even SIGKILL ends (uninterruptible in the kernel)."""

    id: int


class Ping(Record, frozen=True, kw_only=True, tag="ping"):
    pass


Order = Start | Kill | Abandon | Ping


# --- server to launcher --------------------------------------------------------------------------


class Ready(Record, frozen=True, kw_only=True, tag="ready"):
    """Imports are done; from here on a fork costs milliseconds.

    With more `threads` than one the server cannot fork: each child imports torch by itself.
    """

    environment: Environment
    threads: int = 1


class Started(Record, frozen=True, kw_only=True, tag="started"):
    id: int
    pid: int
    at: float


class NotStarted(Record, frozen=True, kw_only=True, tag="not_started"):
    """No child could be started: no memory or no process left."""

    id: int
    reason: str


class Exited(Record, frozen=True, kw_only=True, tag="exited"):
    """A child ended, by exit code or by signal.

    `peak_memory_bytes` is its largest resident set. It includes the image inherited from the
    server (torch, transformers), as if the model had run in an interpreter of its own.
    """

    id: int
    at: float
    peak_memory_bytes: int
    exit_code: int | None = None
    signal: int | None = None


class Pong(Record, frozen=True, kw_only=True, tag="pong"):
    pass


Report = Ready | Started | NotStarted | Exited | Pong


# --- the files of a child ------------------------------------------------------------------------


class Answer(Record, frozen=True, kw_only=True):
    """`fake_failure`: fake tensors are the likely cause of this result; real ones may do better."""

    result: Result
    fake_failure: str | None = None


class Lines:
    """One end of the socket: cuts what arrives into lines, writes what is sent as one."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._rest = b""

    def fileno(self) -> int:
        return self.channel.fileno()

    def send(self, message: Record) -> None:
        """Blocks while the other end does not read. Raises OSError when it is gone."""
        self.channel.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> list[bytes] | None:
        """All whole lines there are after one read, None at the end of the stream."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def read_marks(folder: Path) -> Marks:
    """The phases a child entered so far; empty before the first."""
    try:
        return msgspec.json.decode((folder / PHASES_FILE).read_bytes(), type=Marks)
    except (OSError, msgspec.DecodeError):
        return ()


def read_answer(folder: Path) -> Answer | None:
    """The answer a child left, or None where it wrote none."""
    try:
        return msgspec.json.decode((folder / RESULT_FILE).read_bytes(), type=Answer)
    except (OSError, msgspec.DecodeError):
        return None


def durations(marks: Marks, end: float) -> dict[str, float]:
    """Seconds by phase; the last phase lasts until `end`."""
    seconds: dict[str, float] = {}
    for (phase, begin), (_, finish) in pairwise((*marks, (Phase.DONE, end))):
        seconds[phase.value] = seconds.get(phase.value, 0.0) + max(0.0, finish - begin)
    return seconds


# --- answers of `oneshot` ------------------------------------------------------------------------


class MadeInputs(Record, frozen=True, kw_only=True):
    """Example inputs as a person sees them; `toml` is the editable file, of real ones only.

    `unknown` are arguments that nothing makes: comments in the file, to be filled in.
    """

    strategy: str
    tier: Tier
    inputs: tuple[TensorSummary, ...]
    toml: str = ""
    unknown: tuple[str, ...] = ()


class Script(Record, frozen=True, kw_only=True):
    """A program of plain PyTorch."""

    text: str


class Readiness(Record, frozen=True, kw_only=True):
    """What each registered target lacks in an environment, None where it can run.

    `backends` are those of `torch.compile` there.
    """

    missing: dict[str, str | None]
    backends: tuple[str, ...] = ()
