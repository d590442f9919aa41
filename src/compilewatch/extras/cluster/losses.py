"""A request that is submitted to a cluster, and the meaning of a lost task."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from compilewatch.records import (
    Attempt,
    AttemptCode,
    ErrorRecord,
    Phase,
    Record,
    Request,
    Result,
    Status,
    Tier,
)

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
    found = re.search(r"Node IP: ([^,\s]+), node ID: (\w{8})", message)
    return f" {found[1]} ({found[2]})" if found else ""
