"""Files that are sent to a node with a request, and files that are sent back.

A request names files by absolute paths of the machine that made the plan. Reviewed overrides, the
list of operators, saved inputs and configurations are small: their content is sent, and written on
the node under its digest. Code of a team, and a repository next to its configuration, are not sent:
they must exist at the same path on every node.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import msgspec

from compilewatch.errors import LauncherError
from compilewatch.records import ConfigBuild, FactoryBuild, LibraryBuild, Request

MOST_ARTIFACT_BYTES = 256 * 2**20
"""Limit for the artifacts of one result; `LEFT_OUT_FILE` names the files that exceed it."""

LEFT_OUT_FILE = "left_out.txt"

Content = dict[str, bytes]
"""Relative path with slashes -> content of the file."""


def shared_files(request: Request) -> tuple[str | None, str | None]:
    """Return a project's folder and file of reviewed data, which all requests of a sweep share."""
    return request.overrides_dir, request.neuron_operators


def own_files(request: Request) -> tuple[str, ...]:
    """Return absolute paths of the files that only this request names."""
    build = request.model.build
    config = build.configuration if isinstance(build, LibraryBuild) else None
    if isinstance(build, ConfigBuild) and not _in_place(build):
        config = build.config_file
    spec = request.model.inputs_file
    return tuple(dict.fromkeys(p for p in (config, request.inputs_file, spec) if p is not None))


def read(path: str) -> Content:
    """Read a file, or all files below a folder. Raises LauncherError if that fails."""
    chosen = Path(path)
    try:
        if chosen.is_dir():
            files = (path for path in sorted(chosen.rglob("*")) if path.is_file())
            return {path.relative_to(chosen).as_posix(): path.read_bytes() for path in files}
        return {chosen.name: chosen.read_bytes()}
    except OSError as error:
        raise LauncherError(f"{path}: cannot be sent to a node: {error.strerror}") from None


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


def at_node(request: Request, sent: Mapping[str, Content], root: Path) -> Request:
    """Return the request with the paths that its files have on this node.

    `sent` maps paths of the planning machine to content. Raises LauncherError for a file that is
    neither sent nor on this node.
    """
    build = request.model.build
    if isinstance(build, FactoryBuild):
        for folder in build.python_path:
            _require(folder, request)
    if isinstance(build, ConfigBuild):
        if _in_place(build):
            _require(build.config_file, request)
        else:
            moved = _moved(build.config_file, sent, root)
            build = msgspec.structs.replace(build, config_file=moved)
    if isinstance(build, LibraryBuild) and (path := build.configuration) is not None:
        # A folder of configurations is a folder on the node too.
        is_folder = Path(path).name not in sent.get(path, {})
        moved = _moved(path, sent, root, folder=is_folder)
        build = msgspec.structs.replace(build, configuration=moved)
    changes: dict[str, str] = {}
    for name in ("inputs_file", "neuron_operators"):
        if (path := getattr(request, name)) is not None:
            changes[name] = _moved(path, sent, root)
    if request.overrides_dir is not None:
        changes["overrides_dir"] = _moved(request.overrides_dir, sent, root, folder=True)
    saved = request.model.inputs_file
    saved = _moved(saved, sent, root) if saved is not None else None
    model = msgspec.structs.replace(request.model, build=build, inputs_file=saved)
    return msgspec.structs.replace(request, model=model, **changes)


def pack(folder: Path, most_bytes: int = MOST_ARTIFACT_BYTES) -> Content:
    """Read the files of a folder, small ones first, up to `most_bytes`."""
    packed: Content = {}
    left_out: list[str] = []
    room = most_bytes
    files = [(path.stat().st_size, path) for path in folder.rglob("*") if path.is_file()]
    for size, path in sorted(files):
        name = path.relative_to(folder).as_posix()
        if size > room:
            left_out.append(f"{name}: {size} bytes, not sent back from the node\n")
            continue
        room -= size
        packed[name] = path.read_bytes()
    if left_out:
        packed[LEFT_OUT_FILE] = "".join(left_out).encode()
    return packed


def write(content: Mapping[str, bytes], folder: Path) -> None:
    """Write files to a new folder. Raises LauncherError for a name outside of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        relative = PurePosixPath(name)
        if relative.is_absolute() or ".." in relative.parts:
            raise LauncherError(f"a node sent a file named {name!r}: rejected")
        (folder / relative).parent.mkdir(parents=True, exist_ok=True)
        (folder / relative).write_bytes(data)


def _in_place(build: ConfigBuild) -> bool:
    """Whether weights or code are read from the folder of the configuration."""
    return build.repo is None and (build.weights or build.trust_remote_code)


def _require(path: str, request: Request) -> None:
    if not Path(path).exists():
        raise LauncherError(
            f"{request.model.name} needs {path}, which does not exist: your own code and weights "
            "are not sent to nodes, so put them at the same path on every node"
        )


def _moved(path: str, sent: Mapping[str, Content], root: Path, *, folder: bool = False) -> str:
    if path not in sent:
        return path
    place = lay_out(sent[path], root)
    return str(place if folder else place / Path(path).name)
