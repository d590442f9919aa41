"""Rules for boolean masks."""

from __future__ import annotations

import ast
import re

from compilewatch.extras.fixes.rewriting.rule import Edits, RewriteRule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site

_BOOLEAN = (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "isnan", "isinf", "isfinite", "any", "all"),
    *("logical_and", "logical_or", "logical_not", "logical_xor"),
)
"""Functions of torch, and methods of tensors, that return booleans."""


def unconditional(site: Site) -> Edits:
    """Assign where a mask and a condition are true, instead of assigning if the condition is true.

    `if condition: x[mask] = value` without `else`: with `mask & condition` as mask nothing is
    assigned where the condition is false, and otherwise the same. Both must be boolean tensors as
    far as the source says: `&` has another meaning for numbers. A condition that is the mask's own
    `any()` is left out, since an empty mask assigns nothing.
    """
    match site.statement:
        case ast.If(
            test=test,
            body=[ast.Assign(targets=[ast.Subscript(slice=mask) as target], value=value)],
            orelse=[],
        ):
            pass
        case _:
            return ()
    if not _boolean(site, mask) or not _plain(value):
        return ()
    text = ast.unparse(mask)
    if ast.unparse(test) in (f"{text}.any()", f"torch.any({text})"):
        chosen = text
    elif _boolean(site, test) and isinstance(test, ast.Compare | ast.Call):
        chosen = f"({text}) & ({ast.unparse(test)})"
    else:
        return ()
    line = f"{site.indent}{ast.unparse(target.value)}[{chosen}] = {ast.unparse(value)}\n"
    return all_of(site.edit(site.span(site.statement), line))


def chosen(site: Site) -> Edits:
    """Choose between a tensor and what a branch makes of it, instead of branching.

    `if condition: x = f(x)` without `else`, where the condition is a boolean tensor of one element
    and `f` changes each element by itself, with nothing but numbers: both values exist then, have
    one shape, and `torch.where` takes all of one. A type that `f` would change is an error of the
    proof. A gradient through the value that is not taken is zero times its derivative, which is NaN
    where that is infinite.
    """
    match site.statement:
        case ast.If(
            test=test, body=[ast.Assign(targets=[ast.Name(id=name)], value=value)], orelse=[]
        ):
            pass
        case _:
            return ()
    if not _reduced(test) or not _elementwise(value, name):
        return ()
    text = f"torch.where({ast.unparse(test)}, {ast.unparse(value)}, {name})"
    return all_of(site.edit(site.span(site.statement), f"{site.indent}{name} = {text}\n"))


def _reduced(test: ast.expr) -> bool:
    """Whether a condition is `x.any()`, `x.all()` or a comparison of `x.max()` and the like."""
    match test:
        case ast.Call(func=ast.Attribute(attr="any" | "all"), args=args, keywords=[]):
            owner = ast.unparse(test.func.value)  # type: ignore[attr-defined]
            return len(args) == (1 if owner == "torch" else 0)
        case ast.Compare(
            left=ast.Call(func=ast.Attribute(attr="max" | "min" | "sum"), args=[], keywords=[]),
            ops=[_],
            comparators=[ast.Constant()],
        ):
            return True
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            return _reduced(left) and _reduced(right)
    return False


def _elementwise(value: ast.expr, name: str) -> bool:
    """Whether an expression changes each element of `name` by itself, with numbers only."""
    match value:
        case ast.Name(id=found):
            return found == name
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=ast.Constant()):
            return _elementwise(left, name)
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args, keywords=keywords):
            if attr not in ("clamp", "clip", "nan_to_num", "abs", "relu"):
                return False
            given = args if ast.unparse(owner) == "torch" else [owner, *args]
            numbers = [*given[1:], *(each.value for each in keywords)]
            return bool(given) and _elementwise(given[0], name) and all(map(_number, numbers))
    return False


def _number(node: ast.expr) -> bool:
    """Whether an expression is a number for sure."""
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(operand, ast.Constant) or bool(
        re.fullmatch(r"torch\.finfo\([\w.]+\)\.(max|min)( [-+*/] [\d.]+)?", ast.unparse(operand))
    )


def _boolean(site: Site, node: ast.expr) -> bool:
    """Whether an expression is a boolean tensor: a comparison, or a name that is one everywhere."""
    match node:
        case ast.Compare(
            ops=[ast.Eq() | ast.NotEq() | ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]
        ):
            return True
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in _BOOLEAN:
            return True
        case ast.Call(
            func=ast.Attribute(value=inner, attr="to" | "unsqueeze" | "expand_as" | "squeeze")
        ):
            arguments = " ".join(map(ast.unparse, [*node.args, *(k.value for k in node.keywords)]))
            return "dtype" not in arguments and "torch." not in arguments and _boolean(site, inner)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return _boolean(site, inner)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor(), right=right):
            return _boolean(site, left) and _boolean(site, right)
        case ast.Name(id=name):
            values = [
                each.value
                for each in ast.walk(site.function)
                if isinstance(each, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in each.targets)
            ]
            stored = [
                each
                for each in ast.walk(site.function)
                if isinstance(each, ast.Name)
                and each.id == name
                and isinstance(each.ctx, ast.Store)
            ]
            own = [v for v in values if ast.unparse(v) != f"{name}.all(-1)"]
            return len(stored) == len(values) and bool(own) and all(_boolean(site, v) for v in own)
    return False


def _plain(value: ast.expr) -> bool:
    """Whether an expression can be evaluated in vain: it reads, indexes and converts only."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called not in ("to", "type", "float", "half", "squeeze", "unsqueeze", "view"):
                return False
        elif isinstance(node, ast.Await | ast.Yield | ast.NamedExpr):
            return False
    return True


RULES = (
    RewriteRule(
        name="chosen instead of branched",
        summary="Under a condition on values, both values of a tensor are computed, and one is "
        "chosen.",
        when=r"GB0170|data_dependent|[Dd]ata.dependent|GuardOnDataDependent",
        apply=chosen,
        before="""\
if torch.isinf(x).any():
    x = torch.clamp(x, min=-100, max=100)
return x
""",
        after="""\
x = torch.where(torch.isinf(x).any(), torch.clamp(x, min=-100, max=100), x)
return x
""",
    ),
    RewriteRule(
        name="assigned where a mask is true",
        summary="What is assigned to the elements of a mask under a condition on values is "
        "assigned to those where both are true.",
        when=r"GB0170|data_dependent|[Dd]ata.dependent|GuardOnDataDependent",
        apply=unconditional,
        before="""\
mask = x > 3
if mask.any():
    x[mask] = 0
return x
""",
        at=2,
        after="""\
mask = x > 3
x[mask] = 0
return x
""",
    ),
)
