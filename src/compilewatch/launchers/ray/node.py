"""What runs on a node of a Ray cluster: a slot that answers requests, and what the node is.

Each worker process of Ray is a slot. It keeps one `LocalLauncher` with one job, so a slot imports
torch once for an environment and then forks, and a request is watched, retried and judged exactly
as on one machine. Ray hands over bytes; what is in them is MessagePack of our own records.
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

from compilewatch.environments import available, describe
from compilewatch.errors import CompilewatchError
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.launchers.ray.files import Content, at_node, pack
from compilewatch.records import Environment, Record, Request, Result
from compilewatch.store import condense


class Order(Record, frozen=True, kw_only=True):
    """One request for a slot. `files` are the content of those that only it names, by path.

    `digest` is what the environment must be; `cache` is the folder of environments, None for that
    of the user who runs the node.
    """

    request: Request
    digest: str
    files: dict[str, Content] = {}  # noqa: RUF012  (msgspec copies it)
    cache: str | None = None


class Parcel(Record, frozen=True, kw_only=True):
    """A slot's answer: a result with its artifacts, or why the node can give none."""

    node: str
    result: Result | None = None
    artifacts: Content = {}  # noqa: RUF012
    refused: str = ""


class Description(Record, frozen=True, kw_only=True):
    """The environments that a node has of those asked for, or which is broken."""

    node: str
    environments: tuple[Environment, ...] = ()
    refused: str = ""


_orders = msgspec.msgpack.Decoder(Order)
_shared = msgspec.msgpack.Decoder(dict[str, Content])
_encode = msgspec.msgpack.Encoder().encode


def described(names: tuple[str, ...], cache: str | None) -> bytes:
    """A `Description` of this node."""
    place = Path(cache) if cache else None
    try:
        there = available(place)
        found = tuple(describe(name, place) for name in names if name in there)
    except CompilewatchError as error:
        return _encode(Description(node=node_name(), refused=str(error)))
    return _encode(Description(node=node_name(), environments=found))


def answered(order: bytes, shared: bytes) -> bytes:
    """A `Parcel` for one `Order`; `shared` is content, by path, of what all orders have in common.

    What makes the node unable to answer (no environment, a full disk) is in the parcel.
    """
    asked = _orders.decode(order)
    try:
        sent = _files(shared) | asked.files
        return _encode(_slot(asked.cache).answer(asked, sent))
    except CompilewatchError as error:
        return _encode(Parcel(node=node_name(), refused=str(error)))
    except OSError as error:
        return _encode(Parcel(node=node_name(), refused=f"{error.filename}: {error.strerror}"))


class _Slot:
    """The warm server of this process, and a folder for its files."""

    def __init__(self, cache: str | None) -> None:
        self._cache = Path(cache) if cache else None
        self._root = _own_folder()
        self._launcher: LocalLauncher | None = None
        self._name = ""

    def answer(self, asked: Order, sent: dict[str, Content]) -> Parcel:
        request = at_node(asked.request, sent, self._root / "files")
        scratch = self._root / "scratch"
        scratch.mkdir(exist_ok=True)
        launcher = self._of(request.target.environment)
        (environment,) = launcher.environments()
        if environment.digest != asked.digest:
            refused = f"its environment {environment.name!r} differs: torch {environment.torch}"
            return Parcel(node=node_name(), refused=refused)
        (completed,) = launcher.run([request], scratch)
        artifacts: Content = {}
        if completed.artifacts is not None:
            condense(completed.artifacts)  # here, where there are many, and before it travels
            artifacts = pack(completed.artifacts)
            shutil.rmtree(completed.artifacts, ignore_errors=True)
        result = msgspec.structs.replace(completed.result, request=asked.request)
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
    """Host name and the beginning of Ray's node id: several nodes may share a machine."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"


def _own_folder() -> Path:
    """A folder for this process; those of processes that are gone are removed on the way.

    Ray ends its workers by signals, so nothing can be relied on to be run at their end.
    """
    root = Path(tempfile.gettempdir()) / f"compilewatch-ray-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    for old in root.iterdir():
        with contextlib.suppress(ValueError):
            if not Path(f"/proc/{int(old.name)}").exists():
                shutil.rmtree(old, ignore_errors=True)
    folder = root / str(os.getpid())
    folder.mkdir(exist_ok=True)
    return folder
