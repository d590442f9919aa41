"""Does the code contain the paper's contribution, or a stock network with its name on it?

Three sources of evidence: the structure of the code, the reviewer's rubric (whose quotations are
looked up), and formulas that are computed beside the code in the sandbox (`worker/`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from compilewatch.extras.papers.records import (
    Claim,
    Evidence,
    FindingClass,
    PaperFinding,
    PaperPlan,
    PipelineStage,
    Review,
    operations_in,
)


class LivePart(NamedTuple):
    """A class that the model uses, or `model` itself, with the statements that count.

    `layers` are the calls that construct the attributes which live code uses.
    """

    name: str
    line: int
    statements: tuple[ast.AST, ...]
    layers: tuple[ast.Call, ...]


def live_parts(tree: ast.Module) -> tuple[LivePart, ...]:
    """The parts of the model, in the order in which they are found from `model()`."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    start = functions.get("model")
    if start is None:
        return ()
    parts: dict[str, LivePart] = {}
    waiting = [name for name in _names(start.body) if name in classes]
    waiting += [
        name
        for called in _names(start.body)
        if called in functions
        for name in _names(functions[called].body)
        if name in classes
    ]
    while waiting:
        name = waiting.pop(0)
        if name in parts:
            continue
        part = _part_of(classes[name], classes, functions)
        parts[name] = part
        nodes = [*part.statements, *part.layers]
        waiting += [inner for inner in _names(nodes) if inner in classes]
        waiting += [
            base.id
            for base in classes[name].bases
            if isinstance(base, ast.Name) and base.id in classes
        ]
    return tuple(parts.values())


def _part_of(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], functions: dict[str, ast.FunctionDef]
) -> LivePart:
    methods = _methods(node, classes)
    statements: list[ast.AST] = []
    seen: set[str] = set()
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        function = methods.get(name) or functions.get(name)
        if name in seen or function is None or name == "__init__":
            continue
        seen.add(name)
        live = live_statements(function)
        statements += live
        waiting += [name_used for name_used in _attributes(live) if name_used in methods]
        waiting += [name_used for name_used in _names(live) if name_used in functions]
    used = set(_attributes(statements))
    layers = tuple(_constructed(methods.get("__init__"), used))
    return LivePart(node.name, node.lineno, tuple(statements), layers)


def _methods(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], depth: int = 0
) -> dict[str, ast.FunctionDef]:
    """The methods of a class with those that it inherits from classes of the same file."""
    methods: dict[str, ast.FunctionDef] = {}
    for base in node.bases if depth < 5 else ():
        if isinstance(base, ast.Name) and base.id in classes and base.id != node.name:
            methods |= _methods(classes[base.id], classes, depth + 1)
    return methods | {
        statement.name: statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
    }


def live_statements(function: ast.FunctionDef) -> list[ast.AST]:
    """The statements of a function without those whose result nothing uses."""
    dead: set[int] = set()
    while True:
        read = set(_reads(function, dead))
        more = {
            id(node)
            for node in ast.walk(function)
            if id(node) not in dead and isinstance(node, ast.stmt) and _is_dead(node, read)
        }
        if not more:
            break
        dead |= more
    return [
        _Pruned(dead).visit(_copy(node, dead)) for node in function.body if id(node) not in dead
    ]


def _is_dead(node: ast.stmt, read: set[str]) -> bool:
    if isinstance(node, ast.Expr):
        call = node.value
        in_place = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr.endswith("_")
        )
        return not in_place and not isinstance(call, ast.Yield | ast.YieldFrom | ast.Await)
    if isinstance(node, ast.Assign):
        targets = [name for target in node.targets for name in _targets(target)]
        return bool(targets) and all(name is not None and name not in read for name in targets)
    if isinstance(node, ast.AnnAssign | ast.AugAssign):
        names = list(_targets(node.target))
        return all(name is not None and name not in read for name in names)
    return False


