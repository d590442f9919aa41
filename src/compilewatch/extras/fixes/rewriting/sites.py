"""Where a rule looks: the statement at a line, the function around it, and their text."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
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
            places = sum(
                self.lines[at : at + len(old)] == old for at in range(start - 1, end - len(old) + 1)
            )
            if places == 1:
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
        head = self.lines[first - 1].encode()[: node.col_offset].decode()
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


Edits = tuple[Edit, ...]
"""What a rule changes at one site, in the order of the lines; empty if it does not apply."""


@dataclass(frozen=True, kw_only=True)
class RewriteRule:
    """A row of the table of rules.

    `when` is a pattern in the code and reason of a break, or in the message of an error of the
    compiler. `before` and `after` are bodies of a function, and `at` the line of `before`, from 1,
    that has the break. With `removes_check`, what was an error of the model is none any more; with
    `other_error` it is one of another type, so that it applies only where nothing catches errors.
    `holds_if` are conditions that no script can try.
    """

    name: str
    summary: str
    when: str
    apply: Callable[[Site], Edits]
    before: str
    after: str
    holds_if: tuple[str, ...]
    at: int = 1
    removes_check: bool = False
    other_error: bool = False


def all_of(*edits: Edit | None) -> Edits:
    """The edits, if all could be made."""
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()
