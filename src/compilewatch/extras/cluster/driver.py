"""The process that is connected to a Ray cluster, controlled by a launcher over a socket.

It executes one order at a time. When the launcher closes the socket or ends, it cancels running
requests, disconnects, and ends the cluster if it started one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import select
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec

import compilewatch
from compilewatch import extras, records
from compilewatch.contract.messages import Lines
from compilewatch.contract.targets import default_environment
from compilewatch.errors import LauncherError
from compilewatch.extras.cluster import launcher
from compilewatch.extras.cluster import node as ray_node

REACH_SECONDS = 5.0
"""`ray.init` retries for over a minute and prints; whether a server listens is known sooner."""

OBJECT_STORE_BYTES = 256 * 2**20
"""For a cluster that this process starts. Artifacts pass through it and are removed at once."""

TOKEN_ADVICE = (
    " (a head of Ray 2.60 requires a token by default: set RAY_AUTH_MODE=token and copy the "
    "head's ~/.ray/auth_token to this machine)"
)

NEURON_CORES = "neuron_cores"
"""Ray's name for the resource, which it detects by itself (`ray._private.accelerators`)."""

QUEUED_PER_SLOT = 2
"""Enough that a node starts the next request without delay, but few are lost with the node."""

POLL_SECONDS = 1.0

PAUSE_SECONDS = 2.0
"""Wait after a loss, multiplied by the losses of that request, before anything is submitted: until
the cluster detects that a node is lost, requests that it places there are lost at once."""

_folders = count(1)
T = TypeVar("T")

DESCRIBE_SECONDS = 180.0
"""For all nodes to describe themselves: each starts a worker and reads package metadata."""

_orders = msgspec.json.Decoder(launcher.ClusterOrder)


