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


class Problem(Record, frozen=True, kw_only=True):
    """The body of every rejection, whose HTTP status says what kind it is."""

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


class Artifact(Record, frozen=True, kw_only=True):
    name: Name
    size_bytes: int
    sha256: str


class JobResult(SandboxOutcome, frozen=True, kw_only=True):
    """What became of a job. `metrics`, logs and artifacts are claims of the code that ran."""

    metrics: tuple[dict[str, float], ...] = ()
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


MOST_LINES = 2_000
MOST_NAMES = 50
MOST_LINE_BYTES = 8192

_PREFIX = "METRICS:"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
_EPOCH = re.compile(r"\bEpoch\s{1,4}\[?([0-9]{1,9})/[0-9]{1,9}")
_LOSS = re.compile(rf"\bLoss:\s{{0,4}}{_NUMBER}")
_ACCURACY = re.compile(rf"\b(Test|Training|Validation)\s{{1,4}}Accuracy:\s{{0,4}}{_NUMBER}\s?%")


def read_metrics(stdout: bytes) -> tuple[dict[str, float], ...]:
    """The numbers of each line of an output that has some; of too many, the first and the newest.

    A value that is not a finite number loses itself only; a line that is no object loses itself.
    """
    lines = [line for line in stdout.split(b"\n") if 0 < len(line) <= MOST_LINE_BYTES]
    marked = [line for line in lines if line.lstrip().startswith(_PREFIX.encode())]
    metrics = list(filter(None, _marked(marked) if marked else _described(lines)))
    # The last value of a name is its result.
    return tuple(
        metrics if len(metrics) <= MOST_LINES else [metrics[0], *metrics[1 - MOST_LINES :]]
    )


def _marked(lines: Sequence[bytes]) -> Iterator[dict[str, float]]:
    """The numbers of `METRICS:` lines."""
    names: set[str] = set()
    for line in lines:
        numbers = None
        with contextlib.suppress(ValueError, RecursionError):
            numbers = json.loads(line.decode(errors="replace").strip().removeprefix(_PREFIX))
        values = {}
        for name, value in numbers.items() if isinstance(numbers, dict) else ():
            known = name in names or len(names) < MOST_NAMES
            if known and _NAME.fullmatch(name) and (number := _finite(value)) is not None:
                names.add(name)
                values[name] = number
        yield values


def _described(lines: Sequence[bytes]) -> Iterator[dict[str, float]]:
    """The numbers of lines that were printed for people, each with the epoch that it is of."""
    epoch: dict[str, float] = {}
    for line in lines:
        text = line.decode(errors="replace")
        values: dict[str, float] = {}
        if epoch_match := _EPOCH.search(text):
            epoch = {"epoch": float(epoch_match[1])}
            if loss := _LOSS.search(text, epoch_match.end()):
                values["training_loss"] = float(loss[1])
        for kind, number in _ACCURACY.findall(text):
            values[f"{kind.lower()}_accuracy"] = float(number)
        if values and all(map(math.isfinite, values.values())):
            yield epoch | values


def _finite(value: Any) -> float | None:
    with contextlib.suppress(OverflowError):
        if type(value) in (int, float) and math.isfinite(number := float(value)):
            return number
    return None
