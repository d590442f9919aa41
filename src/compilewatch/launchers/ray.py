"""Runs requests on a Ray cluster: a task for each, on whichever node has room for it.

A request takes one CPU, its memory limit and, for the target neuron where the cluster has any, one
`neuron_cores`. Ray places tasks and notices lost nodes; what it loses is asked again from here
(`max_retries=0`), so that it is known and said. The only writer of the store is the caller: what
comes back are bytes.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec

from compilewatch.errors import LauncherError
from compilewatch.launchers import Completed
from compilewatch.launchers.ray_cluster import NEURON_CORES, Cluster, Node
from compilewatch.launchers.ray_files import Content, own_files, read, shared_files, write
from compilewatch.launchers.ray_losses import Flight, lost_result
from compilewatch.launchers.ray_node import Description, Order, Parcel, answered, described
from compilewatch.records import HOMES, Environment, Request, Result

QUEUED_PER_SLOT = 2
"""So that a node has the next request at hand when one ends, and few are lost with it."""

POLL_SECONDS = 1.0
DESCRIBE_SECONDS = 180.0
"""For all nodes to say what they are: each starts a worker, and reads package metadata."""

PATIENCE_SECONDS = 60.0
"""How long to wait for a node that can take a request, once none is left."""

_parcels = msgspec.msgpack.Decoder(Parcel)
_descriptions = msgspec.msgpack.Decoder(Description)
_encode = msgspec.msgpack.Encoder().encode


class RayLauncher:
    """As many requests at a time as the cluster has slots; of a cluster of our own, `jobs`.

    `environments` are those wanted: one that no node has is left out of what `environments()`
    lists. `cache` is where nodes look for made ones (None: in their user's own cache folder).
    `patience_seconds` is how long no node at all may be able to take a request.
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
    ) -> None:
        self._names = environments
        self._cache = str(cache) if cache is not None else None
        self._memory = memory_limit_bytes
        self._patience = patience_seconds
        self._address = address
        self._own_jobs = jobs or os.cpu_count() or 1
        self._connected: Cluster | None = None
        self._described: tuple[Environment, ...] | None = None
        self._ids = count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cluster(self) -> Cluster:
        """The connection, made when first needed. Raises LauncherError."""
        if self._connected is None:
            self._connected = Cluster(self._address, self._own_jobs, self._memory)
        return self._connected

    @property
    def jobs(self) -> int:
        """How many requests run at a time, at least 1; the cluster may grow or shrink."""
        return max(1, sum(node.slots(self._memory) for node in self.cluster.nodes()))

    def environments(self) -> tuple[Environment, ...]:
        """What the nodes say of themselves. Raises LauncherError where they do not agree."""
        if self._described is None:
            self._described = self._agreed()
        return self._described

    def close(self) -> None:
        """Leave the cluster; what this launcher still runs there is ended."""
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Environments take turns, so that few slots start a second server."""
        known = {environment.name: environment.digest for environment in self.environments()}
        waiting: dict[str, list[Request]] = {name: [] for name in known}
        for request in requests:
            name = request.target.environment
            if name not in waiting:
                raise LauncherError(
                    f"{request.model.name} asks for environment {name!r}; "
                    f"the nodes have {', '.join(known) or 'none'}"
                )
            waiting[name].append(request)
        flights = deque(Flight(request=r) for queue in waiting.values() for r in queue)
        if flights:
            yield from _Batch(self, flights, known, scratch.resolve()).run()

    def _agreed(self) -> tuple[Environment, ...]:
        told: dict[str, tuple[str, Environment]] = {}
        lacking: dict[str, str] = {}
        told_by = list(self._descriptions())
        if not told_by:
            raise LauncherError("the Ray cluster has no node with a CPU: start one (`ray start`)")
        for node, description in told_by:
            if description.refused:
                raise LauncherError(f"node {description.node}: {description.refused}")
            has = {environment.name: environment for environment in description.environments}
            for name in self._names:
                if not self._eligible(node, name):
                    continue
                if name not in has:
                    lacking.setdefault(name, description.node)
                elif name not in told:
                    told[name] = (description.node, has[name])
                else:
                    _check_equal(*told[name], description.node, has[name])
        for name, (node_name, _) in told.items():
            if name in lacking:
                raise LauncherError(
                    f"node {lacking[name]} has no environment {name!r}, node {node_name} has: make "
                    f"it there (compilewatch env create {name}), or leave one of them out"
                )
        return tuple(environment for _, environment in told.values())

    def _eligible(self, node: Node, name: str) -> bool:
        """Whether requests for this environment are placed on this node."""
        if name != HOMES["neuron"] or not any(n.neuron_cores for n in self.cluster.nodes()):
            return True
        return node.neuron_cores > 0

    def _descriptions(self) -> Iterator[tuple[Node, Description]]:
        ray = self.cluster.ray
        task = ray.remote(num_cpus=0, max_retries=0)(described)
        asked = {}
        for node in self.cluster.nodes():
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                node_id=node.id, soft=False
            )
            options = task.options(scheduling_strategy=there)
            asked[node] = options.remote(self._names, self._cache)
        ends = time.monotonic() + DESCRIBE_SECONDS
        for node, ref in asked.items():
            try:
                answer = ray.get(ref, timeout=max(1.0, ends - time.monotonic()))
            except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
                continue  # just lost: Ray lists a node until its health checks have failed
            except ray.exceptions.RayError as error:
                raise LauncherError(
                    f"node {node.address} ({node.id[:8]}) cannot say what it is: {_line(error)}"
                ) from None
            yield node, _descriptions.decode(answer)


class _Batch:
    """The requests of one run, waiting and flying."""

    def __init__(
        self, launcher: RayLauncher, waiting: deque[Flight], digests: dict[str, str], scratch: Path
    ) -> None:
        self.launcher = launcher
        self.ray = launcher.cluster.ray
        self.waiting = waiting
        self.digests = digests
        self.scratch = scratch
        self.flying: dict[Any, Flight] = {}
        self.shared: dict[tuple[str | None, str | None], Any] = {}
        self.task = self.ray.remote(max_retries=0)(answered)
        self.cores = any(node.neuron_cores for node in launcher.cluster.nodes())
        self.room = 0
        self.looked_at = float("-inf")
        self.fits_at = time.monotonic()

    def run(self) -> Iterator[Completed]:
        """Yield every answer; left early, everything is cancelled."""
        try:
            while self.waiting or self.flying:
                self._look()
                while self.waiting and len(self.flying) < self.room:
                    self._submit(self.waiting.popleft())
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
        asked = [f.request for f in (*self.waiting, *self.flying.values())]
        limit = min(request.memory_limit_bytes for request in asked)
        nodes = self.launcher.cluster.nodes()
        room = sum(node.slots(limit) for node in nodes)
        self.room = max(1, QUEUED_PER_SLOT * room)
        if room:
            self.fits_at = now
        elif now - self.fits_at > self.launcher._patience:
            raise LauncherError(
                f"no node of the Ray cluster ({len(nodes)} alive) has a CPU and "
                f"{limit / 2**30:.1f} GiB for a request: add nodes or lower memory_limit_gib, then "
                "sweep --resume"
            )

    def _submit(self, flight: Flight) -> None:
        request = flight.request
        resources = {}
        if self.cores and request.target.name == "neuron":
            resources[NEURON_CORES] = 1
        order = Order(
            request=request,
            digest=self.digests[request.target.environment],
            files={path: read(path) for path in own_files(request)},
            cache=self.launcher._cache,
        )
        options = self.task.options(
            num_cpus=1, memory=request.memory_limit_bytes, resources=resources
        )
        self.flying[options.remote(_encode(order), self._shared(request))] = flight

    def _shared(self, request: Request) -> Any:
        """The content of what all requests have in common, put into the cluster once."""
        key = shared_files(request)
        if key not in self.shared:
            content: dict[str, Content] = {path: read(path) for path in key if path is not None}
            self.shared[key] = self.ray.put(_encode(content))
        return self.shared[key]

    def _landed(self) -> Iterator[Completed]:
        done, rest = self.ray.wait(list(self.flying), num_returns=1, timeout=POLL_SECONDS)
        if done and rest:
            more, _ = self.ray.wait(rest, num_returns=len(rest), timeout=0)
            done += more
        for ref in done:
            # Taken off only when it is dealt with: what an interrupt leaves here is cancelled.
            completed = self._taken(ref, self.flying[ref])
            del self.flying[ref]
            if completed is not None:
                yield completed

    def _taken(self, ref: Any, flight: Flight) -> Completed | None:
        """The answer of a task that ended; None where it is asked again."""
        try:
            parcel = _parcels.decode(self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            if not flight.lose(error, self.ray.exceptions):
                raise LauncherError(f"the Ray cluster cannot run it: {_line(error)}") from None
            if flight.may_be_asked_again:
                self.waiting.appendleft(flight)
                return None
            digest = self.digests[flight.request.target.environment]
            return Completed(result=lost_result(flight, digest))
        if parcel.result is None:
            raise LauncherError(f"node {parcel.node}: {parcel.refused}")
        return self._completed(flight, parcel.result, parcel.artifacts)

    def _completed(self, flight: Flight, result: Result, artifacts: Content) -> Completed:
        result = msgspec.structs.replace(
            result, request=flight.request, attempts=(*flight.attempts, *result.attempts)
        )
        if not artifacts:
            return Completed(result=result)
        number = next(self.launcher._ids)
        folder = self.scratch / f"{flight.request.key[:16]}-{os.getpid()}-{number}-artifacts"
        write(artifacts, folder)
        return Completed(result=result, artifacts=folder)


def _check_equal(node: str, known: Environment, other_node: str, other: Environment) -> None:
    """Keys of verdicts hold what an environment is: two kinds in one run would share them."""
    if known.digest == other.digest:
        return
    names = ("python", "torch", "torch_git", "transformers", "device", "harness_version")
    facts = [(n, getattr(known, n), getattr(other, n)) for n in names]
    packages = sorted({*known.packages, *other.packages})
    facts += [(n, known.packages.get(n), other.packages.get(n)) for n in packages]
    name, ours, theirs = next(((n, a, b) for n, a, b in facts if a != b), ("digest", "", ""))
    raise LauncherError(
        f"environment {known.name!r} is not the same on all nodes: {name} {theirs or 'missing'} on "
        f"{other_node}, {ours or 'missing'} on {node}: make them equal, or leave one out"
    )


def _line(error: BaseException) -> str:
    """The most telling line of a Ray error: the last of a traceback, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in str(error) else next(iter(lines), ""))[:300]
