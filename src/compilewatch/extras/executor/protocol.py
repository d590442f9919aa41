"""What the executor's client and service tell each other, as JSON over HTTP (docs/executor.md)."""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta

from compilewatch.extras.executor.sandbox.policy import Name, SandboxLimits, SandboxOutcome
from compilewatch.records import Record

PROTOCOL_VERSION = 2

SERVICE = "compilewatch-executor"
"""The field `service` of `GET /health`; anything else at the endpoint is another service."""

MAX_BODY_BYTES = 8 * 2**20

Key = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")]
"""The name of a job, chosen by its client. Equal submissions under one key are one job."""


class JobStatus(StrEnum):
    """The states of a job; it ends in exactly one of the last four.

    `lost`: the service ended while the job ran, as often as a job is tried.
    """

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


ENDED = frozenset({JobStatus.DONE, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.LOST})


class ErrorCode(StrEnum):
    """Why the service rejects a call; each has its HTTP status in `STATUSES`."""

    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    INVALID = "invalid"
    MEDIA_TYPE = "media_type"
    BUSY = "busy"
    DRAINING = "draining"


STATUSES = dict(zip(ErrorCode, (401, 404, 409, 413, 422, 415, 429, 503), strict=True))
"""Error -> HTTP status."""


class Problem(Record, frozen=True, kw_only=True):
    """The body of every rejection."""

    code: ErrorCode
    message: str


class JobRequest(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run `python <entry> <arguments>` beside these text files (`PUT /jobs/{key}`).

    `paper_id` and `title` are for people and are not used otherwise. `profile` asks for a Neuron
    profile, which the service takes if it is enabled there.
    """

    files: Annotated[dict[Name, str], Meta(min_length=1, max_length=256)]
    entry: Name = "main.py"
    arguments: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    limits: SandboxLimits = SandboxLimits()
    profile: bool = False
    paper_id: Annotated[str, Meta(max_length=200)] = ""
    title: Annotated[str, Meta(max_length=500)] = ""


class MetricPoint(Record, frozen=True, kw_only=True):
    """The numbers of one line that the code printed; `step` is its step or epoch, if it had one."""

    step: int | None
    values: dict[str, float]


class Artifact(Record, frozen=True, kw_only=True):
    name: Name
    size_bytes: int
    sha256: str


class JobResult(SandboxOutcome, frozen=True, kw_only=True):
    """What became of a job. `metrics`, logs and artifacts are claims of the code that ran."""

    stdout_bytes: int = 0
    stderr_bytes: int = 0
    metrics: tuple[MetricPoint, ...] = ()
    metrics_left_out: int = 0
    artifacts: tuple[Artifact, ...] = ()


class JobState(Record, frozen=True, kw_only=True):
    """A job as the service knows it. `result` says how it ended, if it ran to its end.

    Times are RFC 3339 in UTC. `attempt` counts from 1; a job that the end of the service
    interrupted runs again.
    """

    key: str
    state: JobStatus
    attempt: int = 0
    submitted_at: str
    started_at: str | None = None
    ended_at: str | None = None
    message: str = ""
    result: JobResult | None = None
    paper_id: str = ""

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in ENDED

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What it left, once it has ended."""
        return self.result.artifacts if self.result is not None else ()


MOST_POINTS = 2_000
MOST_NAMES = 50
MOST_LINE_BYTES = 8192
MOST_STEP = 2**53

_PREFIX = "METRICS:"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_EPOCH = re.compile(r"\bEpoch\s{1,4}\[?([0-9]{1,9})/[0-9]{1,9}")
_LOSS = re.compile(rf"\bLoss:\s{{0,4}}{_NUMBER}")
_ACCURACY = re.compile(rf"\b(Test|Training|Validation)\s{{1,4}}Accuracy:\s{{0,4}}{_NUMBER}\s?%")


def read_points(stdout: bytes) -> tuple[tuple[MetricPoint, ...], int]:
    """The points of an output, and how many lines or values were left out.

    A value that is not a finite number loses itself only; a line that is no object loses itself.
    """
    lines = [line for line in stdout.split(b"\n") if line]
    marked = [line for line in lines if line.lstrip().startswith(_PREFIX.encode())]
    parsed = list(_marked(marked) if marked else _described(lines))
    points = [point for point in parsed if isinstance(point, MetricPoint)]
    left_out = sum(left for left in parsed if isinstance(left, int))
    # Of too many, the first and the newest count: the last value of a name is its result.
    kept = points if len(points) <= MOST_POINTS else [points[0], *points[1 - MOST_POINTS :]]
    return tuple(kept), left_out + len(points) - len(kept)


def _marked(lines: Sequence[bytes]) -> Iterator[MetricPoint | int]:
    """The points of `METRICS:` lines, and the number of lines and values that are left out."""
    names: set[str] = set()
    for line in lines:
        numbers = None
        if len(line) <= MOST_LINE_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                numbers = json.loads(line.decode(errors="replace").strip().removeprefix(_PREFIX))
        if not isinstance(numbers, dict):
            yield 1
            continue
        steps = [s for n in ("step", "epoch") if (s := _step(numbers.pop(n, None))) is not None]
        values = {}
        for name, value in numbers.items():
            number = _finite(value)
            known = name in names or len(names) < MOST_NAMES
            if number is None or not known or not _NAME.fullmatch(name):
                yield 1
                continue
            names.add(name)
            values[name] = number
        if values:
            yield MetricPoint(step=steps[0] if steps else None, values=values)


def _described(lines: Sequence[bytes]) -> Iterator[MetricPoint]:
    """The points of lines that were printed for people."""
    epoch: int | None = None
    for line in lines:
        text = line.decode(errors="replace") if len(line) <= MOST_LINE_BYTES else ""
        values: dict[str, float] = {}
        if epoch_match := _EPOCH.search(text):
            epoch = int(epoch_match[1])
            if loss := _LOSS.search(text, epoch_match.end()):
                values["training_loss"] = float(loss[1])
        for kind, number in _ACCURACY.findall(text):
            values[f"{kind.lower()}_accuracy"] = float(number)
        if values and all(map(math.isfinite, values.values())):
            yield MetricPoint(step=epoch, values=values)


def _step(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_STEP else None


def _finite(value: Any) -> float | None:
    with contextlib.suppress(OverflowError):
        if type(value) in (int, float) and math.isfinite(number := float(value)):
            return number
    return None
