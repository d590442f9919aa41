"""The tasks that run on a node of a Ray cluster: evaluate a request, describe the node.

Each worker process of Ray is a slot. It keeps one `LocalLauncher` with one job, so a slot imports
torch once for an environment and then forks, and a request is supervised and retried exactly as on
one machine. Ray transfers bytes, which contain our records as MessagePack.
"""

import contextlib
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import msgspec

from compilewatch import records
from compilewatch.contract.processes import is_alive
from compilewatch.environments import Environments
from compilewatch.errors import CompilewatchError, LauncherError, OsErrorsAs
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.store import condense

Content = dict[str, bytes]
"""Relative path with slashes -> content of the file."""


class Parcel(records.Record, frozen=True, kw_only=True):
    """What a task returns, encoded, or the `problem` of the node: why it cannot do it."""

    node: str
    content: msgspec.Raw = msgspec.Raw(b"\xc0")  # nil
    problem: str = ""


NodeTask = tuple[records.Request, str, dict[str, Content], str | None]
"""A request for a slot, the digest that its environment must have, and the content of the files
that it names, by path; the folder of environments, None for that of the node's user."""

_orders = msgspec.msgpack.Decoder(NodeTask)
_encode = msgspec.msgpack.Encoder().encode


def described(names: Sequence[str], cache: str | None) -> bytes:
    """Return an encoded `Parcel` with those of the environments that this node has."""

    def environments() -> list[records.Environment]:
        known = Environments(Path(cache) if cache else None)
        there = known.available()
        return [known.describe(name) for name in names if name in there]

    return _sent(environments)


def evaluated(order: bytes) -> bytes:
    """Return an encoded `Parcel` with the result of one `NodeTask`, and its artifacts."""
    request, digest, files, cache = _orders.decode(order)
    return _sent(lambda: _slot(cache).evaluate(request, digest, files))


def _sent(content: Callable[[], object]) -> bytes:
    """A parcel; a problem of the node (no environment, a full disk) is in it."""
    try:
        return _encode(Parcel(node=node_name(), content=msgspec.Raw(_encode(content()))))
    except CompilewatchError as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}"
    return _encode(Parcel(node=node_name(), problem=problem))


class _Slot:
    """The server of this process, which has imported torch, and a folder for its files."""

    def __init__(self, cache: str | None) -> None:
        self._cache = Path(cache) if cache else None
        self._root = _own_folder()
        self._launcher: LocalLauncher | None = None
        self._name = ""

    def evaluate(
        self, asked: records.Request, digest: str, sent: dict[str, Content]
    ) -> tuple[records.Result, Content]:
        request = at_node(asked, sent, self._root / "files")
        scratch = self._root / "scratch"
        scratch.mkdir(exist_ok=True)
        launcher = self._of(request.target.environment)
        (environment,) = launcher.environments()
        if environment.digest != digest:
            raise LauncherError(
                f"its environment {environment.name!r} differs: torch {environment.torch}"
            )
        (completed,) = launcher.run([request], scratch)
        artifacts: Content = {}
        if completed.artifacts is not None:
            condense(completed.artifacts)  # before the transfer, and in parallel on many nodes
            artifacts = read(str(completed.artifacts))
            shutil.rmtree(completed.artifacts, ignore_errors=True)
        return msgspec.structs.replace(completed.result, request=asked), artifacts

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


# --- files --------------------------------------------------------------------------------------


def own_files(request: records.Request) -> tuple[str, ...]:
    """Return absolute paths of the files and the folder that a request names."""
    build = request.model.build
    config = build.configuration if isinstance(build, records.LibraryBuild) else None
    if isinstance(build, records.ConfigBuild) and not _in_place(build):
        config = build.config_file
    paths = (config, request.inputs_file, request.model.inputs_file, request.overrides_dir)
    return tuple(dict.fromkeys(path for path in paths if path is not None))


def read(path: str) -> Content:
    """Read a file, or all files below a folder. Raises LauncherError if that fails."""
    chosen = Path(path)
    with OsErrorsAs(LauncherError, f"{path}: cannot be sent"):
        if chosen.is_dir():
            files = (path for path in sorted(chosen.rglob("*")) if path.is_file())
            return {path.relative_to(chosen).as_posix(): path.read_bytes() for path in files}
        return {chosen.name: chosen.read_bytes()}


def lay_out(content: Mapping[str, bytes], root: Path) -> Path:
    """Write files to a folder below `root`, named by their digest, once; return the folder."""
    total = hashlib.sha256()
    for name, data in sorted(content.items()):
        total.update(f"{name}\0".encode() + hashlib.sha256(data).digest())
    folder = root / total.hexdigest()[:24]
    if not folder.is_dir():
        write(content, draft := root / f"{folder.name}.{os.getpid()}")
        draft.rename(folder)
    return folder


def at_node(request: records.Request, sent: Mapping[str, Content], root: Path) -> records.Request:
    """Return the request with the paths that its files have on this node.

    `sent` maps paths of the planning machine to content. Raises LauncherError for a file that is
    neither sent nor on this node.
    """

    def moved(path: str | None) -> str | None:
        """The path on this node; a folder is a folder on the node too."""
        if path is None or path not in sent:
            return path
        place = lay_out(sent[path], root)
        return str(place / Path(path).name if Path(path).name in sent[path] else place)

    build = request.model.build
    if isinstance(build, records.FactoryBuild):
        for folder in build.python_path:
            _require(folder, request)
    if isinstance(build, records.ConfigBuild) and _in_place(build):
        _require(build.config_file, request)
    elif isinstance(build, records.ConfigBuild):
        build = msgspec.structs.replace(build, config_file=moved(build.config_file))
    if isinstance(build, records.LibraryBuild):
        build = msgspec.structs.replace(build, configuration=moved(build.configuration))
    saved = moved(request.model.inputs_file)
    model = msgspec.structs.replace(request.model, build=build, inputs_file=saved)
    names = ("inputs_file", "overrides_dir")
    return msgspec.structs.replace(
        request, model=model, **{name: moved(getattr(request, name)) for name in names}
    )


def write(content: Mapping[str, bytes], folder: Path) -> None:
    """Write files to a new folder. Raises LauncherError for a name outside of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise LauncherError(f"a node sent a file named {name!r}: rejected")
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        (folder / relative).write_bytes(data)


def _in_place(build: records.ConfigBuild) -> bool:
    """Whether weights or code are read from the folder of the configuration."""
    return build.repo is None and (build.weights or build.trust_remote_code)


def _require(path: str, request: records.Request) -> None:
    if not Path(path).exists():
        raise LauncherError(
            f"{request.model.name} needs {path}, which does not exist: your own code and weights "
            "are not sent to nodes, so put them at the same path on every node"
        )
