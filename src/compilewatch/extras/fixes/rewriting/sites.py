"""Where a rule looks: the statement at a line, the function around it, and their text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from compilewatch.extras.fixes.records import Edit

Function = ast.FunctionDef | ast.AsyncFunctionDef

LARGE = (*Function.__args__, ast.ClassDef)
"""Statements whose bodies are scopes of their own."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A statement of a function that can be rewritten.

    `path` names the function in its module, as `Class.forward`. `around` are the statements that
    contain `statement`, outermost first, inside of the function. `reason` is that of the break.
    """

    file: str
    path: str
    lines: tuple[str, ...]
    function: Function
    statement: ast.stmt
    around: tuple[ast.stmt, ...]
    line: int
    reason: str

    @property
    def indent(self) -> str:
        return " " * self.statement.col_offset

    @cached_property
    def names(self) -> frozenset[str]:
        """The names that the function uses or defines anywhere."""
        return frozenset(node.id for node in ast.walk(self.function) if isinstance(node, ast.Name))

    def text(self, node: ast.AST) -> str:
        """The source of an expression, on one line where it stood on several."""
        return ast.unparse(node)

    def new_name(self, base: str) -> str:
        """A name that the function does not use."""
        taken = self.names | {
            node.arg for node in ast.walk(self.function.args) if isinstance(node, ast.arg)
        }
        while base in taken:
            base += "_"
        return base

    def block(self) -> list[ast.stmt]:
        """The statements of the body that directly contains the statement."""
        return block_of(self.around[-1] if self.around else self.function, self.statement)

    def before(self) -> list[ast.stmt]:
        """The statements before this one, in its own body, nearest first."""
        block = self.block()
        return block[: block.index(self.statement)][::-1]

    def after(self) -> list[ast.stmt]:
        """The statements after this one, in its own body, nearest first."""
        block = self.block()
        return block[block.index(self.statement) + 1 :]

    def assigned(self, name: str) -> ast.expr | None:
        """What a name is assigned in the nearest statement before this one, in its own body.

        None if something between may assign it in another way.
        """
        for each in self.before():
            if isinstance(each, ast.Assign) and len(each.targets) == 1:
                target = each.targets[0]
                if isinstance(target, ast.Name) and target.id == name:
                    return each.value
            if name in stored(each):
                return None
        return None

    def span(self, first: ast.AST, last: ast.AST | None = None) -> tuple[int, int]:
        """The first and the last line of one node, or of two and all between them."""
        last = last or first
        return first.lineno, last.end_lineno or last.lineno  # type: ignore[attr-defined]

    def edit(
        self, span: tuple[int, int], new: str, branches: Sequence[tuple[str, str, str]] = ()
    ) -> Edit | None:
        """The edit that puts lines in the place of others; None if those are not unique.

        Lines that are there more than once in the function are made unique by those after them.
        `branches` are those of the edit.
        """
        first, last = span
        start, end = self.function.lineno, self.function.end_lineno or self.function.lineno
        while last <= end:
            old = self.lines[first - 1 : last]
            found = sum(
                self.lines[at : at + len(old)] == old for at in range(start - 1, end - len(old) + 1)
            )
            if found == 1:
                rest = "".join(self.lines[span[1] : last])
                return Edit(
                    file=self.file,
                    path=self.path,
                    line=first,
                    old="".join(old),
                    new=new + rest,
                    branches=tuple((name, a + rest, b + rest) for name, a, b in branches),
                )
            last += 1
        return None

    def replaced(self, node: ast.expr, new: str) -> Edit | None:
        """The edit that puts an expression in the place of another, in its lines."""
        first, last = self.span(node)
        head = _text_until(self.lines[first - 1], node.col_offset)
        tail = self.lines[last - 1].encode()[node.end_col_offset :].decode()
        return self.edit((first, last), f"{head}{new}{tail}")


def with_test(
    site: Site, statement: ast.stmt, owner: ast.If | ast.IfExp, taken: bool, last: ast.stmt
) -> str:
    """The lines of a statement, and of the one after it, with one branch of `owner` forced."""
    test, owner.test = owner.test, ast.Constant(taken)
    nodes = [statement] if last is statement else [statement, last]
    text = "\n".join(map(ast.unparse, nodes))
    owner.test = test
    return textwrap.indent(text, site.indent) + "\n"


def _text_until(line: str, offset: int) -> str:
    return line.encode()[:offset].decode()


def block_of(owner: ast.stmt, statement: ast.stmt) -> list[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(owner, name, [])
        if statement in block:
            return list(block)
    for handler in getattr(owner, "handlers", []):
        if statement in handler.body:
            return list(handler.body)
    return [statement]


def stored(node: ast.AST) -> set[str]:
    """The names that a statement assigns anywhere inside."""
    return {
        inner.id
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load)
    }


def site_at(source: str, file: str, line: int, reason: str) -> Site | None:
    """The site at a line; None if it is in no function that can be rewritten.

    A function that is defined in another cannot: it exists once for each call of that one.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    function, names = _function_at(tree, line)
    if function is None or not names:
        return None
    statements = tuple(_statements_at(function, line))
    if not statements:  # the line of a break is that of a bytecode, and may be empty
        return None
    *around, statement = statements
    return Site(
        file=file,
        path=".".join(names),
        lines=tuple(source.splitlines(keepends=True)),
        function=function,
        statement=statement,
        around=tuple(around),
        line=line,
        reason=reason,
    )


def _function_at(tree: ast.Module, line: int) -> tuple[Function | None, list[str]]:
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        inside = next((statement for statement in body if _holds(statement, line)), None)
        if isinstance(inside, ast.ClassDef):
            names.append(inside.name)
            body = inside.body
        elif isinstance(inside, ast.If | ast.Try):
            body = [child for child in ast.iter_child_nodes(inside) if isinstance(child, ast.stmt)]
        elif isinstance(inside, Function):
            names.append(inside.name)
            local = any(
                isinstance(node, Function) and _holds(node, line)
                for node in ast.walk(inside)
                if node is not inside
            )
            starts = inside.body[0].lineno
            return (None if local or line < starts else inside), names
        else:
            return None, []


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _statements_at(function: Function, line: int) -> Iterator[ast.stmt]:
    """Yield the statements around a line, outermost first, the innermost one last."""
    body: list[ast.AST] = list(function.body)
    while True:
        inside = next((e for e in body if isinstance(e, ast.stmt) and _holds(e, line)), None)
        if inside is None:
            return
        yield inside
        body = [
            statement
            for child in ast.iter_child_nodes(inside)
            for statement in (child.body if isinstance(child, ast.ExceptHandler) else [child])
        ]
