"""The launcher `ray`: hands requests to a driver process and takes what comes back."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed, by_environment
from compilewatch.launchers.peer import Peer
from compilewatch.launchers.ray.losses import Flight, lost_result
from compilewatch.launchers.ray.protocol import (
    OUR_OWN_FAULT,
    Connect,
    Count,
    Counted,
    Describe,
    Described,
    Done,
    Landed,
    Lost,
    Order,
    Refused,
    Report,
    Run,
    Submitted,
)
from compilewatch.records import Environment, Request

PATIENCE_SECONDS = 60.0
"""How long to wait for a node that can take a request, once none is left."""

SILENCE_SECONDS = 300.0
"""A driver that says nothing for so long hangs: it reports each second of a run, and gives its
nodes three minutes to describe themselves."""

LEAVE_SECONDS = 10.0
"""For a driver to cancel what flies and to end a cluster of its own."""

MOST_LOST_DRIVERS = 2
"""In a row, with nothing answered in between, before the launcher gives up."""

WHERE_RAY_SAYS_WHY = "see raylet.out and gcs_server.out below /tmp/ray/session_latest/logs"

_reports = msgspec.json.Decoder(Report)


class RayLauncher:
    """As many requests at a time as the cluster has slots; of a cluster of our own, `jobs`.

    `environments` are those wanted: one that no node has is left out of what `environments()`
    lists. `cache` is where nodes look for made ones (None: in their user's own cache folder).
    `patience_seconds` is how long no node at all may be able to take a request,
    `silence_seconds` how long the driver may say nothing.
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
        patience_seconds: float = PATIENCE_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._connect = Connect(
            address=address,
            jobs=jobs or os.cpu_count() or 1,
            environments=environments,
            cache=str(cache) if cache is not None else None,
            memory_limit_bytes=memory_limit_bytes,
            patience_seconds=patience_seconds,
        )
        self._silence = silence_seconds
        self._driver: Peer | None = None
        self._described: tuple[Environment, ...] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def jobs(self) -> int:
        """How many requests run at a time, at least 1; the cluster may grow or shrink."""
        counted = self._asked(Count())
        assert isinstance(counted, Counted)
        return counted.jobs

    def environments(self) -> tuple[Environment, ...]:
        """What the nodes say of themselves. Raises LauncherError where they do not agree."""
        if self._described is None:
            described = self._asked(Describe())
            assert isinstance(described, Described)
            self._described = described.environments
        return self._described

    def close(self) -> None:
        """Leave the cluster; what this launcher still runs there is ended."""
        if self._driver is not None:
            self._driver.close(LEAVE_SECONDS)
            self._driver = None

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Environments take turns, so that few slots start a second server."""
        digests = {environment.name: environment.digest for environment in self.environments()}
        queues = by_environment(requests, digests, "the nodes have").values()
        waiting = [Flight(request=request) for queue in queues for request in queue]
        lost_drivers = 0
        while waiting:
            asked = Run(flights=tuple(waiting), digests=digests, scratch=str(scratch.resolve()))
            before = len(waiting)
            waiting = yield from self._fly(asked)
            lost_drivers = 1 if len(waiting) < before else lost_drivers + 1
            if waiting and lost_drivers >= MOST_LOST_DRIVERS:
                raise LauncherError(
                    f"the connection to the Ray cluster was lost {lost_drivers} times with nothing "
                    f"answered in between; {WHERE_RAY_SAYS_WHY}, then sweep --resume"
                )

    def _fly(self, asked: Run) -> Generator[Completed, None, list[Flight]]:
        """Yield what is answered; return what is not, as its driver was lost."""
        waiting = dict(enumerate(asked.flights))
        under_way: set[int] = set()
        idle = False
        report: Report | None = None
        self._send(asked)
        try:
            for report in self._heard():
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
                elif isinstance(report, Done | Refused):
                    idle = True
                    break
        finally:
            if not idle:
                self.close()
        if isinstance(report, Refused):
            raise LauncherError(report.reason)
        left = []
        for number, flight in waiting.items():
            again = flight.cut_off() if number in under_way else flight
            if again.may_be_asked_again:
                left.append(again)
            else:
                digest = asked.digests[again.request.target.environment]
                yield Completed(result=lost_result(again, digest))
        return left

    def _asked(self, order: Order) -> Report:
        """The one report that answers this order. Raises LauncherError."""
        self._send(order)
        for report in self._heard():
            if isinstance(report, Refused):
                raise LauncherError(report.reason)
            return report
        raise LauncherError(f"the connection to the Ray cluster was lost; {WHERE_RAY_SAYS_WHY}")

    def _send(self, order: Order) -> None:
        if self._driver is None:
            self._driver = Peer([sys.executable, "-P", "-m", "compilewatch.launchers.ray.driver"])
            self._driver.send(self._connect)
        self._driver.send(order)

    def _heard(self) -> Iterator[Report]:
        """What the driver reports, until it is gone. Raises LauncherError where we are to blame."""
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
