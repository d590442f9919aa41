"""The launcher `ray`: sends requests to a driver process and receives the results."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import msgspec
from msgspec.structs import replace

from compilewatch import records
from compilewatch.config import Settings
from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed, by_environment
from compilewatch.launchers.peer import Peer

OUR_OWN_FAULT = os.EX_SOFTWARE
"""Exit status of a driver after an error that is not Ray's; Ray itself ends it with 1."""

MOST_LOSSES = 3
"""After this many losses, a request has them as its result. A node that always fails then costs
only its own work, and a request that makes nodes fail stops doing so."""

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


class Flight(records.Record, frozen=True, kw_only=True):
    """One request; `digest` is that of its environment, `attempts` are its lost tasks."""

    request: records.Request
    digest: str
    attempts: tuple[records.Attempt, ...] = ()

    @property
    def may_run_again(self) -> bool:
        return len(self.attempts) < MOST_LOSSES

    def lost(self, code: records.AttemptCode, why: str) -> Flight:
        """Return it with one more loss."""
        attempt = records.Attempt(
            tier=records.Tier.REAL if self.request.tier is records.Tier.REAL else records.Tier.FAKE,
            status=records.Status.OOM
            if code is records.AttemptCode.NODE_OUT_OF_MEMORY
            else records.Status.CRASHED,
            phase=records.Phase.SETUP,
            code=code,
            reason=why,
        )
        return replace(self, attempts=(*self.attempts, attempt))

    def result(self) -> records.Result:
        """Return the result after too many losses; its last phase is unknown."""
        last = self.attempts[-1]
        detail = f"{last.reason}; {len(self.attempts)} attempts were lost"
        return records.Result(
            request=self.request,
            status=last.status,
            phase=records.Phase.SETUP,
            tier=last.tier,
            depth=self.request.depth,
            detail=detail,
            error=records.ErrorRecord(type=last.status.value, message=detail, code=last.code),
            attempts=self.attempts[:-1],
            environment_digest=self.digest,
        )


class ClusterConnection(records.Record, frozen=True, kw_only=True):
    """What a driver connects to, with the arguments of `RayLauncher`."""

    jobs: int
    environments: tuple[str, ...]
    address: str
    cache: str | None
    memory_limit_bytes: int
    node_timeout_seconds: float


class ClusterOrder(records.Record, frozen=True, kw_only=True):
    """What a driver is to do: `describe` the nodes, or `run` the flights."""

    verb: Literal["describe", "run"]
    flights: tuple[Flight, ...] = ()
    scratch: str = ""


class ClusterReport(records.Record, frozen=True, kw_only=True):
    """What a driver says; the last report of an order is not `progress`.

    `described` says which environments the nodes have and how many slots, and a run ends with
    `done`. `failed` is a LauncherError, whose text is the `reason`. Of a run, flights are named by
    their `number`: `submitted` to the cluster, `lost` with all `attempts` so far, or `landed` with
    a result and, in a folder below scratch, its artifacts. A `pulse` is nothing new: silence means
    that the driver hangs.
    """

    kind: Literal["described", "submitted", "lost", "landed", "pulse", "done", "failed"]
    environments: tuple[records.Environment, ...] = ()
    jobs: int = 0
    number: int = 0
    attempts: tuple[records.Attempt, ...] = ()
    result: records.Result | None = None
    artifacts: str | None = None
    reason: str = ""


