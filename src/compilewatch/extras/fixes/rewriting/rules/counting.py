"""A rule for loops over the elements of tensors that are used as numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilewatch.extras.fixes.records import Edit
from compilewatch.extras.fixes.rewriting.matching import attribute_call, name_of
from compilewatch.extras.fixes.rewriting.rule import Edits, RewriteRule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site

_TAKE_NUMBERS = ("range", "int", "min", "max", "torch.arange")
"""Functions that do with a number what they do with a tensor of one element."""

_SAME_FOR_NUMBERS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
"""Operators whose result for integers is the number that the tensor has. The quotient of `/` is
float64 for numbers."""


def counted(site: Site) -> Edits:
    """Loop over the numbers in tensors instead of tensors of one element.

    Each element is used as a size, a bound or an index only: in `range`, `torch.arange` or another
    function that takes numbers, in a comparison, a condition or between brackets, alone or
    calculated with others. `element.item()` becomes the element. The body does not use the tensors
    themselves, so that it cannot change what comes next. Tensors that are no lists of numbers have
    no such elements: with more dimensions, the rewrite is an error where the elements are used.
    """
    for loop in (site.statement, *site.around[::-1]):
        if isinstance(loop, ast.For) and not loop.orelse and (edits := _of_loop(site, loop)):
            return edits
    return ()


def _of_loop(site: Site, loop: ast.For) -> Edits:
    parents = {id(child): node for node in ast.walk(loop) for child in ast.iter_child_nodes(node)}
    used = {
        inner.id for stmt in loop.body for inner in ast.walk(stmt) if isinstance(inner, ast.Name)
    }
    tensors: list[ast.Name] = []
    items: list[Edit | None] = []
    for element, tensor in _elements(loop):
        uses = [
            node
            for stmt in loop.body
            for node in ast.walk(stmt)
            if isinstance(node, ast.Name) and node.id == element
        ]
        if not uses or tensor.id in used or not all(_is_number(use, parents) for use in uses):
            continue
        tensors.append(tensor)
        read = [parents[id(parents[id(use)])] for use in uses if _is_read(use, parents)]
        items += [site.replaced(name, element) for name in read if isinstance(name, ast.expr)]
    if not tensors:
        return ()
    listed = _Listed({value.id for value in tensors})
    numbers = listed.visit(ast.parse(ast.unparse(loop.iter), mode="eval"))
    return all_of(site.replaced(loop.iter, ast.unparse(numbers)), *items)


class _Listed(ast.NodeTransformer):
    """Puts `name.tolist()` in the place of names."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self.names:
            return node
        tolist = ast.Attribute(value=node, attr="tolist", ctx=ast.Load())
        return ast.Call(func=tolist, args=[], keywords=[])


def _elements(loop: ast.For) -> Iterator[tuple[str, ast.Name]]:
    """Yield each name that a loop assigns with the name that it takes the elements of."""
    match loop.target, loop.iter:
        case ast.Name(id=element), ast.Name() as tensor:
            yield element, tensor
        case ast.Tuple(elts=targets), ast.Call(func=ast.Name(id="zip"), args=given, keywords=[]):
            names = [name_of(each) for each in given]
            for target, each in zip(targets, given, strict=False):
                if isinstance(each, ast.Name) and name_of(target) and names.count(each.id) == 1:
                    yield name_of(target), each


def _is_read(use: ast.AST, parents: dict[int, ast.AST]) -> bool:
    """Whether an element is read by `element.item()`."""
    outer = parents.get(id(parents[id(use)]))
    return outer is not None and attribute_call(outer, "item") is use


def _is_number(use: ast.AST, parents: dict[int, ast.AST]) -> bool:
    """Whether an element is used where a number does what a tensor of one element does."""
    if isinstance(use, ast.Name) and not isinstance(use.ctx, ast.Load):
        return False
    if _is_read(use, parents):
        return True
    node, parent = use, parents[id(use)]
    while (isinstance(parent, ast.BinOp) and isinstance(parent.op, _SAME_FOR_NUMBERS)) or (
        isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub)
    ):
        node, parent = parent, parents[id(parent)]
    match parent:
        case ast.Call(func=function, args=args):
            return (
                any(argument is node for argument in args)
                and ast.unparse(function) in _TAKE_NUMBERS
            )
        case ast.Compare(ops=ops):
            compared = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
            return all(isinstance(operator, compared) for operator in ops)
        case ast.Slice():
            return True
        case ast.Subscript(slice=index) | ast.If(test=index) | ast.IfExp(test=index):
            return index is node
    return False


RULES = (
    RewriteRule(
        name="numbers instead of elements",
        summary="A loop over tensors whose elements are sizes, bounds or indices gets them as "
        "numbers.",
        when=r"[Dd]ata.dependent|GuardOnDataDependent|Tensor\.item\(\)|_local_scalar_dense|GB0124",
        apply=counted,
        holds_if=("The elements are integers of at most 64 bits, and need no gradient.",),
        before="""\
for size, start in zip(sizes, starts):
    parts.append(torch.arange(start, start + size.item()))
return torch.cat(parts)
""",
        at=2,
        after="""\
for size, start in zip(sizes.tolist(), starts.tolist()):
    parts.append(torch.arange(start, start + size))
return torch.cat(parts)
""",
    ),
)
