"""Rewrites of source lines: where a rule looks, what it writes, and the change that it becomes.

A rule is a function with a row in `rules.RULES`. Its row says for which reasons it is tried, and
docs/fixes-rewrites.md has an example before and after, which its test uses. A rule must be
conservative: it says why what it writes computes the same, and under which conditions.
"""

import ast
import difflib
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.records import Edit, FixChange, FixKind

Function = ast.FunctionDef | ast.AsyncFunctionDef

Edits = tuple[Edit, ...]
"""What a rule changes at one site, in the order of the lines; empty if it does not apply."""

SourceOf = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A statement of a function that can be rewritten.

    `path` names the function in its module, as `Class.forward`. `around` are the statements that
    contain `statement`, outermost first, inside of the function.
    """

    file: str
    path: str
    lines: tuple[str, ...]
    function: Function
    statement: ast.stmt
    around: tuple[ast.stmt, ...]

    @property
    def indent(self) -> str:
        return " " * self.statement.col_offset

    def new_name(self, base: str) -> str:
        """A name that the function does not use."""
        nodes = list(ast.walk(self.function))
        taken = {node.id for node in nodes if isinstance(node, ast.Name)}
        taken |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        while base in taken:
            base += "_"
        return base

    def block(self) -> list[ast.stmt]:
        """The statements of the body that directly contains the statement."""
        owner = self.around[-1] if self.around else self.function
        owners = [owner, *getattr(owner, "handlers", [])]
        bodies = [getattr(o, n, []) for o in owners for n in ("body", "orelse", "finalbody")]
        return next((list(body) for body in bodies if self.statement in body), [self.statement])

    def after(self) -> list[ast.stmt]:
        """The statement after this one, in its own body, if there is one."""
        block = self.block()
        at = block.index(self.statement) + 1
        return block[at : at + 1]

    def edit(
        self,
        first: ast.AST,
        new: str,
        branches: Sequence[tuple[str, str, str]] = (),
        *,
        last: ast.AST | None = None,
    ) -> Edit | None:
        """The edit that puts lines in the place of those of a node, or of two and all between them.

        None if those are not unique. Lines that are there more than once in the function are made
        unique by those after them. `branches` are those of the edit.
        """
        begin, end = lines_of(first, last)
        start, stop = lines_of(self.function)
        for until in range(end, stop + 1):
            old = self.lines[begin - 1 : until]
            ends = range(start + len(old) - 1, stop + 1)
            if sum(self.lines[at - len(old) : at] == old for at in ends) == 1:
                rest = "".join(self.lines[end:until])
                return Edit(
                    file=self.file,
                    path=self.path,
                    line=begin,
                    old="".join(old),
                    new=new + rest,
                    branches=tuple((name, a + rest, b + rest) for name, a, b in branches),
                )
        return None

    def replaced(self, node: ast.expr, new: str) -> Edit | None:
        """The edit that puts an expression in the place of another, in its lines."""
        first, last = lines_of(node)
        head = self.lines[first - 1].encode()[: node.col_offset].decode()
        tail = self.lines[last - 1].encode()[node.end_col_offset :].decode()
        return self.edit(node, f"{head}{new}{tail}")


def lines_of(first: ast.AST, last: ast.AST | None = None) -> tuple[int, int]:
    """The first and the last line of one node, or of two and all between them."""
    last = last or first
    return first.lineno, last.end_lineno or last.lineno  # type: ignore[attr-defined]


def site_at(source: str, file: str, line: int) -> Site | None:
    """The site at a line; None if it is in no function that can be rewritten.

    A function that is defined in another cannot: it exists once for each call of that one.
    """
    try:
        body: list[ast.stmt] = ast.parse(source).body
    except SyntaxError:
        return None
    names: list[str] = []
    while True:
        inside = next((statement for statement in body if _holds(statement, line)), None)
        if isinstance(inside, ast.ClassDef):
            names.append(inside.name)
            body = inside.body
        elif isinstance(inside, ast.If | ast.Try):
            body = [child for child in ast.iter_child_nodes(inside) if isinstance(child, ast.stmt)]
        else:
            break
    if not isinstance(inside, Function) or line < inside.body[0].lineno:
        return None
    inner = (node for node in ast.walk(inside) if isinstance(node, Function) and node is not inside)
    statements = tuple(_statements_at(inside, line))
    # The line of a break is that of a bytecode, and may be empty.
    if any(_holds(node, line) for node in inner) or not statements:
        return None
    return Site(
        file=file,
        path=".".join([*names, inside.name]),
        lines=tuple(source.splitlines(keepends=True)),
        function=inside,
        statement=statements[-1],
        around=statements[:-1],
    )


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


# --- what rules share -----------------------------------------------------------------------------


def with_test(
    site: Site, statement: ast.stmt, owner: ast.If | ast.IfExp, taken: bool, last: ast.stmt
) -> str:
    """The lines of a statement, and of the one after it, with one branch of `owner` forced."""
    test, owner.test = owner.test, ast.Constant(taken)
    nodes = [statement] if last is statement else [statement, last]
    text = "\n".join(map(ast.unparse, nodes))
    owner.test = test
    return textwrap.indent(text, site.indent) + "\n"


def name_of(node: ast.AST | None) -> str:
    """The name that an expression is; empty if it is anything else."""
    return node.id if isinstance(node, ast.Name) else ""


def uses_of(name: str, *nodes: ast.AST) -> list[ast.Name]:
    """Where nodes have a name."""
    inner = (part for node in nodes for part in ast.walk(node))
    return [part for part in inner if isinstance(part, ast.Name) and part.id == name]


def attribute_call(node: ast.AST, name: str) -> ast.expr | None:
    """`x` of the call `x.name()` without arguments."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr=attr), args=[], keywords=[]):
            return value if attr == name else None
    return None


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


