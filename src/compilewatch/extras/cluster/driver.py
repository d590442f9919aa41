"""The process that is connected to a Ray cluster, controlled by a launcher over a socket.

It executes one order at a time. When the launcher closes the socket or ends, it cancels running
requests, disconnects, and ends the cluster if it started one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Generator, Iterator
from types import TracebackType

import msgspec

from compilewatch.contract.messages import Lines
from compilewatch.contract.targets import default_environment
from compilewatch.errors import LauncherError
from compilewatch.extras.cluster.batch import ClusterExecution, line_of
from compilewatch.extras.cluster.cluster import Cluster, Node
from compilewatch.extras.cluster.node import Description, described
from compilewatch.extras.cluster.protocol import (
    OUR_OWN_FAULT,
    ClusterBatch,
    ClusterFailed,
    Connect,
    Count,
    Counted,
    Describe,
    Described,
    Done,
    Order,
    Report,
)
from compilewatch.records import Environment

DESCRIBE_SECONDS = 180.0
"""For all nodes to describe themselves: each starts a worker and reads package metadata."""

_descriptions = msgspec.msgpack.Decoder(Description)
_orders = msgspec.json.Decoder(Order)


class Driver:
    """A connection, made on first use, and the orders. All methods raise LauncherError."""

    def __init__(self, wanted: Connect) -> None:
        self.wanted = wanted
        self.names = wanted.environments
        self.cache = wanted.cache
        self._connected: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        if self._connected is None:
            wanted = self.wanted
            self._connected = Cluster(wanted.address, wanted.jobs, wanted.memory_limit_bytes)
        return self._connected

    def close(self) -> None:
        """Leave the cluster; Ray ends what this driver still runs there."""
        if self._connected is not None:
            self._connected.close()

    def reports(self, order: Order) -> Generator[Report]:
        """Execute an order and yield the reports for the launcher."""
        try:
            if isinstance(order, Describe):
                yield Described(environments=self.agreed())
            elif isinstance(order, Count):
                limit = self.wanted.memory_limit_bytes
                slots = sum(node.slots(limit) for node in self.cluster.nodes())
                yield Counted(jobs=max(1, slots))
            elif isinstance(order, ClusterBatch):
                timeout = self.wanted.node_timeout_seconds
                yield from ClusterExecution(self.cluster, order, self.cache, timeout).run()
                yield Done()
        except LauncherError as error:
            yield ClusterFailed(reason=str(error))

    def agreed(self) -> tuple[Environment, ...]:
        """Return the environments of the nodes. Raises LauncherError if nodes differ."""
        found: dict[str, tuple[str, Environment]] = {}
        lacking: dict[str, str] = {}
        descriptions = list(self.descriptions())
        if not descriptions:
            raise LauncherError("the Ray cluster has no node with a CPU: start one (`ray start`)")
        for node, description in descriptions:
            if description.problem:
                raise LauncherError(f"node {description.node}: {description.problem}")
            has = {environment.name: environment for environment in description.environments}
            for name in self.names:
                if not self.eligible(node, name):
                    continue
                if name not in has:
                    lacking.setdefault(name, description.node)
                elif name not in found:
                    found[name] = (description.node, has[name])
                else:
                    check_equal(*found[name], description.node, has[name])
        for name, (node_name, _) in found.items():
            if name in lacking:
                raise LauncherError(
                    f"node {lacking[name]} has no environment {name!r}, node {node_name} has it: "
                    f"create it (compilewatch env create {name}), or remove one of the nodes"
                )
        return tuple(environment for _, environment in found.values())

    def eligible(self, node: Node, name: str) -> bool:
        """Whether requests in this environment are placed on this node."""
        if name != default_environment("neuron") or not any(
            n.neuron_cores for n in self.cluster.nodes()
        ):
            return True
        return node.neuron_cores > 0

    def descriptions(self) -> Iterator[tuple[Node, Description]]:
        """Yield the description of each living node; all nodes describe themselves in parallel."""
        ray = self.cluster.ray
        task = ray.remote(num_cpus=0, max_retries=0)(described)
        references = {}
        for node in self.cluster.nodes():
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                node_id=node.id, soft=False
            )
            options = task.options(scheduling_strategy=there)
            references[node] = options.remote(self.names, self.cache)
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
            yield node, _descriptions.decode(description)


def check_equal(node: str, known: Environment, other_node: str, other: Environment) -> None:
    """Raise LauncherError unless two nodes have equal environments, which keys depend on."""
    if known.digest == other.digest:
        return
    names = ("python", "torch", "torch_git", "transformers", "device", "harness_version")
    facts = [(n, getattr(known, n), getattr(other, n)) for n in names]
    packages = sorted({*known.packages, *other.packages})
    facts += [(n, known.packages.get(n), other.packages.get(n)) for n in packages]
    name, ours, theirs = next(((n, a, b) for n, a, b in facts if a != b), ("digest", "", ""))
    raise LauncherError(
        f"environment {known.name!r} is not the same on all nodes: {name} {theirs or 'missing'} on "
        f"{other_node}, {ours or 'missing'} on {node}: make them equal, or remove one of the nodes"
    )


def serve(channel: socket.socket) -> None:
    """Execute orders until the other end is closed or the cluster is lost."""
    lines = Lines(channel)
    driver: Driver | None = None
    try:
        while (received := lines.receive()) is not None:
            for order in map(_orders.decode, received):
                if driver is None:
                    assert isinstance(order, Connect)
                    driver = Driver(order)
                    continue
                with contextlib.closing(driver.reports(order)) as reports:
                    for report in reports:
                        if _closed(channel):
                            return
                        lines.send(report)
    except ConnectionError:
        return
    finally:
        if driver is not None:
            driver.close()


def _closed(channel: socket.socket) -> bool:
    readable, _, _ = select.select([channel], [], [], 0)
    return bool(readable) and not channel.recv(1, socket.MSG_PEEK)


def _end_by_our_own_fault(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(OUR_OWN_FAULT)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="compilewatch.extras.cluster.driver")
    parser.add_argument("--channel", type=int, required=True)
    options = parser.parse_args(arguments)
    sys.excepthook = _end_by_our_own_fault
    channel = socket.socket(fileno=options.channel)
    channel.set_inheritable(False)
    serve(channel)


if __name__ == "__main__":
    main(sys.argv[1:])
