"""Rules for conditions in which one part depends on data."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.rewriting.rule import Edits, RewriteRule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site


def reordered(site: Site) -> Edits:
    """Evaluate what Python knows before a comparison that depends on data.

    In `size > 1 and mask is None and causal` the parts have no effect: names, comparisons with
    None, and comparisons of numbers. Their order changes nothing but which of them are evaluated:
    where one that Python knows is false, the comparison is not needed. The result is the same as a
    truth; it may be False where it was None, so the value must be used as a truth only. A part that
    protects another stays before it, since comparisons with None come first and only the comparison
    of numbers moves.
    """
    match site.statement:
        case ast.Assign(
            targets=[ast.Name(id=name)], value=ast.BoolOp(op=ast.And(), values=parts) as whole
        ) if _is_truth(name, site.function, site.statement):
            pass
        case ast.If(test=ast.BoolOp(op=ast.And(), values=parts) as whole):
            pass
        case _:
            return ()
    certain = [part for part in parts if _known(part)]
    numbers = [part for part in parts if not _known(part)]
    if not certain or len(numbers) != 1 or parts[-1] is numbers[0] or not _of_numbers(numbers[0]):
        return ()
    first = " and ".join(map(ast.unparse, certain))
    return all_of(site.replaced(whole, f"bool({first}) and {ast.unparse(numbers[0])}"))


def _is_truth(name: str, function: ast.AST, assigned: ast.stmt) -> bool:
    """Whether a function uses a name as a truth only: in a condition, or as `is_causal` of SDPA."""
    truths: set[int] = set()
    for node in ast.walk(function):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                truths |= {id(each) for each in _operands(test)}
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                truths |= {id(each) for each in _operands(operand)}
            case ast.Call(func=called, keywords=keywords) if ast.unparse(called).endswith(
                "scaled_dot_product_attention"
            ):
                truths |= {id(keyword.value) for keyword in keywords if keyword.arg == "is_causal"}
            case ast.Nonlocal(names=names) | ast.Global(names=names) if name in names:
                return False
    own = {id(inner) for inner in ast.walk(assigned)}
    return all(
        id(inner) in truths | own
        for inner in ast.walk(function)
        if isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Load)
    )


def _operands(test: ast.expr) -> list[ast.expr]:
    return (
        [operand for part in test.values for operand in _operands(part)]
        if isinstance(test, ast.BoolOp)
        else [test]
    )


def _known(part: ast.expr) -> bool:
    """Whether a part is a name, its negation, or a comparison of a name with None."""
    match part:
        case ast.Name():
            return True
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name()):
            return True
        case ast.Compare(
            left=ast.Name(), ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]
        ):
            return True
    return False


def _of_numbers(part: ast.expr) -> bool:
    """Whether a part compares names, sizes and constants."""
    match part:
        case ast.Compare(
            left=left, ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()], comparators=[right]
        ):
            return all(
                isinstance(each, ast.Name | ast.Constant)
                or (isinstance(each, ast.Subscript) and ast.unparse(each.value).endswith(".shape"))
                for each in (left, right)
            )
    return False


RULES = (
    RewriteRule(
        name="known conditions first",
        summary="Of several conditions those that Python knows are evaluated first, so that one "
        "that depends on data is not needed where they are false.",
        when=r"[Dd]ata.dependent|data_dependent|GuardOnDataDependent",
        apply=reordered,
        holds_if=(
            "The value of the condition is used as a truth value only: it may be False where it "
            "was None or 0.",
        ),
        before="""\
causal = length > 1 and mask is None and causal
return x * 2 if causal else x
""",
        after="""\
causal = bool(mask is None and causal) and length > 1
return x * 2 if causal else x
""",
    ),
)
