"""Lines of installed source code around a line, found without importing anything."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from compilewatch.records import Request


class SourceLine(NamedTuple):
    number: int
    text: str


Excerpt = Callable[[str, int], "tuple[SourceLine, ...]"]
"""Maps a file, relative to its package, and a line number to the lines around it (or to none)."""


def excerpt_of(request: Request) -> Excerpt:
    """The excerpts for a result of this request: the model's own folders are searched first."""
    build = request.model.build
    return partial(source_excerpt, folders=getattr(build, "python_path", ()))


def source_excerpt(
    file: str, line: int, around: int = 2, *, folders: Sequence[str] = ()
) -> tuple[SourceLine, ...]:
    """The lines around `file`:`line`, where `file` is relative to its package's parent folder.

    That folder is one of `folders`; otherwise the package is located without importing it. The
    result is empty if the package is not installed for this interpreter or has no such file or
    line.
    """
    own = (path for path in (Path(folder, file) for folder in folders) if path.is_file())
    path = next(own, None) or _installed(file)
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    if not 1 <= line <= len(lines):
        return ()
    first, last = max(1, line - around), min(len(lines), line + around)
    return tuple(SourceLine(n, lines[n - 1]) for n in range(first, last + 1))


def _installed(file: str) -> Path | None:
    package, *rest = Path(file).parts or ("",)
    name = package.removesuffix(".py")
    if not name.isidentifier():
        # A dotted name is rejected too: locating a submodule would import its parents.
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin and package.endswith(".py") else None
    folders = [Path(folder, *rest) for folder in spec.submodule_search_locations or ()]
    return next((path for path in folders if path.is_file()), None)
