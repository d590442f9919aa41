"""The requests of one run on a cluster: waiting, submitted, completed, lost.

A request takes one CPU, its memory limit and, for the target neuron if the cluster has any, one
`neuron_cores`. Ray places tasks and detects lost nodes; lost requests are submitted again from here
(`max_retries=0`), so that each loss is counted and reported.
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
from compilewatch.extras.cluster.cluster import NEURON_CORES, Cluster
from compilewatch.extras.cluster.files import Content, own_files, read, shared_files, write
from compilewatch.extras.cluster.losses import Flight, lost_result
from compilewatch.extras.cluster.node import NodeTask, Parcel, evaluated
from compilewatch.extras.cluster.protocol import (
    ClusterBatch,
    Landed,
    Lost,
    Pulse,
    Report,
    Submitted,
)
from compilewatch.records import AttemptCode, Request, Result

QUEUED_PER_SLOT = 2
"""Enough that a node starts the next request without delay, but few are lost with the node."""

POLL_SECONDS = 1.0

PAUSE_SECONDS = 2.0
"""Wait after a loss, multiplied by the losses of that request, before anything is submitted: until
the cluster detects that a node is lost, requests that it places there are lost at once."""

_parcels = msgspec.msgpack.Decoder(Parcel)
_encode = msgspec.msgpack.Encoder().encode
_folders = count(1)


class ClusterExecution:
    """One run. `cache` is the folder in which nodes look for created environments.

    `node_timeout_seconds` limits the time during which no node can take a request.
    """

    def __init__(
        self, cluster: Cluster, run: ClusterBatch, cache: str | None, node_timeout_seconds: float
    ) -> None:
        self.cluster = cluster
        self.ray = cluster.ray
        self.cache = cache
        self.node_timeout_seconds = node_timeout_seconds
        self.waiting = deque(enumerate(run.flights))
        self.digests = run.digests
        self.scratch = Path(run.scratch)
        self.flying: dict[Any, tuple[int, Flight]] = {}
        self.shared: dict[tuple[str | None, str | None], Any] = {}
        self.task = self.ray.remote(max_retries=0)(evaluated)
        self.cores = any(node.neuron_cores for node in cluster.nodes())
        self.room = 0
        self.looked_at = float("-inf")
        self.fits_at = time.monotonic()
        self.paused_until = float("-inf")

    def run(self) -> Iterator[Report]:
        """Yield reports for the launcher, at least one every `POLL_SECONDS`.

        Closing the iterator early cancels everything. Raises LauncherError, and ConnectionError if
        this machine's own node is lost, without which nothing can run.
        """
        try:
            while self.waiting or self.flying:
                self._look()
                while self._may_submit():
                    number, flight = self.waiting.popleft()
                    self._submit(number, flight)
                    yield Submitted(number=number)
                yield Pulse()
                if self.flying:
                    yield from self._landed()
                else:
                    time.sleep(POLL_SECONDS)
        finally:
            for ref in self.flying:
                # `force` ends the worker process, and with it its server and the server's children.
                self.ray.cancel(ref, force=True)
            if self.flying and self.ray.is_initialized():
                self.ray.wait(list(self.flying), num_returns=len(self.flying), timeout=5.0)

    def _may_submit(self) -> bool:
        if not self.waiting or len(self.flying) >= self.room:
            return False
        return time.monotonic() >= self.paused_until

    def _look(self) -> None:
        """Count the free slots. Raises LauncherError if there have been none for too long."""
        now = time.monotonic()
        if now - self.looked_at < POLL_SECONDS:
            return
        self.looked_at = now
        requests = [f.request for _, f in (*self.waiting, *self.flying.values())]
        limit = min(request.memory_limit_bytes for request in requests)
        nodes = self.cluster.nodes()
        room = sum(node.slots(limit) for node in nodes)
        self.room = QUEUED_PER_SLOT * room
        if room:
            self.fits_at = now
        elif self.cluster.is_our_own and not nodes:
            raise ConnectionError("the node of this machine was lost")
        elif now - self.fits_at > self.node_timeout_seconds:
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
        order = NodeTask(
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
        """Return a reference to the content that all requests share, stored in the cluster once."""
        key = shared_files(request)
        if key not in self.shared:
            content: dict[str, Content] = {path: read(path) for path in key if path is not None}
            self.shared[key] = self.ray.put(_encode(content))
        return self.shared[key]

    def _landed(self) -> Iterator[Landed | Lost]:
        done, rest = self.ray.wait(list(self.flying), num_returns=1, timeout=POLL_SECONDS)
        if done and rest:
            more, _ = self.ray.wait(rest, num_returns=len(rest), timeout=0)
            done += more
        for ref in done:
            # Removed only when it has been processed; the finally of `run` cancels the others.
            number, flight = self.flying[ref]
            report = self._taken(ref, number, flight)
            del self.flying[ref]
            yield report

    def _taken(self, ref: Any, number: int, flight: Flight) -> Landed | Lost:
        """Return the result of a task that ended, or report that its request was lost."""
        try:
            parcel = _parcels.decode(self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            lost = flight.lost(error, self.ray.exceptions)
            if lost is None:
                raise LauncherError(f"the Ray cluster cannot run it: {line_of(error)}") from None
            ours = isinstance(error, self.ray.exceptions.LocalRayletDiedError)
            if ours or (
                self.cluster.is_our_own and lost.attempts[-1].code is AttemptCode.NODE_LOST
            ):
                raise ConnectionError("the node of this machine was lost") from None
            if lost.may_run_again:
                self.waiting.appendleft((number, lost))
                self.paused_until = time.monotonic() + PAUSE_SECONDS * len(lost.attempts)
                return Lost(number=number, attempts=lost.attempts)
            digest = self.digests[lost.request.target.environment]
            return Landed(number=number, result=lost_result(lost, digest), artifacts=None)
        if parcel.result is None:
            raise LauncherError(f"node {parcel.node}: {parcel.problem}")
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
    """Return the most informative line of a Ray error: the last of a traceback, or the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in str(error) else next(iter(lines), ""))[:300]