def _targets(node: ast.expr) -> Iterator[str | None]:
    """The names that an assignment binds; None for an attribute or an element."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Tuple | ast.List):
        for inner in node.elts:
            yield from _targets(inner)
    elif isinstance(node, ast.Starred):
        yield from _targets(node.value)
    else:
        yield None


def _reads(node: ast.AST, dead: set[int]) -> Iterator[str]:
    if id(node) in dead:
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for child in ast.iter_child_nodes(node):
        yield from _reads(child, dead)


class _Pruned(ast.NodeTransformer):
    """Replaces dead statements, and products with the constant zero, by `pass` and `0`."""

    def __init__(self, dead: set[int]) -> None:
        self._dead = dead

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        zero = any(isinstance(s, ast.Constant) and s.value == 0 for s in (node.left, node.right))
        if isinstance(node.op, ast.Mult) and zero:
            return ast.copy_location(ast.Constant(0), node)
        return self.generic_visit(node)


def _copy(node: ast.AST, dead: set[int]) -> ast.AST:
    """A copy of a tree without the dead statements inside it."""
    fields: dict[str, Any] = {}
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            fields[name] = [
                _copy(element, dead) if isinstance(element, ast.AST) else element
                for element in value
                if id(element) not in dead
            ]
        else:
            fields[name] = _copy(value, dead) if isinstance(value, ast.AST) else value
    return ast.copy_location(type(node)(**fields), node)


def _names(nodes: list[ast.stmt] | list[ast.AST] | tuple[ast.AST, ...]) -> list[str]:
    """The names that are read in some nodes, in order."""
    return [
        inner.id
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    ]


def _attributes(nodes: list[ast.AST]) -> list[str]:
    """The attributes of `self` that are read in some nodes."""
    return [
        inner.attr
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    ]


def _constructed(init: ast.FunctionDef | None, used: set[str]) -> Iterator[ast.Call]:
    """The calls whose results `__init__` assigns to attributes that live code reads."""
    for node in ast.walk(init) if init is not None else ():
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if used.isdisjoint(_attributes(list(targets))):
            continue
        yield from (inner for inner in ast.walk(node.value) if isinstance(inner, ast.Call))


VERSION = 1
"""Raised when a change of the structural check can change a finding."""

LINES_AROUND = 2
"""A reviewer may miss the line of a quotation by this much."""


def check_structure(source: str, plan: PaperPlan) -> tuple[PaperFinding, ...]:
    """A finding for each claim that no live part of the code can implement."""
    parts = live_parts(ast.parse(source))
    operations = {part.name: _operations(part) for part in parts}
    return tuple(
        finding for claim in plan.claims for finding in _check_claim(claim, parts, operations)
    )


def check_rubric(source: str, plan: PaperPlan, review: Review) -> tuple[PaperFinding, ...]:
    """A finding for each claim that the reviewer does not confirm with a line of the code."""
    reviewed = {one.claim: one for one in review.claims}
    findings = []
    for claim in plan.claims:
        one = reviewed.get(claim.id)
        if one is None or not one.present:
            findings.append(
                _finding(f"the review does not find claim {claim.id}: {claim.statement}")
            )
        elif not any(_is_quoted(source, evidence) for evidence in one.evidence):
            findings.append(
                _finding(
                    f"the review confirms claim {claim.id}, but its evidence is not in the code"
                )
            )
    return tuple(findings)


def _finding(evidence: str, line: int | None = None) -> PaperFinding:
    one_line = " ".join(evidence.split())
    return PaperFinding(
        kind=FindingClass.UNFAITHFUL,
        stage=PipelineStage.FAITHFUL,
        evidence=one_line[:400],
        line=line,
    )


def _operations(part: LivePart) -> set[str]:
    return {name for name, _ in operations_in([*part.statements, *part.layers])}


def _check_claim(
    claim: Claim, parts: tuple[LivePart, ...], operations_by_part: dict[str, set[str]]
) -> Iterator[PaperFinding]:
    """The operations of a claim must meet in one class, else they may belong to something else."""
    required = set(claim.operations)
    if not parts:
        yield _finding(f"claim {claim.id}: model() uses no class of this module, only stock layers")
        return
    if any(required <= operations for operations in operations_by_part.values()):
        return
    nearest = max(parts, key=lambda part: len(required & operations_by_part[part.name]))
    missing = ", ".join(sorted(required - operations_by_part[nearest.name]))
    yield _finding(
        f"claim {claim.id} ({claim.statement}): no class that the model uses contains "
        f"{', '.join(sorted(required))}; {nearest.name} comes closest and lacks {missing}",
        nearest.line,
    )


def _is_quoted(source: str, evidence: Evidence) -> bool:
    """Whether the quotation stands at the line, or within a few lines of it."""
    lines = source.splitlines()
    quote = "".join(evidence.quote.split())
    if len(quote) < 4:
        return False
    start = max(0, evidence.line - 1 - LINES_AROUND)
    near = lines[start : evidence.line + LINES_AROUND]
    return quote in "".join("".join(near).split())
