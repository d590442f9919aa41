"""A rewrite as a change: the source that puts it in force, and its diff."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from compilewatch.extras.fixes.records import Edit, FixChange, FixKind
from compilewatch.extras.fixes.rewriting.sites import RewriteRule

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


IMPORTS = (
    "import ast",
    "import contextlib",
    "import functools",
    "import importlib",
    "import inspect",
    "from collections.abc import Iterator",
    "from pathlib import Path",
    "from types import CodeType, FunctionType",
    "from typing import Any",
)
"""What the source of `editing` needs."""

SourceOf = Callable[[str], str | None]


def change(rule: RewriteRule, edits: Sequence[Edit], source_of: SourceOf) -> FixChange:
    """Return the change that makes these edits."""
    places = {f"{_stem(edit.file)}:{edit.line}": None for edit in edits}
    constants, lines = [], []
    for edit in edits:
        name = _constant(edit)
        constants.append(f"{name} = (\n{_literal(edit.old)},\n{_literal(edit.new)},\n)")
        lines.append(
            f"stack.enter_context(edited({module_of(edit.file)!r}, {edit.path!r}, {name}))",
        )
    return FixChange(
        name=f"{rule.name} at {', '.join(places)}",
        kind=FixKind.REWRITE,
        summary=rule.summary,
        imports=IMPORTS,
        definitions=(*_definitions(), *constants),
        lines=tuple(lines),
        edits=tuple(edits),
        functions=tuple(f"{module_of(edit.file)}:{edit.path}" for edit in edits),
        diff=patch(edits, source_of),
        removes_check=rule.removes_check,
        holds_if=rule.holds_if,
    )


def patch(edits: Sequence[Edit], source_of: SourceOf) -> str:
    """Return edits as a unified diff that `patch -p1` applies in the folder of the packages."""
    parts: list[str] = []
    for file in dict.fromkeys(edit.file for edit in edits):
        before = (source_of(file) or "").splitlines(keepends=True)
        after = list(before)
        for edit_of_file in [edit for edit in edits if edit.file == file]:
            old = edit_of_file.old.splitlines(keepends=True)
            places = [i for i in range(len(after)) if after[i : i + len(old)] == old]
            if places:
                at = min(places, key=lambda i: abs(i + 1 - edit_of_file.line))
                after[at : at + len(old)] = edit_of_file.new.splitlines(keepends=True)
        parts += difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(parts)


def _definitions() -> tuple[str, ...]:
    here = inspect.getsource(sys.modules[__name__])
    in_force = next(line for line in here.splitlines() if line.startswith("IN_FORCE"))
    return in_force, inspect.getsource(edited), inspect.getsource(edited_code)


def _stem(file: str) -> str:
    return file.rpartition("/")[2].removesuffix(".py")


def module_of(file: str) -> str:
    """Return the name of the module in a file, relative to the folder of packages."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _constant(edit: Edit) -> str:
    """The name of the constant with an edit, different for each."""
    name = re.sub(r"\W", "_", f"{_stem(edit.file)}_{edit.path}_{edit.line}").upper()
    again = sum(map(ord, edit.old + edit.new)) % 1000
    return f"{name}_{again}"


def _literal(text: str) -> str:
    """Lines as a literal on several lines, each of them readable."""
    return "\n".join(f"    {line!r}" for line in text.splitlines(keepends=True)) or "    ''"
