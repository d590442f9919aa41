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
    inside = {id(node) for statement in statements for node in ast.walk(statement)}
    return not any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in inside
        for node in ast.walk(function)
    )


_MESSAGES = ("debug", "info", "warning", "warning_once", "info_once", "error", "critical", "log")
_HARMLESS = ("len", "str", "repr", "type", "tuple", "list", "format", "int", "float")


def logger_call(call: ast.Call) -> bool:
    """Whether a call is that of a logger, `warnings.warn` or `print`, with no other effect."""
    function = ast.unparse(call.func)
    owner, _, method = function.rpartition(".")
    known = function in ("print", "warnings.warn") or (
        owner.rpartition(".")[2].lower() in ("logger", "logging", "log", "_logger")
        and method in _MESSAGES
    )
    return known and all(
        ast.unparse(node.func).rpartition(".")[2]
        in (*_HARMLESS, "size", "dim", "item", "tolist", "join")
        for node in ast.walk(call)
        if isinstance(node, ast.Call) and node is not call
    )


def stored_names(node: ast.AST) -> set[str]:
    """The names in a target of an assignment."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


class _WithoutItem(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return attribute_call(node, "item") or node


def without_item(expression: ast.expr) -> ast.expr:
    """An expression on tensors instead of the numbers in them."""
    copied = ast.parse(ast.unparse(expression), mode="eval")
    made: ast.Expression = _WithoutItem().visit(copied)
    return made.body
