"""The requests of one run on a cluster: waiting, flying, landed, lost.

A request takes one CPU, its memory limit and, for the target neuron where the cluster has any, one
`neuron_cores`. Ray places tasks and notices lost nodes; what it loses is asked again from here
(`max_retries=0`), so that it is known and said.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.errors import LauncherError
from compilewatch.launchers.ray.cluster import NEURON_CORES, Cluster
from compilewatch.launchers.ray.files import Content, own_files, read, shared_files, write
from compilewatch.launchers.ray.losses import Flight, lost_result
from compilewatch.launchers.ray.node import Order, Parcel, answered
from compilewatch.launchers.ray.protocol import Landed, Pulse, Report, Run, Submitted
from compilewatch.records import Request, Result

QUEUED_PER_SLOT = 2
"""So that a node has the next request at hand when one ends, and few are lost with it."""

POLL_SECONDS = 1.0

_parcels = msgspec.msgpack.Decoder(Parcel)
_encode = msgspec.msgpack.Encoder().encode
_folders = count(1)


class Batch:
    """One run. `cache` is where nodes look for made environments.

    `patience_seconds` is how long no node at all may be able to take a request.
    """

    def __init__(
        self, cluster: Cluster, asked: Run, cache: str | None, patience_seconds: float
    ) -> None:
        self.cluster = cluster
        self.ray = cluster.ray
        self.cache = cache
        self.patience_seconds = patience_seconds
        self.waiting = deque(enumerate(asked.flights))
        self.digests = asked.digests
        self.scratch = Path(asked.scratch)
        self.flying: dict[Any, tuple[int, Flight]] = {}
        self.shared: dict[tuple[str | None, str | None], Any] = {}
        self.task = self.ray.remote(max_retries=0)(answered)
        self.cores = any(node.neuron_cores for node in cluster.nodes())
        self.room = 0
        self.looked_at = float("-inf")
        self.fits_at = time.monotonic()

    def run(self) -> Iterator[Report]:
        """Yield what the launcher is to know, at least every `POLL_SECONDS`.

        Left early, everything is cancelled. Raises LauncherError.
        """
        try:
            while self.waiting or self.flying:
                self._look()
                while self.waiting and len(self.flying) < self.room:
                    number, flight = self.waiting.popleft()
                    self._submit(number, flight)
                    yield Submitted(number=number)
                yield Pulse()
                yield from self._landed()
        finally:
            for ref in self.flying:
                # `force` ends the worker process, and with it its server and the server's child.
                self.ray.cancel(ref, force=True)
            if self.flying and self.ray.is_initialized():
                self.ray.wait(list(self.flying), num_returns=len(self.flying), timeout=5.0)

    def _look(self) -> None:
        """How much room there is now. Raises LauncherError where there has been none for long."""
        now = time.monotonic()
        if now - self.looked_at < POLL_SECONDS:
            return
        self.looked_at = now
        asked = [f.request for _, f in (*self.waiting, *self.flying.values())]
        limit = min(request.memory_limit_bytes for request in asked)
        nodes = self.cluster.nodes()
        room = sum(node.slots(limit) for node in nodes)
        self.room = max(1, QUEUED_PER_SLOT * room)
        if room:
            self.fits_at = now
        elif now - self.fits_at > self.patience_seconds:
            raise LauncherError(
                f"no node of the Ray cluster ({len(nodes)} alive) has a CPU and "
                f"{limit / 2**30:.1f} GiB for a request: add nodes or lower memory_limit_gib, then "
                "sweep --resume"
            )

    def _submit(self, number: int, flight: Flight) -> None:
        request = flight.request
        resources = {}
        if self.cores and request.target.name == "neuron":
            resources[NEURON_CORES] = 1
        order = Order(
            request=request,
            digest=self.digests[request.target.environment],
            files={path: read(path) for path in own_files(request)},
            cache=self.cache,
        )
        options = self.task.options(
            num_cpus=1, memory=request.memory_limit_bytes, resources=resources
        )
        self.flying[options.remote(_encode(order), self._shared(request))] = number, flight

    def _shared(self, request: Request) -> Any:
        """The content of what all requests have in common, put into the cluster once."""
        key = shared_files(request)
        if key not in self.shared:
            content: dict[str, Content] = {path: read(path) for path in key if path is not None}
            self.shared[key] = self.ray.put(_encode(content))
        return self.shared[key]

    def _landed(self) -> Iterator[Landed]:
        done, rest = self.ray.wait(list(self.flying), num_returns=1, timeout=POLL_SECONDS)
        if done and rest:
            more, _ = self.ray.wait(rest, num_returns=len(rest), timeout=0)
            done += more
        for ref in done:
            # Taken off only when it is dealt with: what is left here is cancelled.
            number, flight = self.flying[ref]
            landed = self._taken(ref, number, flight)
            del self.flying[ref]
            if landed is not None:
                yield landed

    def _taken(self, ref: Any, number: int, flight: Flight) -> Landed | None:
        """The answer of a task that ended; None where it is asked again."""
        try:
            parcel = _parcels.decode(self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            lost = flight.lost(error, self.ray.exceptions)
            if lost is None:
                raise LauncherError(f"the Ray cluster cannot run it: {line_of(error)}") from None
            if lost.may_be_asked_again:
                self.waiting.appendleft((number, lost))
                return None
            digest = self.digests[lost.request.target.environment]
            return Landed(number=number, result=lost_result(lost, digest), artifacts=None)
        if parcel.result is None:
            raise LauncherError(f"node {parcel.node}: {parcel.refused}")
        return self._with_artifacts(number, flight, parcel.result, parcel.artifacts)

    def _with_artifacts(
        self, number: int, flight: Flight, result: Result, artifacts: Content
    ) -> Landed:
        request = flight.request
        result = msgspec.structs.replace(
            result, request=request, attempts=(*flight.attempts, *result.attempts)
        )
        if not artifacts:
            return Landed(number=number, result=result, artifacts=None)
        folder = self.scratch / f"{request.key[:16]}-{os.getpid()}-{next(_folders)}-artifacts"
        write(artifacts, folder)
        return Landed(number=number, result=result, artifacts=str(folder))


def line_of(error: BaseException) -> str:
    """The most telling line of a Ray error: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in str(error) else next(iter(lines), ""))[:300]
