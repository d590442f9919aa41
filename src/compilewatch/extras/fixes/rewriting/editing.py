"""Runs a function of a library with other lines in its source. This source is printed and pasted.

It imports nothing of compilewatch. An edit is a pair: complete lines of a function, which are there
once, and the lines that take their place.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

IN_FORCE: dict[Any, tuple[tuple[str, str], ...]] = {}  # by function


@contextlib.contextmanager
def edited(module: str, path: str, *edits: tuple[str, str]) -> Iterator[None]:
    """Edit a function while the context is open, in addition to edits that are in force."""
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    found = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
    function = inspect.unwrap(found)  # without its decorators
    before, others = function.__code__, IN_FORCE.get(function, ())
    IN_FORCE[function] = (*others, *edits)
    try:
        function.__code__ = edited_code(function, IN_FORCE[function])
        yield
    finally:
        function.__code__, IN_FORCE[function] = before, others


@functools.cache  # one code object for the same edits, or PyTorch would compile at each entry
def edited_code(function: FunctionType, edits: tuple[tuple[str, str], ...]) -> CodeType:
    """Compile a function in its file, with its edits. Lines keep their numbers for tracebacks."""
    file, first = function.__code__.co_filename, function.__code__.co_firstlineno
    lines = Path(file).read_text(encoding="utf-8").splitlines(keepends=True)
    end = first - 1 + len(inspect.getblock(lines[first - 1 :]))
    body, numbers = lines[first - 1 : end], list(range(first, end + 1))
    for old, new in ((o.splitlines(keepends=True), n.splitlines(keepends=True)) for o, n in edits):
        places = [i for i in range(len(body)) if body[i : i + len(old)] == old]
        if len(places) != 1:
            raise RuntimeError(f"{file} differs: {len(places)} times in a function: {''.join(old)}")
        here = slice(places[0], places[0] + len(old))
        kept = numbers[here]
        body[here], numbers[here] = new, [kept[min(i, len(kept) - 1)] for i in range(len(new))]
    tree = ast.parse("".join([*lines[: first - 1], *body, *lines[end:]]))
    numbers = [*range(1, first), *numbers, *range(end + 1, len(lines) + 1)]
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias):
            node.lineno = numbers[node.lineno - 1]
            node.end_lineno = numbers[(node.end_lineno or 1) - 1]
            node.end_col_offset = max(node.col_offset, node.end_col_offset or 0)
    waiting = [compile(tree, file, "exec", dont_inherit=True)]
    for code in waiting:
        if (code.co_name, code.co_firstlineno) == (function.__name__, first):
            return code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    raise RuntimeError(f"{file} differs: it has no {function.__qualname__} at line {first}")
