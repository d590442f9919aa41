"""Where the code of a break lies: in the repository or in a package, and in which function."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


def own_path(file: str, files: Mapping[str, str], root: Path, own: Sequence[str]) -> str | None:
    """Return the path in the repository of a file that is own code, None for another file.

    `files` says where files lie on this machine. A file of a package in `own` is own code wherever
    it is installed.
    """
    package = file.partition("/")[0].removesuffix(".py")
    path = Path(files[file]).resolve() if file in files else None
    if path is not None and path.is_relative_to(root.resolve()):
        inside = path.relative_to(root.resolve())
        if not set(inside.parts) & set(_INSTALLED):
            return inside.as_posix()
    return file if package in own else None


def source_folders(root: Path, further: Iterable[str] = ()) -> tuple[Path, ...]:
    """Return the folders below which a repository's packages lie, `further` ones first."""
    return tuple(dict.fromkeys((*map(Path, further), root / "src", root)))


def located(files: Iterable[str], folders: Sequence[Path]) -> dict[str, str]:
    """Return where files of breaks lie that another process has named, without importing any.

    Each is relative to the parent of its package: one of `folders`, or where it is installed.
    """
    found: dict[str, str] = {}
    for file in files:
        path = next((p for p in (folder / file for folder in folders) if p.is_file()), None)
        path = path or _installed(file)
        if path is not None:
            found[file] = str(path)
    return found


def _installed(file: str) -> Path | None:
    package, _, rest = file.partition("/")
    if not rest or not package.isidentifier():
        return None
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    folders = spec.submodule_search_locations or () if spec is not None else ()
    return next((p for p in (Path(folder, rest) for folder in folders) if p.is_file()), None)


def qualified(path: str, line: int, function: str) -> str:
    """Return the qualified name of the function around a line (`Model.forward`).

    It is `function` where the file cannot be read.
    """
    best: tuple[int, str] | None = None
    try:
        changed = Path(path).stat().st_mtime_ns
    except OSError:
        return function
    for first, last, name in _functions(path, changed):
        if first <= line <= last and (best is None or first >= best[0]):
            best = (first, name)
    return best[1] if best is not None else function


@cache
def _functions(path: str, _changed: int) -> tuple[tuple[int, int, str], ...]:
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, int, str]] = []
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                if not isinstance(child, ast.ClassDef):
                    first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                    found.append((first, child.end_lineno or child.lineno, name))
                waiting.append((child, f"{name}."))
            else:
                waiting.append((child, prefix))
    return tuple(found)
