"""The launcher `ray`: sends requests to a driver process and receives the results."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from compilewatch.config import Settings
from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed, by_environment
from compilewatch.launchers.peer import Peer
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


NODE_TIMEOUT_SECONDS = 60.0
"""How long to wait for a node that can take a request, when there is none."""

SILENCE_SECONDS = 300.0
"""A driver that is silent for longer hangs: during a run it reports every second, and it gives
nodes three minutes to describe themselves."""

LEAVE_SECONDS = 10.0
"""For a driver to cancel its tasks and to end a cluster that it started."""

MOST_LOST_DRIVERS = 2
"""How many drivers may be lost in succession, without a result in between."""

WHERE_RAY_SAYS_WHY = "see raylet.out and gcs_server.out below /tmp/ray/session_latest/logs"

_reports = msgspec.json.Decoder(Report)


class RayLauncher:
    """Runs as many requests at a time as the cluster has slots; on its own cluster, `jobs`.

    `environments` are those wanted; `environments()` omits one that no node has. `cache` is the
    folder in which nodes look for created environments (None: the cache folder of their user).
    `node_timeout_seconds` limits the time during which no node can take a request, and
    `silence_seconds` the time without a report of the driver.
    """

    name = "ray"

    def __init__(
        self,
        jobs: int | None = None,
        environments: tuple[str, ...] = ("default",),
        *,
        address: str = "",
        cache: Path | None = None,
        memory_limit_bytes: int = 8 * 2**30,
        node_timeout_seconds: float = NODE_TIMEOUT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._connect = Connect(
            address=address,
            jobs=jobs or os.cpu_count() or 1,
            environments=environments,
            cache=str(cache) if cache is not None else None,
            memory_limit_bytes=memory_limit_bytes,
            node_timeout_seconds=node_timeout_seconds,
        )
        self._silence = silence_seconds
        self._driver: Peer | None = None
        self._described: tuple[Environment, ...] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def of(cls, settings: Settings, names: Sequence[str]) -> Self:
        """The launcher that the settings name, for these environments."""
        return cls(
            settings.jobs,
            tuple(names),
            address=settings.ray_address,
            cache=settings.cache_folder,
            memory_limit_bytes=settings.memory_limit_bytes,
        )

    @property
    def jobs(self) -> int:
        """How many requests run at a time, at least 1; the cluster may grow or shrink."""
        counted = self._report_of(Count())
        assert isinstance(counted, Counted)
        return counted.jobs

    def environments(self) -> tuple[Environment, ...]:
        """Return the environments of the nodes. Raises LauncherError if nodes differ."""
        if self._described is None:
            described = self._report_of(Describe())
            assert isinstance(described, Described)
            self._described = described.environments
        return self._described

    def close(self) -> None:
        """Leave the cluster; Ray ends what this launcher still runs there."""
        if self._driver is not None:
            self._driver.close(LEAVE_SECONDS)
            self._driver = None

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Environments alternate, so that few slots need a second server."""
        digests = {environment.name: environment.digest for environment in self.environments()}
        queues = by_environment(requests, digests, "the nodes have").values()
        waiting = [Flight(request=request) for queue in queues for request in queue]
        lost_drivers = 0
        while waiting:
            order = ClusterBatch(
                flights=tuple(waiting), digests=digests, scratch=str(scratch.resolve())
            )
            before = len(waiting)
            waiting = yield from self._run(order)
            lost_drivers = 1 if len(waiting) < before else lost_drivers + 1
            if waiting and lost_drivers >= MOST_LOST_DRIVERS:
                raise LauncherError(
                    f"the connection to the Ray cluster was lost {lost_drivers} times without a "
                    f"result in between; {WHERE_RAY_SAYS_WHY}, then sweep --resume"
                )

    def _run(self, order: ClusterBatch) -> Generator[Completed, None, list[Flight]]:
        """Yield results; return the requests without one, because their driver was lost."""
        waiting = dict(enumerate(order.flights))
        under_way: set[int] = set()
        idle = False
        report: Report | None = None
        self._send(order)
        try:
            for report in self._received():
                if isinstance(report, Submitted):
                    under_way.add(report.number)
                elif isinstance(report, Lost):
                    under_way.remove(report.number)
                    flight = waiting[report.number]
                    waiting[report.number] = replace(flight, attempts=report.attempts)
                elif isinstance(report, Landed):
                    del waiting[report.number]
                    kept = Path(report.artifacts) if report.artifacts is not None else None
                    yield Completed(result=report.result, artifacts=kept)
                elif isinstance(report, Done | ClusterFailed):
                    idle = True
                    break
        finally:
            if not idle:
                self.close()
        if isinstance(report, ClusterFailed):
            raise LauncherError(report.reason)
        left = []
        for number, flight in waiting.items():
            again = flight.cut_off() if number in under_way else flight
            if again.may_run_again:
                left.append(again)
            else:
                digest = order.digests[again.request.target.environment]
                yield Completed(result=lost_result(again, digest))
        return left

    def _report_of(self, order: Order) -> Report:
        """Return the single report of this order. Raises LauncherError."""
        self._send(order)
        for report in self._received():
            if isinstance(report, ClusterFailed):
                raise LauncherError(report.reason)
            return report
        raise LauncherError(f"the connection to the Ray cluster was lost; {WHERE_RAY_SAYS_WHY}")

    def _send(self, order: Order) -> None:
        if self._driver is None:
            self._driver = Peer([sys.executable, "-P", "-m", "compilewatch.extras.cluster.driver"])
            self._driver.send(self._connect)
        self._driver.send(order)

    def _received(self) -> Iterator[Report]:
        """Yield the driver's reports until it ends. Raises LauncherError for its own errors."""
        assert self._driver is not None
        driver, heard_at = self._driver, time.monotonic()
        while (lines := driver.receive(1.0)) is not None:
            if lines:
                yield from map(_reports.decode, lines)
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > self._silence:
                driver.kill()
                break
        status, words = driver.exit_status(LEAVE_SECONDS), driver.last_line()
        self.close()
        if status == OUR_OWN_FAULT:
            raise LauncherError(f"the process connected to Ray failed: {words}")
