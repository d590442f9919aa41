"""Rewrites of source lines: where a rule looks, what it writes, and the change that it becomes.

A rule is a function under `rules.rule`, which says for which reasons it is tried, and
docs/fixes-rewrites.md has an example before and after, which its test uses. A rule must be
conservative: it says why what it writes computes the same, and under which conditions.
"""

import ast
import difflib
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

import msgspec

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.records import Edit, FixChange

Function = ast.FunctionDef | ast.AsyncFunctionDef

Edits = tuple[Edit, ...]
"""What a rule changes at one site, in the order of the lines; empty if it does not apply."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A statement of a function that can be rewritten, and the lines of its file.

    `nodes` are the classes and the function that contain it, the statements around it, and itself.
    """

    file: str
    lines: tuple[str, ...]
    nodes: tuple[ast.stmt, ...]

    @property
    def function(self) -> Function:
        return next(node for node in self.nodes if isinstance(node, Function))

    @property
    def path(self) -> str:
        """The function in its module, as `Class.forward`."""
        outer = self.nodes[: self.nodes.index(self.function) + 1]
        return ".".join(node.name for node in outer if isinstance(node, ast.ClassDef | Function))

    @property
    def statement(self) -> ast.stmt:
        return self.nodes[-1]

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
        owner = self.nodes[-2]
        owners = [owner, *getattr(owner, "handlers", [])]
        bodies = [getattr(o, n, []) for o in owners for n in ("body", "orelse", "finalbody")]
        return next((list(body) for body in bodies if self.statement in body), [self.statement])

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
    nodes: list[ast.stmt] = []
    inner = _inner(parsed(source))
    while inside := next((s for s in inner if s.lineno <= line <= lines_of(s)[1]), None):
        nodes.append(inside)
        inner = _inner(inside)
    functions = [number for number, node in enumerate(nodes) if isinstance(node, Function)]
    # The line of a break is that of a bytecode, and may be empty.
    if len(functions) != 1 or functions[0] == len(nodes) - 1:
        return None
    classes = [node for node in nodes[: functions[0]] if isinstance(node, ast.ClassDef)]
    lines = tuple(source.splitlines(keepends=True))
    return Site(file=file, lines=lines, nodes=(*classes, *nodes[functions[0] :]))


def parsed(source: str) -> ast.Module:
    """The tree of a text; empty for one that is not Python."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def _inner(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that a node contains directly."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        elif isinstance(child, ast.ExceptHandler):
            yield from child.body


# --- what rules share -----------------------------------------------------------------------------


def branches_of(
    site: Site, owner: ast.If | ast.IfExp, last: ast.stmt, forced: Callable[[bool], str]
) -> list[tuple[str, str, str]]:
    """Return the branches of an edit of the statement and those after it, until `last`.

    The test of `owner` is a constant in them; `forced` gives the new lines.
    """
    test, branches = owner.test, []
    for taken, name in ((True, "taken"), (False, "not taken")):
        owner.test = ast.Constant(taken)
        text = "\n".join(map(ast.unparse, dict.fromkeys([site.statement, last])))
        plain = textwrap.indent(text, site.indent) + "\n"
        title = f"the branch at line {site.statement.lineno} {name}"
        branches.append((title, plain, forced(taken)))
    owner.test = test
    return branches


def name_of(node: ast.AST | None) -> str:
    """The name that an expression is; empty if it is anything else."""
    return node.id if isinstance(node, ast.Name) else ""


def uses_of(name: str, *nodes: ast.AST) -> list[ast.Name]:
    """Where nodes have a name."""
    inner = (part for node in nodes for part in ast.walk(node))
    return [part for part in inner if isinstance(part, ast.Name) and part.id == name]


class _WithoutItem(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="item"), args=[], keywords=[]):
                return value
        return node


def without_item(expression: ast.expr) -> ast.expr:
    """An expression on tensors instead of the numbers in them."""
    copied = ast.parse(ast.unparse(expression), mode="eval")
    changed: ast.Expression = _WithoutItem().visit(copied)
    return changed.body


# --- changes --------------------------------------------------------------------------------------


class RewriteRule(NamedTuple):
    """A rule: the change that it makes, but for its edits, when it is tried, and its function.

    `when` is a pattern in the code and reason of a break, or in the message of an error of the
    compiler.
    """

    change: FixChange
    when: str
    apply: Callable[[Site], Edits]


def all_of(*edits: Edit | None) -> Edits:
    """The edits, if all could be made."""
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()


def change(rule: RewriteRule, edits: Sequence[Edit]) -> FixChange:
    """Return the change that makes these edits."""
    imports, definitions = replacements.pasted(replacements.edited, replacements.edited_code)
    constants, lines, functions, places = [], [], [], []
    for edit in edits:
        module, stem = module_of(edit.file), PurePath(edit.file).stem
        name = re.sub(r"\W", "_", f"{stem}_{edit.path}_{edit.line}").upper()
        name += f"_{sum(map(ord, edit.old + edit.new)) % 1000}"  # another one for each edit
        constants.append(f"{name} = (\n{_literal(edit.old)},\n{_literal(edit.new)},\n)")
        lines.append(f"stack.enter_context(edited({module!r}, {edit.path!r}, {name}))")
        functions.append(f"{module}:{edit.path}")
        places.append(f"{stem}:{edit.line}")
    return msgspec.structs.replace(
        rule.change,
        name=f"{rule.change.name} at {', '.join(dict.fromkeys(places))}",
        imports=imports,
        definitions=(
            "IN_FORCE: dict[Any, tuple[tuple[str, str], ...]] = {}  # by function",
            *definitions,
            *constants,
        ),
        lines=tuple(lines),
        edits=tuple(edits),
        functions=tuple(functions),
    )


def _literal(text: str) -> str:
    """Lines as a literal on several lines, each of them readable."""
    return "\n".join(f"    {line!r}" for line in text.splitlines(keepends=True)) or "    ''"


def patch(edits: Sequence[Edit], source_of: Callable[[str], str | None]) -> str:
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
