"""Syntax trees of functions and statements, and the names that they read."""

from __future__ import annotations

import ast
import functools
import linecache
from types import CodeType, FunctionType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Statement = ast.stmt

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Names of code objects that are part of a statement of another function."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try)


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file; None if it cannot be read."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        return None


def function_of(code: CodeType) -> Function | None:
    """The definition from which a code object was compiled, as a tree that may be changed."""
    node = _functions(code.co_filename).get((code.co_firstlineno, code.co_name))
    return _copied(node) if node is not None else None


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> dict[tuple[int, str], Function]:
    """The functions of a file by their first line, that of a decorator, and their name."""
    functions: dict[tuple[int, str], Function] = {}
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Lambda):
            functions.setdefault((node.lineno, "<lambda>"), node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions[first, node.name] = node
    return functions


def _copied(node: Function) -> Function:
    copied = ast.parse(ast.unparse(node)).body[0]
    if isinstance(copied, ast.Expr) and isinstance(copied.value, ast.Lambda):
        return copied.value
    assert isinstance(copied, ast.FunctionDef | ast.AsyncFunctionDef)
    return copied


def statements_at(code: CodeType, line: int) -> list[Statement]:
    """The statements of a function that contain a line of its file, innermost first."""
    tree = tree_of(code.co_filename)
    statements: list[Statement] = []
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.stmt) or isinstance(node, _SCOPES):
            continue
        inside = code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)
        if inside:
            statements.append(node)
    statements.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)), reverse=True)
    return statements


def arguments_of(statement: Statement) -> list[Statement]:
    """What a statement gives to a function that it calls, each as a statement of its own.

    A graph break there needs nothing of the function, which may be large.
    """
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return):
        return []
    if not isinstance(statement.value, ast.Call) or not isinstance(statement.value.func, ast.Name):
        return []
    call = statement.value
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    plain = (ast.Name, ast.Constant, ast.Attribute, ast.Starred, ast.JoinedStr, ast.Lambda)
    return [ast.Expr(value=each) for each in given if not isinstance(each, plain)]


def header_of(statement: Statement) -> Statement | None:
    """A compound statement with nothing in its body; None for another one."""
    if not isinstance(statement, _COMPOUND) or isinstance(statement, ast.Try):
        return None
    copied = ast.parse(ast.unparse(statement)).body[0]
    assert isinstance(copied, ast.For | ast.While | ast.If | ast.With)
    copied.body = [ast.Pass()]
    if not isinstance(copied, ast.With):
        copied.orelse = []
    return copied


def names_read(node: ast.AST) -> list[str]:
    """The names that code reads and that a scope around it must define, in their order.

    A name that the code itself assigns before is also here if it is read: a statement in a loop
    reads what its last run assigned.
    """
    bound = bound_names(node) if isinstance(node, _SCOPES) else _bound_by_scopes(node)
    names: dict[str, None] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Store):
            names.setdefault(inner.id)
        elif isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            names.setdefault(inner.target.id)
    return [name for name in names if name not in bound]


def bound_names(node: ast.AST) -> set[str]:
    """Names that code binds somewhere: arguments, targets, imports, and functions in it."""
    names = {part.id for part in ast.walk(node) if _stores(part)}  # type: ignore[attr-defined]
    names |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    inner = (e for e in ast.walk(node) if isinstance(e, _SCOPES) and e is not node)
    names |= {child.name for child in inner if not isinstance(child, ast.Lambda)}
    names |= {
        (alias.asname or alias.name).partition(".")[0]
        for part in ast.walk(node)
        if isinstance(part, ast.Import | ast.ImportFrom)
        for alias in part.names
    }
    handlers = (e for e in ast.walk(node) if isinstance(e, ast.ExceptHandler))
    return names | {handler.name for handler in handlers if handler.name}


def _stores(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _bound_by_scopes(node: ast.AST) -> set[str]:
    """Names that only exist in a comprehension or a lambda of a statement."""
    targets = (inner.target for inner in ast.walk(node) if isinstance(inner, ast.comprehension))
    names = {e.id for target in targets for e in ast.walk(target) if isinstance(e, ast.Name)}
    lambdas = (inner for inner in ast.walk(node) if isinstance(inner, ast.Lambda))
    return names | {
        inner.arg for f in lambdas for inner in ast.walk(f) if isinstance(inner, ast.arg)
    }


def attributes_read(node: ast.AST) -> set[str]:
    """The names of attributes that code reads, also those that `getattr` gets as a text."""
    attributes = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            if inner.func.id in ("getattr", "hasattr"):
                texts = (a.value for a in inner.args if isinstance(a, ast.Constant))
                attributes |= {text for text in texts if isinstance(text, str)}
        elif isinstance(inner, ast.JoinedStr):
            continue
    return attributes


def names_called(node: ast.AST) -> set[str]:
    """The last names of what code calls: `layer` for `self.layer(x)` and for `layer(x)`."""
    called = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    names = set()
    for inner in called:
        if isinstance(inner, ast.Attribute):
            names.add(inner.attr)
        elif isinstance(inner, ast.Name):
            names.add(inner.id)
    return names


class Plain(ast.NodeTransformer):
    """Removes annotations, docstrings and, if wanted, decorators, and renames global names."""

    def __init__(self, renamed: dict[str, str], *, decorators: bool = False) -> None:
        self._renamed = renamed
        self._decorators = decorators

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        if not self._decorators:
            node.decorator_list = []
        self._without_docstring(node)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.Assign(targets=[node.target], value=node.value, lineno=0)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._renamed.get(node.id, node.id)
        return node

    def _without_docstring(self, node: ast.FunctionDef) -> None:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:] or [ast.Pass()]


def scope_of(function: FunctionType) -> dict[str, Any]:
    """The values of the names that a function reads from outside: globals and its closure."""
    closure = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {**function.__globals__, **closure}


def without_annotations(node: ast.AST) -> None:
    """Remove annotations before names are looked up: a type is not needed."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            inner.annotation = None
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            inner.returns = None
        elif isinstance(inner, ast.AnnAssign):
            inner.annotation = ast.Constant(None)
