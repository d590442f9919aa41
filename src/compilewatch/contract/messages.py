"""The messages between the launcher, the server and a child, without torch for the parent's sake.

Launcher and server exchange one JSON object per line over a separate socket, so that the output of
model code can never be mistaken for a message. A child writes two files in the folder of its
request, each replaced by an atomic rename: `phases.json` (`[[phase, monotonic seconds], …]`,
written before each phase begins) and `result.json` (a `ChildResult`). `CLOCK_MONOTONIC` is the same
clock for all processes of a machine, so the launcher can also measure a child that it had to kill.
"""

import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import records
from compilewatch.files import read_if_whole

PLAIN_TORCH = "COMPILEWATCH_PLAIN_TORCH"
"""If this variable is set and not `0`, workers replace nothing of torch to save time.

It is no setting: a worker inherits it, and no result depends on it (docs/plain-torch.md).
"""

START_FILE = "start.json"
PHASES_FILE = "phases.json"
RESULT_FILE = "result.json"
STDOUT_FILE = "stdout"
STDERR_FILE = "stderr"
ARTIFACTS_FOLDER = "artifacts"

NO_RESULT = 70
"""The exit status of a child that could not write a result, for example because the disk was full
(EX_SOFTWARE of sysexits.h)."""

Marks = tuple[tuple[records.Phase, float], ...]
"""The phases that a child entered, in order, each with the monotonic time of its beginning."""


# --- launcher to server --------------------------------------------------------------------------


class Start(records.Record, frozen=True, kw_only=True, tag="start"):
    """Start a child for `request` in `folder` (existing, absolute) as soon as a slot is free.

    Its folder names the child in all messages. A child that is not a fork of the server reads this
    one from `start.json` there.
    """

    folder: str
    tier: records.Tier
    request: records.Request


class Kill(records.Record, frozen=True, kw_only=True, tag="kill"):
    """Send a signal to all processes of a child's process group."""

    folder: str
    signal: int


class Abandon(records.Record, frozen=True, kw_only=True, tag="abandon"):
    """Free the slot of a child that SIGKILL does not end (it is uninterruptible in the kernel)."""

    folder: str


class Ping(records.Record, frozen=True, kw_only=True, tag="ping"):
    pass


Order = Start | Kill | Abandon | Ping


# --- server to launcher --------------------------------------------------------------------------


class Ready(records.Record, frozen=True, kw_only=True, tag="ready"):
    """The imports are done; from now on a fork costs milliseconds.

    With more than one of `threads` the server cannot fork, and each child imports torch itself.
    """

    environment: records.Environment
    threads: int = 1


class Started(records.Record, frozen=True, kw_only=True, tag="started"):
    folder: str
    pid: int
    at: float


class NotStarted(records.Record, frozen=True, kw_only=True, tag="not_started"):
    """No child could be started, because no memory or no process was available."""

    folder: str
    reason: str


class Exited(records.Record, frozen=True, kw_only=True, tag="exited"):
    """A child ended, by an exit code, or by a signal, whose number `code` has with a minus.

    `peak_memory_bytes` is its largest resident set. It includes the memory inherited from the
    server (torch, transformers), as if the model had run in a separate interpreter.
    """

    folder: str
    code: int
    peak_memory_bytes: int


class Pong(records.Record, frozen=True, kw_only=True, tag="pong"):
    pass


Report = Ready | Started | NotStarted | Exited | Pong


# --- the files of a child ------------------------------------------------------------------------


class ChildResult(records.Record, frozen=True, kw_only=True):
    """The result that a child wrote.

    `fake_failure` is set if fake tensors are the likely cause of the result, so that a retry with
    real tensors may give a better one.
    """

    result: records.Result
    fake_failure: str | None = None


def encoded(value: object, encode: Callable[[Any], bytes] = msgspec.json.encode) -> bytes:
    """Encode a value with text of a model; a lone surrogate, which UTF-8 lacks, is written out."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, builtin_types=(bytes,))
        return encode(_without_surrogates(plain))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {
            _without_surrogates(key): _without_surrogates(inner) for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_surrogates(inner) for inner in value]
    return value


class Lines:
    """One end of a socket: splits received data into lines, and sends each message as a line.

    It is for every process that stays: the servers of workers and of profiles, and the driver of a
    cluster. A sandbox exchanges frames, which hold files.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self._rest = b""

    def fileno(self) -> int:
        return self.channel.fileno()

    def send(self, message: records.Record) -> None:
        """Send a message. Blocks while the other end does not read; raises OSError if it closed."""
        self.channel.sendall(encoded(message) + b"\n")

    def receive(self) -> list[bytes] | None:
        """All complete lines after one read, or None at the end of the stream."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def read_marks(folder: Path) -> Marks:
    """The phases that a child has entered so far; empty before the first."""
    return read_if_whole(folder / PHASES_FILE, Marks) or ()


def read_result(folder: Path) -> ChildResult | None:
    """The result that a child wrote, or None if it wrote none."""
    return read_if_whole(folder / RESULT_FILE, ChildResult)


def durations(marks: Marks, end: float) -> dict[str, float]:
    """Seconds by phase; the last phase lasts until `end`."""
    seconds: dict[str, float] = {}
    for (phase, begin), (_, finish) in pairwise((*marks, (records.Phase.DONE, end))):
        seconds[phase.value] = seconds.get(phase.value, 0.0) + max(0.0, finish - begin)
    return seconds


# --- results of `oneshot` ------------------------------------------------------------------------


class MadeInputs(records.Record, frozen=True, kw_only=True):
    """Example inputs as they are shown to users.

    `toml` is the text of the editable file, for real tensors only. `unknown` are the arguments that
    no rule derives: they are comments in the file, for the user to fill in. `problem` says how a
    call with them failed, if they were guessed and the guess was wrong.
    """

    strategy: str
    tier: records.Tier
    inputs: tuple[records.TensorSummary, ...]
    toml: str = ""
    unknown: tuple[str, ...] = ()
    problem: str = ""


class Script(records.Record, frozen=True, kw_only=True):
    """A program of plain PyTorch."""

    text: str


class Readiness(records.Record, frozen=True, kw_only=True):
    """What each registered target lacks in an environment, None where it can run.

    `backends` are those of `torch.compile` there; `no_devices` says of each kind of device that
    cannot be declared there why not; `nested_graph_breaks` says whether its Dynamo has this
    setting.
    """

    missing: dict[str, str | None]
    backends: tuple[str, ...] = ()
    nested_graph_breaks: bool = False
    no_devices: dict[str, str] = msgspec.field(default_factory=dict)