_reports = msgspec.json.Decoder(ClusterReport)


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
        self._connect = ClusterConnection(
            jobs=jobs or os.cpu_count() or 1,
            environments=environments,
            address=address,
            cache=str(cache) if cache is not None else None,
            memory_limit_bytes=memory_limit_bytes,
            node_timeout_seconds=node_timeout_seconds,
        )
        self._silence = silence_seconds
        self._driver: Peer | None = None

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

    @cached_property
    def _nodes(self) -> ClusterReport:
        """What the driver says of the nodes, once: during a run, no other thread may ask it."""
        for report in self._received(ClusterOrder(verb="describe")):
            return report
        raise LauncherError(f"the connection to the Ray cluster was lost; {WHERE_RAY_SAYS_WHY}")

    @property
    def jobs(self) -> int:
        """How many requests run at a time, at least 1; the cluster may grow or shrink later."""
        return self._nodes.jobs

    def environments(self) -> tuple[records.Environment, ...]:
        """Return the environments of the nodes. Raises LauncherError if nodes differ."""
        return self._nodes.environments

    def close(self) -> None:
        """Leave the cluster; Ray ends what this launcher still runs there."""
        if self._driver is not None:
            self._driver.close(LEAVE_SECONDS)
            self._driver = None

    def run(self, requests: Iterable[records.Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Environments alternate, so that few slots need a second server."""
        digests = {environment.name: environment.digest for environment in self.environments()}
        queues = by_environment(requests, digests, "the nodes have").values()
        waiting = [
            Flight(request=request, digest=digests[request.target.environment])
            for queue in queues
            for request in queue
        ]
        lost_drivers = 0
        while waiting:
            folder = str(scratch.resolve())
            order = ClusterOrder(verb="run", flights=tuple(waiting), scratch=folder)
            waiting = yield from self._run(order)
            lost_drivers = 1 if len(waiting) < len(order.flights) else lost_drivers + 1
            if waiting and lost_drivers >= MOST_LOST_DRIVERS:
                raise LauncherError(
                    f"the connection to the Ray cluster was lost {lost_drivers} times without a "
                    f"result in between; {WHERE_RAY_SAYS_WHY}, then sweep --resume"
                )

    def _run(self, order: ClusterOrder) -> Generator[Completed, None, list[Flight]]:
        """Yield results; return the requests without one, because their driver was lost."""
        waiting = dict(enumerate(order.flights))
        under_way: set[int] = set()

        def given_up(number: int) -> Iterator[Completed]:
            """The result of a flight that may not run again."""
            if not waiting[number].may_run_again:
                yield Completed(result=waiting.pop(number).result())

        with contextlib.closing(self._received(order)) as reports:
            for report in reports:
                number = report.number
                if report.kind == "submitted":
                    under_way.add(number)
                elif report.kind == "lost":
                    under_way.remove(number)
                    waiting[number] = replace(waiting[number], attempts=report.attempts)
                    yield from given_up(number)
                elif report.result is not None:
                    under_way.remove(number)
                    attempts = (*waiting.pop(number).attempts, *report.result.attempts)
                    kept = Path(report.artifacts) if report.artifacts is not None else None
                    result = replace(report.result, attempts=attempts)
                    yield Completed(result=result, artifacts=kept)
        for number in sorted(under_way):
            why = "the connection to the Ray cluster was lost"
            waiting[number] = waiting[number].lost(records.AttemptCode.CONNECTION_LOST, why)
            yield from given_up(number)
        return list(waiting.values())

    def _received(self, order: ClusterOrder) -> Generator[ClusterReport]:
        """Yield the driver's reports until the order or the driver ends; start one if needed.

        A driver whose order does not end is closed. Raises LauncherError for what failed in the
        cluster, and for errors of the driver itself.
        """
        if self._driver is None:
            command = [sys.executable, "-P", "-m", "compilewatch.extras.cluster.driver"]
            connect = msgspec.json.encode(self._connect).decode()
            self._driver = Peer([*command, "--connect", connect])
        driver, heard_at, ended = self._driver, time.monotonic(), False
        driver.send(order)
        try:
            while (lines := driver.receive(1.0)) is not None:
                for report in map(_reports.decode, lines):
                    ended = report.kind in ("described", "done", "failed")
                    if report.kind == "failed":
                        raise LauncherError(report.reason)
                    yield report
                    if ended:
                        return
                if lines:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > self._silence:
                    driver.kill()
                    break
            if driver.exit_status(LEAVE_SECONDS) == OUR_OWN_FAULT:
                words = driver.last_line()
                raise LauncherError(f"the process connected to Ray failed: {words}")
        finally:
            if not ended:
                self.close()
