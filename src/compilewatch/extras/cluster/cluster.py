"""The connection to a Ray cluster."""

from __future__ import annotations

import importlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import compilewatch
from compilewatch import extras
from compilewatch.errors import LauncherError

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


@dataclass(frozen=True, kw_only=True)
class Node:
    """A living node that accepts tasks. `memory_bytes` is what Ray may assign to them."""

    id: str
    address: str
    cpus: int
    memory_bytes: int
    neuron_cores: int

    def slots(self, memory_limit_bytes: int) -> int:
        """Return how many requests with this memory limit can run at the same time."""
        return min(self.cpus, self.memory_bytes // memory_limit_bytes)


def load_ray() -> ModuleType:
    """Import Ray. Raises LauncherError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise LauncherError(f"the launcher ray needs Ray: {extras.install('cluster')}") from None


class Cluster:
    """A connection. Without an address and without RAY_ADDRESS, it starts its own cluster.

    Nodes receive this process's own compilewatch, as a module of the runtime environment;
    everything else that a worker imports must be installed there.
    """

    def __init__(self, address: str, jobs: int, memory_limit_bytes: int) -> None:
        self.ray: Any = load_ray()
        address = address or os.environ.get("RAY_ADDRESS", "")
        self.is_our_own = not address
        _connect(self.ray, address, jobs, memory_limit_bytes)

    def nodes(self) -> tuple[Node, ...]:
        """Return the living nodes that have a CPU, in the order of their ids."""
        found = []
        for node in self.ray.nodes():
            has = node["Resources"]
            if node["Alive"] and has.get("CPU", 0) >= 1:
                found.append(
                    Node(
                        id=node["NodeID"],
                        address=node["NodeManagerAddress"],
                        cpus=int(has["CPU"]),
                        memory_bytes=int(has.get("memory", 0)),
                        neuron_cores=int(has.get(NEURON_CORES, 0)),
                    )
                )
        return tuple(sorted(found, key=lambda node: node.id))

    def close(self) -> None:
        """Disconnect; Ray then ends this driver's workers, with their servers and children."""
        self.ray.shutdown()


def _connect(ray: Any, address: str, jobs: int, memory_limit_bytes: int) -> None:
    given: dict[str, Any] = {
        "address": address or "local",
        "log_to_driver": False,
        "configure_logging": False,
        "runtime_env": {"py_modules": [str(Path(compilewatch.__file__).parent)]},
    }
    if address:
        _reach(address)
    else:
        given |= {
            "num_cpus": jobs,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_memory": jobs * memory_limit_bytes,  # not reserved, as on one machine without Ray
        }
    try:
        ray.init(**given)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = address or "on this machine"
        lines = str(error).strip().splitlines() or [type(error).__name__]
        advice = "" if os.environ.get("RAY_AUTH_MODE") else TOKEN_ADVICE
        raise LauncherError(f"no Ray cluster {where}: {lines[0][:300]}{advice}") from None


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
        with socket.create_connection((host, int(port)), REACH_SECONDS) as probe:
            why = "" if os.environ.get("RAY_USE_TLS") == "1" or _speaks(probe) else "not a Ray head"
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise LauncherError(f"no Ray cluster responds at {address}: {why}; {advice}")


def _speaks(probe: socket.socket) -> bool:
    """Whether it is an HTTP/2 server like Ray's: it sends SETTINGS first (RFC 9113, 3.4)."""
    empty_settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    probe.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + empty_settings)
    header = probe.recv(9)
    return len(header) >= 4 and header[3] == 4