class _WithoutItem(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return attribute_call(node, "item") or node


def without_item(expression: ast.expr) -> ast.expr:
    """An expression on tensors instead of the numbers in them."""
    copied = ast.parse(ast.unparse(expression), mode="eval")
    changed: ast.Expression = _WithoutItem().visit(copied)
    return changed.body


# --- changes --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RewriteRule:
    """A row of the table of rules.

    `when` is a pattern in the code and reason of a break, or in the message of an error of the
    compiler. With `other_error`, an error of the model becomes one of another type: it applies only
    where nothing catches errors. `holds_if` are conditions that no script can try.
    """

    name: str
    summary: str
    when: str
    apply: Callable[[Site], Edits]
    holds_if: tuple[str, ...]
    other_error: bool = False


def all_of(*edits: Edit | None) -> Edits:
    """The edits, if all could be made."""
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()


def change(rule: RewriteRule, edits: Sequence[Edit], source_of: SourceOf) -> FixChange:
    """Return the change that makes these edits."""
    imports, definitions = replacements.pasted(replacements.edited, replacements.edited_code)
    functions = [(module_of(edit.file), edit.path) for edit in edits]
    stems = [edit.file.rpartition("/")[2].removesuffix(".py") for edit in edits]
    constants, lines = [], []
    for edit, stem, function in zip(edits, stems, functions, strict=True):
        name = re.sub(r"\W", "_", f"{stem}_{edit.path}_{edit.line}").upper()
        name += f"_{sum(map(ord, edit.old + edit.new)) % 1000}"  # another one for each edit
        constants.append(f"{name} = (\n{_literal(edit.old)},\n{_literal(edit.new)},\n)")
        call = f"edited({', '.join(map(repr, function))}, {name})"
        lines.append(f"stack.enter_context({call})")
    places = dict.fromkeys(f"{stem}:{edit.line}" for edit, stem in zip(edits, stems, strict=True))
    return FixChange(
        name=f"{rule.name} at {', '.join(places)}",
        kind=FixKind.REWRITE,
        summary=rule.summary,
        imports=imports,
        definitions=(
            "IN_FORCE: dict[Any, tuple[tuple[str, str], ...]] = {}  # by function",
            *definitions,
            *constants,
        ),
        lines=tuple(lines),
        edits=tuple(edits),
        functions=tuple(f"{module}:{path}" for module, path in functions),
        diff=patch(edits, source_of),
        holds_if=rule.holds_if,
    )


def _literal(text: str) -> str:
    """Lines as a literal on several lines, each of them readable."""
    return "\n".join(f"    {line!r}" for line in text.splitlines(keepends=True)) or "    ''"


def patch(edits: Sequence[Edit], source_of: SourceOf) -> str:
    """Return edits as a unified diff that `patch -p1` applies in the folder of the packages."""
    parts: list[str] = []
    for file in dict.fromkeys(edit.file for edit in edits):
        before = (source_of(file) or "").splitlines(keepends=True)
        after = list(before)
        for edit in edits:
            old = edit.old.splitlines(keepends=True)
            places = [i for i in range(len(after)) if after[i : i + len(old)] == old]
            if edit.file == file and places:
                at = min(places, key=lambda i: abs(i + 1 - edit.line))
                after[at : at + len(old)] = edit.new.splitlines(keepends=True)
        parts += difflib.unified_diff(before, after, f"a/{file}", f"b/{file}")
    return "".join(parts)


def module_of(file: str) -> str:
    """Return the name of the module in a file, relative to the folder of packages."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
