"""A rewrite as a change: the source that puts it in force, and its diff."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Sequence

from compilewatch.extras.fixes.records import Edit, FixChange, FixKind
from compilewatch.extras.fixes.rewriting import editing
from compilewatch.extras.fixes.rewriting.rule import RewriteRule

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
        for each in [edit for edit in edits if edit.file == file]:
            old = each.old.splitlines(keepends=True)
            places = [i for i in range(len(after)) if after[i : i + len(old)] == old]
            if places:
                at = min(places, key=lambda i: abs(i + 1 - each.line))
                after[at : at + len(old)] = each.new.splitlines(keepends=True)
        parts += difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(parts)


def _definitions() -> tuple[str, ...]:
    in_force = next(
        line for line in inspect.getsource(editing).splitlines() if line.startswith("IN_FORCE")
    )
    return in_force, inspect.getsource(editing.edited), inspect.getsource(editing.edited_code)


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