@dataclass(frozen=True, eq=False)
class Node:
    """A living node that accepts tasks. `resources` are what Ray may assign to them."""

    id: str
    address: str
    resources: Mapping[str, float]

    def slots(self, memory_limit_bytes: int) -> int:
        """Return how many requests with this memory limit can run at the same time."""
        memory = self.resources.get("memory", 0)
        return int(min(self.resources.get("CPU", 0), memory // memory_limit_bytes))

    @property
    def has_neuron_cores(self) -> bool:
        return self.resources.get(NEURON_CORES, 0) > 0


def load_ray() -> ModuleType:
    """Import Ray. Raises LauncherError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise LauncherError(f"the launcher ray needs Ray: {extras.install('cluster')}") from None


def _reach(address: str) -> None:
    """Raise LauncherError unless a server listens at HOST:PORT."""
    advice = "start one with `ray start --head`, or check --address"
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "/" in host or not host or not port.isdigit():
        raise LauncherError(
            f"not an address of a Ray cluster: {address!r}; write HOST:PORT (default port 6379), "
            "and start the sweep on a machine that is part of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise LauncherError(f"no Ray cluster responds at {address}: {why}; {advice}") from None


class ClusterExecution:
    """One run of requests."""

    def __init__(self, driver: Driver, order: launcher.ClusterOrder) -> None:
        self.driver = driver
        self.ray = driver.ray
        self.waiting = deque(enumerate(order.flights))
        self.order = order
        self.flying: dict[Any, tuple[int, launcher.Flight]] = {}
        self.task = self.ray.remote(max_retries=0)(ray_node.evaluated)
        self.cores = any(node.has_neuron_cores for node in driver.nodes())
        self.room = 0
        self.looked_at = float("-inf")
        self.fits_at = time.monotonic()
        self.paused_until = float("-inf")

    def run(self) -> Iterator[launcher.ClusterReport]:
        """Yield reports for the launcher, at least one every `POLL_SECONDS`.

        Closing the iterator early cancels everything. Raises LauncherError, and ConnectionError if
        this machine's own node is lost, without which nothing can run.
        """
        try:
            while self.waiting or self.flying:
                self._look()
                while (
                    self.waiting
                    and len(self.flying) < self.room
                    and time.monotonic() >= self.paused_until
                ):
                    number, flight = self.waiting.popleft()
                    self.flying[self._submitted(flight)] = number, flight
                    yield launcher.ClusterReport(kind="submitted", number=number)
                yield launcher.ClusterReport(kind="pulse")
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

    def _look(self) -> None:
        """Count the free slots. Raises LauncherError if there have been none for too long."""
        now = time.monotonic()
        if now - self.looked_at < POLL_SECONDS:
            return
        self.looked_at = now
        requests = [f.request for _, f in (*self.waiting, *self.flying.values())]
        limit = min(request.memory_limit_bytes for request in requests)
        nodes = self.driver.nodes()
        room = sum(node.slots(limit) for node in nodes)
        self.room = QUEUED_PER_SLOT * room
        if room:
            self.fits_at = now
        elif self.driver.is_our_own and not nodes:
            raise ConnectionError("the node of this machine was lost")
        elif now - self.fits_at > self.driver.asked.node_timeout_seconds:
            raise LauncherError(
                f"no node of the Ray cluster ({len(nodes)} alive) has a CPU and "
                f"{limit / 2**30:.1f} GiB for a request: add nodes or lower memory_limit_gib, then "
                "sweep --resume"
            )

    def _submitted(self, flight: launcher.Flight) -> Any:
        """Return a reference to the task."""
        request = flight.request
        files = {path: ray_node.read(path) for path in ray_node.own_files(request)}
        task: ray_node.NodeTask = (request, flight.digest, files, self.driver.asked.cache)
        on_neuron = self.cores and request.target.name == "neuron"
        options = self.task.options(
            num_cpus=1,
            memory=request.memory_limit_bytes,
            resources={NEURON_CORES: 1} if on_neuron else {},
        )
        return options.remote(msgspec.msgpack.encode(task))

    def _landed(self) -> Iterator[launcher.ClusterReport]:
        done, _ = self.ray.wait(list(self.flying), num_returns=1, timeout=POLL_SECONDS)
        for ref in done:
            # Removed only when it has been processed; the finally of `run` cancels the others.
            report = self._taken(ref, *self.flying[ref])
            del self.flying[ref]
            yield report

    def _taken(self, ref: Any, number: int, flight: launcher.Flight) -> launcher.ClusterReport:
        """Return the result of a task that ended, or report that its request was lost."""
        try:
            data = self.ray.get(ref)
        except self.ray.exceptions.RayError as error:
            code, why = loss_of(error, self.ray.exceptions)
            ours = isinstance(error, self.ray.exceptions.LocalRayletDiedError)
            if ours or (self.driver.is_our_own and code is records.AttemptCode.NODE_LOST):
                raise ConnectionError("the node of this machine was lost") from None
            lost = flight.lost(code, why)
            if lost.may_run_again:
                self.waiting.appendleft((number, lost))
                self.paused_until = time.monotonic() + PAUSE_SECONDS * len(lost.attempts)
            return launcher.ClusterReport(kind="lost", number=number, attempts=lost.attempts)
        _, (result, content) = opened(data, tuple[records.Result, ray_node.Content])
        artifacts = None
        if content:
            name = f"{flight.request.key[:16]}-{os.getpid()}-{next(_folders)}-artifacts"
            artifacts = str(Path(self.order.scratch, name))
            ray_node.write(content, Path(artifacts))
        return launcher.ClusterReport(
            kind="landed", number=number, result=result, artifacts=artifacts
        )


def opened(data: bytes, kind: type[T]) -> tuple[str, T]:
    """The node and the content of a parcel. Raises LauncherError for a problem of the node."""
    parcel = msgspec.msgpack.decode(data, type=ray_node.Parcel)
    if parcel.problem:
        raise LauncherError(f"node {parcel.node}: {parcel.problem}")
    return parcel.node, msgspec.msgpack.decode(parcel.content, type=kind)


def loss_of(error: BaseException, kinds: Any) -> tuple[records.AttemptCode, str]:
    """Return what a lost task means; `kinds` is `ray.exceptions`.

    Raises LauncherError for an error after which it would fail again.
    """
    if isinstance(error, kinds.OutOfMemoryError):
        # Ray's monitor does this regardless of who uses the memory. A model that exceeds its own
        # limit is `oom` by the launcher on the node, which knows that it was this model.
        why = "Ray ended its worker, as the node ran out of memory"
        return records.AttemptCode.NODE_OUT_OF_MEMORY, why
    if isinstance(error, kinds.NodeDiedError | kinds.ObjectLostError):
        node = re.search(r"Node IP: ([^,\s]+), node ID: (\w{8})", str(error))
        where = f" {node[1]} ({node[2]})" if node else ""
        return records.AttemptCode.NODE_LOST, f"its Ray node{where} was lost"
    if isinstance(error, kinds.WorkerCrashedError | kinds.LocalRayletDiedError):
        return records.AttemptCode.WORKER_LOST, "its Ray worker ended unexpectedly"
    raise LauncherError(f"the Ray cluster cannot run it: {line_of(error)}") from None


def line_of(error: BaseException) -> str:
    """Return the most informative line of a Ray error: the last of a traceback, or the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if "Traceback" in str(error) else next(iter(lines), ""))[:300]


class Driver:
    """A connection, made on first use, and the orders. All methods raise LauncherError."""

    def __init__(self, asked: launcher.ClusterConnection) -> None:
        self.asked = asked
        self.address = asked.address or os.environ.get("RAY_ADDRESS", "")
        self.is_our_own = not self.address

    @cached_property
    def ray(self) -> Any:
        """Ray, connected; without an address and without RAY_ADDRESS, to a cluster of its own.

        Nodes receive this process's own compilewatch, as a module of the runtime environment;
        everything else that a worker imports must be installed there.
        """
        ray = load_ray()
        arguments: dict[str, Any] = {
            "address": self.address or "local",
            "log_to_driver": False,
            "configure_logging": False,
            "runtime_env": {"py_modules": [str(Path(compilewatch.__file__).parent)]},
        }
        if self.address:
            _reach(self.address)
        else:
            arguments |= {
                "num_cpus": self.asked.jobs,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
                # Not reserved, as on one machine without Ray.
                "_memory": self.asked.jobs * self.asked.memory_limit_bytes,
            }
        kinds = (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError)
        try:
            ray.init(**arguments)
        except kinds as error:
            where = self.address or "on this machine"
            lines = str(error).strip().splitlines() or [type(error).__name__]
            advice = "" if os.environ.get("RAY_AUTH_MODE") else TOKEN_ADVICE
            raise LauncherError(f"no Ray cluster {where}: {lines[0][:300]}{advice}") from None
        return ray

    def close(self) -> None:
        """Leave the cluster; Ray ends this driver's workers, with their servers and children."""
        if "ray" in vars(self):
            self.ray.shutdown()

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes that have a CPU, in the order of their ids."""
        nodes = (
            Node(n["NodeID"], n["NodeManagerAddress"], n["Resources"])
            for n in self.ray.nodes()
            if n["Alive"] and n["Resources"].get("CPU", 0) >= 1
        )
        return tuple(sorted(nodes, key=lambda node: node.id))

    def reports(self, order: launcher.ClusterOrder) -> Generator[launcher.ClusterReport]:
        """Execute an order and yield the reports for the launcher."""
        try:
            if order.verb == "describe":
                agreed = self.agreed()
                slots = sum(node.slots(self.asked.memory_limit_bytes) for node in self.nodes())
                yield launcher.ClusterReport(
                    kind="described", environments=agreed, jobs=max(1, slots)
                )
            else:
                yield from ClusterExecution(self, order).run()
                yield launcher.ClusterReport(kind="done")
        except LauncherError as error:
            yield launcher.ClusterReport(kind="failed", reason=str(error))

    def agreed(self) -> tuple[records.Environment, ...]:
        """Return the environments of the nodes. Raises LauncherError if nodes differ."""
        agreed: dict[str, tuple[str, records.Environment]] = {}
        lacking: dict[str, str] = {}
        descriptions = list(self.descriptions())
        if not descriptions:
            raise LauncherError("the Ray cluster has no node with a CPU: start one (`ray start`)")
        for node, called, environments in descriptions:
            has = {environment.name: environment for environment in environments}
            for name in self.asked.environments:
                if not self.eligible(node, name):
                    continue
                if name not in has:
                    lacking.setdefault(name, called)
                elif name not in agreed:
                    agreed[name] = (called, has[name])
                else:
                    check_equal(*agreed[name], called, has[name])
        for name, (node_name, _) in agreed.items():
            if name in lacking:
                raise LauncherError(
                    f"node {lacking[name]} has no environment {name!r}, node {node_name} has it: "
                    f"create it (compilewatch env create {name}), or remove one of the nodes"
                )
        return tuple(environment for _, environment in agreed.values())

    def eligible(self, node: Node, name: str) -> bool:
        """Whether requests in this environment are placed on this node."""
        if node.has_neuron_cores or name != default_environment("neuron"):
            return True
        return not any(other.has_neuron_cores for other in self.nodes())

    def descriptions(self) -> Iterator[tuple[Node, str, Sequence[records.Environment]]]:
        """Yield each living node with its name and environments; all are asked in parallel."""
        ray = self.ray
        task = ray.remote(num_cpus=0, max_retries=0)(ray_node.described)
        references = {}
        for node in self.nodes():
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                node_id=node.id, soft=False
            )
            options = task.options(scheduling_strategy=there)
            references[node] = options.remote(self.asked.environments, self.asked.cache)
        ends = time.monotonic() + DESCRIBE_SECONDS
        for node, ref in references.items():
            try:
                description = ray.get(ref, timeout=max(1.0, ends - time.monotonic()))
            except (ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError):
                continue  # just lost: Ray lists a node until its health checks fail
            except ray.exceptions.RayError as error:
                raise LauncherError(
                    f"node {node.address} ({node.id[:8]}) cannot describe itself: {line_of(error)}"
                ) from None
            yield node, *opened(description, tuple[records.Environment, ...])


def check_equal(
    node: str, known: records.Environment, other_node: str, other: records.Environment
) -> None:
    """Raise LauncherError unless two nodes have equal environments, which keys depend on."""
    if known.digest == other.digest:
        return
    lines = records.environment_differences(known, other)
    lines += records.changed("compilewatch", known.harness_version, other.harness_version)
    difference = next(iter(lines), "digest")
    raise LauncherError(
        f"environment {known.name!r} is not the same on all nodes: {difference} (from {node} to "
        f"{other_node}): make them equal, or remove one of the nodes"
    )


def serve(channel: socket.socket, driver: Driver) -> None:
    """Execute orders until the other end is closed or the cluster is lost."""
    lines = Lines(channel)
    try:
        while (received := lines.receive()) is not None:
            for order in map(_orders.decode, received):
                with contextlib.closing(driver.reports(order)) as reports:
                    for report in reports:
                        readable, _, _ = select.select([channel], [], [], 0)
                        if readable and not channel.recv(1, socket.MSG_PEEK):
                            return
                        lines.send(report)
    except ConnectionError:
        return
    finally:
        driver.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="compilewatch.extras.cluster.driver")
    parser.add_argument("--connect", type=str.encode, required=True)
    parser.add_argument("--channel", type=int, required=True)
    options = parser.parse_args()
    try:
        channel = socket.socket(fileno=options.channel)
        channel.set_inheritable(False)
        serve(
            channel, Driver(msgspec.json.decode(options.connect, type=launcher.ClusterConnection))
        )
    except Exception:  # noqa: BLE001  (Ray itself ends this process with another status)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(launcher.OUR_OWN_FAULT)


if __name__ == "__main__":
    main()
