"""Rules for boolean masks."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.rewriting.rule import Edits, RewriteRule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site, with_test

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
        case (
            ast.If(
                test=test,
                body=[ast.Assign(targets=[ast.Subscript(slice=mask) as target], value=value)],
                orelse=[],
            ) as statement
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
    head, tail = f"{site.indent}{ast.unparse(target.value)}[", f"] = {ast.unparse(value)}\n"
    branches = [
        (
            f"the branch at line {statement.lineno} {name}",
            with_test(site, statement, statement, taken, statement),
            f"{head}({text}) & {taken}{tail}",
        )
        for taken, name in ((True, "taken"), (False, "not taken"))
    ]
    return all_of(site.edit(site.span(statement), f"{head}{chosen}{tail}", branches))


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
                part.value
                for part in ast.walk(site.function)
                if isinstance(part, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in part.targets)
            ]
            stored = [
                part
                for part in ast.walk(site.function)
                if isinstance(part, ast.Name)
                and part.id == name
                and isinstance(part.ctx, ast.Store)
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
        name="assigned where a mask is true",
        summary="What is assigned to the elements of a mask under a condition on values is "
        "assigned to those where both are true.",
        when=r"GB0170|data_dependent|[Dd]ata.dependent|GuardOnDataDependent",
        apply=unconditional,
        holds_if=(
            "Nobody needs the version or the gradient of a tensor that nothing is assigned "
            "to: it is written to in place all the same.",
        ),
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
