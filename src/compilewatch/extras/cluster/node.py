"""The tasks that run on a node of a Ray cluster: evaluate a request, describe the node.

Each worker process of Ray is a slot. It keeps one `LocalLauncher` with one job, so a slot imports
torch once for an environment and then forks, and a request is supervised and retried exactly as on
one machine. Ray transfers bytes, which contain our records as MessagePack.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from compilewatch.contract.processes import is_alive
from compilewatch.environments import Environments
from compilewatch.errors import CompilewatchError
from compilewatch.extras.cluster.files import Content, at_node, pack
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Environment, Record, Request, Result
from compilewatch.store import condense


class NodeTask(Record, frozen=True, kw_only=True):
    """One request for a slot. `files` is the content of the files that only it names, by path.

    `digest` is the digest that the environment must have; `cache` is the folder of environments,
    None for that of the user who runs the node.
    """

    request: Request
    digest: str
    files: dict[str, Content] = {}  # noqa: RUF012  (msgspec copies it)
    cache: str | None = None


class Parcel(Record, frozen=True, kw_only=True):
    """The result of a request with its artifacts, or why the node cannot evaluate it."""

    node: str
    result: Result | None = None
    artifacts: Content = {}  # noqa: RUF012
    problem: str = ""


class Description(Record, frozen=True, kw_only=True):
    """The requested environments that a node has, or the problem with one of them."""

    node: str
    environments: tuple[Environment, ...] = ()
    problem: str = ""


_orders = msgspec.msgpack.Decoder(NodeTask)
_shared = msgspec.msgpack.Decoder(dict[str, Content])
_encode = msgspec.msgpack.Encoder().encode


def described(names: tuple[str, ...], cache: str | None) -> bytes:
    """Return an encoded `Description` of this node."""
    known = Environments(Path(cache) if cache else None)
    try:
        there = known.available()
        found = tuple(known.describe(name) for name in names if name in there)
    except CompilewatchError as error:
        return _encode(Description(node=node_name(), problem=str(error)))
    return _encode(Description(node=node_name(), environments=found))


def evaluated(order: bytes, shared: bytes) -> bytes:
    """Return an encoded `Parcel` for one `NodeTask`.

    `shared` is the content, by path, of the files that all orders share. A problem of the node (no
    environment, a full disk) is in the parcel.
    """
    decoded = _orders.decode(order)
    try:
        sent = _files(shared) | decoded.files
        return _encode(_slot(decoded.cache).evaluate(decoded, sent))
    except CompilewatchError as error:
        return _encode(Parcel(node=node_name(), problem=str(error)))
    except OSError as error:
        return _encode(Parcel(node=node_name(), problem=f"{error.filename}: {error.strerror}"))


class _Slot:
    """The server of this process, which has imported torch, and a folder for its files."""

    def __init__(self, cache: str | None) -> None:
        self._cache = Path(cache) if cache else None
        self._root = _own_folder()
        self._launcher: LocalLauncher | None = None
        self._name = ""

    def evaluate(self, order: NodeTask, sent: dict[str, Content]) -> Parcel:
        request = at_node(order.request, sent, self._root / "files")
        scratch = self._root / "scratch"
        scratch.mkdir(exist_ok=True)
        launcher = self._of(request.target.environment)
        (environment,) = launcher.environments()
        if environment.digest != order.digest:
            problem = f"its environment {environment.name!r} differs: torch {environment.torch}"
            return Parcel(node=node_name(), problem=problem)
        (completed,) = launcher.run([request], scratch)
        artifacts: Content = {}
        if completed.artifacts is not None:
            condense(completed.artifacts)  # before the transfer, and in parallel on many nodes
            artifacts = pack(completed.artifacts)
            shutil.rmtree(completed.artifacts, ignore_errors=True)
        result = msgspec.structs.replace(completed.result, request=order.request)
        return Parcel(node=node_name(), result=result, artifacts=artifacts)

    def _of(self, name: str) -> LocalLauncher:
        if self._launcher is None or self._name != name:
            if self._launcher is not None:
                self._launcher.close()
            self._launcher, self._name = LocalLauncher(1, (name,), cache=self._cache), name
        return self._launcher


@cache
def _slot(cache: str | None) -> _Slot:
    return _Slot(cache)


@cache
def _files(shared: bytes) -> dict[str, Content]:
    return _shared.decode(shared)


@cache
def node_name() -> str:
    """Return host name and the beginning of Ray's node id: nodes may share a machine."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"


def _own_folder() -> Path:
    """Return a folder for this process, and delete the folders of processes that have ended.

    Ray ends its workers by signals, so they cannot reliably delete their own folders.
    """
    root = Path(tempfile.gettempdir()) / f"compilewatch-ray-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    for old in root.iterdir():
        with contextlib.suppress(ValueError):
            if not is_alive(int(old.name)):
                shutil.rmtree(old, ignore_errors=True)
    folder = root / str(os.getpid())
    folder.mkdir(exist_ok=True)
    return folder
