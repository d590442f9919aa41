"""Reading a package's source text, and keeping what was read in the user's cache folder."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from compilewatch.config import cache_folder
from compilewatch.errors import SourceError, StoreError
from compilewatch.files import DamagedError, from_json, write_atomically

T = TypeVar("T")


def read_cached(
    name: str,
    files: Iterable[Path],
    kind: Any,
    scan: Callable[[], T],
    *,
    readers: Iterable[Path] = (),
    cache: Path | None = None,
) -> T:
    """Return what a scan of `files` gives, from the cache if nothing changed.

    The key is the text of `readers` and of this file, which determine the result, and the path,
    size and time of each file. A cache that cannot be read or written is ignored, since it only
    saves time.
    """
    digest = hashlib.sha256()
    for path in (Path(__file__), *readers):
        digest.update(path.read_bytes())
    for path in files:
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    cached = (cache or cache_folder()) / f"library-{name}-{digest.hexdigest()[:16]}.json"
    try:
        found: T = from_json(cached.read_bytes(), kind)
    except (OSError, DamagedError):
        found = scan()
        with contextlib.suppress(StoreError):
            write_atomically(cached, msgspec.json.encode(found), durable=False)
    return found


def parsed(path: Path) -> ast.Module:
    """Parse a file of a package. Raises SourceError."""
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise SourceError(f"{path}: cannot be read: {error}") from None


def last_name(node: ast.expr | None) -> str | None:
    """Return `c` of the expressions `c`, `a.b.c`, `c(…)` and `c[…]`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def decorated(tree: ast.Module, decorator: str) -> Iterator[ast.FunctionDef]:
    """Yield the functions of a module that have a decorator of this name."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and decorator in map(last_name, node.decorator_list):
            yield node


def decorator_argument(function: ast.FunctionDef, decorator: str, argument: str) -> str | None:
    """Return the text that a decorator passes by this name."""
    for found in function.decorator_list:
        if isinstance(found, ast.Call) and last_name(found) == decorator:
            for keyword in found.keywords:
                value = keyword.value
                if keyword.arg == argument and isinstance(value, ast.Constant):
                    return str(value.value)
    return None
