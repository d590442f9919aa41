"""A request on its way through a cluster, and what it means that its task was lost."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from compilewatch.launchers import NODE_LOST
from compilewatch.records import Attempt, ErrorRecord, Phase, Request, Result, Status, Tier

MOST_LOSSES = 3
"""How often a request may be lost; then that is its result. A node that falls over whatever it is
given costs its own work only, a request that fells nodes stops doing so."""

WORKER_LOST = "worker_lost"
NODE_MEMORY = "node_out_of_memory"
"""Ray's monitor ended the worker because the node's memory ran full, whoever filled it; a model
that exceeds its own limit is `oom` by our launcher on the node, and known to be the one."""


@dataclass(kw_only=True)
class Flight:
    """One request; `attempts` are the tasks of it that were lost."""

    request: Request
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def may_be_asked_again(self) -> bool:
        return len(self.attempts) < MOST_LOSSES

    def lose(self, error: BaseException, kinds: Any) -> bool:
        """Note a loss; False where the error is none. `kinds` is `ray.exceptions`."""
        if isinstance(error, kinds.OutOfMemoryError):
            code, why = NODE_MEMORY, "Ray ended its worker, as the node ran out of memory"
        elif isinstance(error, kinds.NodeDiedError | kinds.ObjectLostError):
            code, why = NODE_LOST, f"its Ray node{_address(str(error))} was lost"
        elif isinstance(error, kinds.WorkerCrashedError | kinds.LocalRayletDiedError):
            code, why = WORKER_LOST, "its Ray worker ended unexpectedly"
        else:
            return False
        status = Status.OOM if code == NODE_MEMORY else Status.CRASHED
        attempt = Attempt(
            tier=_tier(self.request), status=status, phase=Phase.SETUP, reason=f"{code}: {why}"
        )
        self.attempts.append(attempt)
        return True


def lost_result(flight: Flight, digest: str) -> Result:
    """The result of a request that was lost too often; how far it came is not known."""
    last = flight.attempts[-1]
    code, _, why = last.reason.partition(": ")
    detail = f"{why}; {len(flight.attempts)} tries were lost"
    return Result(
        request=flight.request,
        status=last.status,
        phase=Phase.SETUP,
        tier=last.tier,
        depth=flight.request.depth,
        detail=detail,
        error=ErrorRecord(type=last.status.value, message=detail, code=code),
        attempts=tuple(flight.attempts[:-1]),
        environment_digest=digest,
    )


def _tier(request: Request) -> Tier:
    return Tier.REAL if request.tier is Tier.REAL else Tier.FAKE


def _address(message: str) -> str:
    found = re.search(r"Node IP: ([^,\s]+), node ID: (\w{8})", message)
    return f" {found[1]} ({found[2]})" if found else ""
