"""Questions about syntax trees that several rules ask."""

from __future__ import annotations

import ast
from collections.abc import Sequence


def name_of(node: ast.AST | None) -> str:
    """The name that an expression is; empty if it is anything else."""
    return node.id if isinstance(node, ast.Name) else ""


def attribute_call(node: ast.AST, name: str) -> ast.expr | None:
    """`x` of the call `x.name()` without arguments."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[], keywords=[]):
            return value if attr == name else None
    return None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def only_used_in(function: ast.AST, names: set[str], statements: Sequence[ast.stmt]) -> bool:
    """Whether names appear nowhere in a function but in these statements."""
    inside = {id(node) for each in statements for node in ast.walk(each)}
    return not any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in inside
        for node in ast.walk(function)
    )
