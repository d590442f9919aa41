"""Messages between the launcher and its driver: one JSON object per line over a socket."""

from __future__ import annotations

import os
import re
from typing import Any

import msgspec

from compilewatch.records import (
    Attempt,
    AttemptCode,
    Environment,
    ErrorRecord,
    Phase,
    Record,
    Request,
    Result,
    Status,
    Tier,
)

OUR_OWN_FAULT = os.EX_SOFTWARE
"""Exit status of a driver after an error that is not Ray's; Ray itself ends it with 1."""

MOST_LOSSES = 3
"""After this many losses, a request has them as its result. A node that always fails then costs
only its own work, and a request that makes nodes fail stops doing so."""


class Flight(Record, frozen=True, kw_only=True):
    """One request; `attempts` are its lost tasks."""

    request: Request
    attempts: tuple[Attempt, ...] = ()

    @property
    def may_run_again(self) -> bool:
        return len(self.attempts) < MOST_LOSSES

    def lost(self, error: BaseException, kinds: Any) -> Flight | None:
        """Return it with one more loss, None for another error. `kinds` is `ray.exceptions`."""
        if isinstance(error, kinds.OutOfMemoryError):
            # Ray's monitor does this regardless of who uses the memory. A model that exceeds its
            # own limit is `oom` by the launcher on the node, which knows that it was this model.
            return self._with(
                AttemptCode.NODE_OUT_OF_MEMORY,
                "Ray ended its worker, as the node ran out of memory",
            )
        if isinstance(error, kinds.NodeDiedError | kinds.ObjectLostError):
            return self._with(AttemptCode.NODE_LOST, f"its Ray node{_address(str(error))} was lost")
        if isinstance(error, kinds.WorkerCrashedError | kinds.LocalRayletDiedError):
            return self._with(AttemptCode.WORKER_LOST, "its Ray worker ended unexpectedly")
        return None

    def cut_off(self) -> Flight:
        """Return it with one more loss: its driver ended before the result arrived."""
        return self._with(AttemptCode.CONNECTION_LOST, "the connection to the Ray cluster was lost")

    def _with(self, code: AttemptCode, why: str) -> Flight:
        attempt = Attempt(
            tier=Tier.REAL if self.request.tier is Tier.REAL else Tier.FAKE,
            status=Status.OOM if code is AttemptCode.NODE_OUT_OF_MEMORY else Status.CRASHED,
            phase=Phase.SETUP,
            code=code,
            reason=why,
        )
        return msgspec.structs.replace(self, attempts=(*self.attempts, attempt))


def lost_result(flight: Flight, digest: str) -> Result:
    """Return the result of a request that was lost too often; its last phase is unknown."""
    last = flight.attempts[-1]
    detail = f"{last.reason}; {len(flight.attempts)} attempts were lost"
    return Result(
        request=flight.request,
        status=last.status,
        phase=Phase.SETUP,
        tier=last.tier,
        depth=flight.request.depth,
        detail=detail,
        error=ErrorRecord(type=last.status.value, message=detail, code=last.code),
        attempts=flight.attempts[:-1],
        environment_digest=digest,
    )


def _address(message: str) -> str:
    node = re.search(r"Node IP: ([^,\s]+), node ID: (\w{8})", message)
    return f" {node[1]} ({node[2]})" if node else ""


# --- launcher to driver --------------------------------------------------------------------------


class Connect(Record, frozen=True, kw_only=True, tag="connect"):
    """The first order. `RayLauncher` describes the fields."""

    address: str
    jobs: int
    environments: tuple[str, ...]
    cache: str | None
    memory_limit_bytes: int
    node_timeout_seconds: float


class Describe(Record, frozen=True, kw_only=True, tag="describe"):
    """The response is `Described` or `ClusterFailed`."""


class Count(Record, frozen=True, kw_only=True, tag="count"):
    """The response is `Counted` or `ClusterFailed`."""


class ClusterBatch(Record, frozen=True, kw_only=True, tag="run"):
    """The response is a `Landed` for each flight, numbered by its position, and then `Done`.

    `digests` maps the name of each environment to the digest that it must have.
    """

    flights: tuple[Flight, ...]
    digests: dict[str, str]
    scratch: str


Order = Connect | Describe | Count | ClusterBatch


# --- driver to launcher --------------------------------------------------------------------------


class Described(Record, frozen=True, kw_only=True, tag="described"):
    environments: tuple[Environment, ...]


class Counted(Record, frozen=True, kw_only=True, tag="counted"):
    jobs: int


class Submitted(Record, frozen=True, kw_only=True, tag="submitted"):
    """The request is submitted to the cluster."""

    number: int


class Lost(Record, frozen=True, kw_only=True, tag="lost"):
    """The cluster lost the request without a result; `attempts` are all losses so far."""

    number: int
    attempts: tuple[Attempt, ...]


class Landed(Record, frozen=True, kw_only=True, tag="landed"):
    """`artifacts` is a folder below scratch, or None."""

    number: int
    result: Result
    artifacts: str | None


class Done(Record, frozen=True, kw_only=True, tag="done"):
    pass


class Pulse(Record, frozen=True, kw_only=True, tag="pulse"):
    """Nothing new; sent regularly so that silence means that the driver hangs."""


class ClusterFailed(Record, frozen=True, kw_only=True, tag="failed"):
    """A LauncherError, which ends the order."""

    reason: str


Report = Described | Counted | Submitted | Lost | Landed | Done | Pulse | ClusterFailed
