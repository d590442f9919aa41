"""A rule for branches that depend on the values of a tensor."""

from __future__ import annotations

import ast
import re

from compilewatch.extras.fixes.rewriting.sites import (
    Edits,
    RewriteRule,
    Site,
    all_of,
    with_test,
    without_item,
)

_REDUCED = ("max", "min", "sum", "mean")
_ELEMENTWISE = ("clamp", "clip", "nan_to_num", "abs", "relu")


def chosen(site: Site) -> Edits:
    """Choose between two values that are made of one tensor, instead of branching.

    `x = f(x)` under a condition, with or without `else`, a `return` in each branch, or `f(x) if
    condition else g(x)`. The condition is a boolean tensor of one element, and `f` and `g` change
    each element by itself, with nothing but numbers: both values exist then, have one shape, and
    `torch.where` takes all of one. A type that only one of them would change, and a value that is
    the tensor itself and is changed later, are found where the script forces each branch. A
    gradient through the value that is not taken is zero times its derivative, which is NaN where
    that is infinite.
    """
    statement, last = site.statement, site.statement
    owner = statement.value if isinstance(statement, ast.Assign | ast.Return) else statement
    if not isinstance(owner, ast.If | ast.IfExp):
        return ()
    match statement:
        case ast.If(test=test, body=[ast.Assign(targets=[target], value=value)], orelse=[]):
            other: ast.expr = target
            head = f"{ast.unparse(target)} = "
        case ast.If(
            test=test,
            body=[ast.Assign(targets=[target], value=value)],
            orelse=[ast.Assign(targets=[again], value=other)],
        ) if ast.unparse(target) == ast.unparse(again):
            head = f"{ast.unparse(target)} = "
        case ast.If(test=test, body=[ast.Return(value=ast.expr() as value)], orelse=rest):
            match rest or site.after()[:1]:
                case [ast.Return(value=ast.expr() as other) as last]:
                    head = "return "
                case _:
                    return ()
        case ast.Assign(targets=[target], value=ast.IfExp(test=test, body=value, orelse=other)):
            head = f"{ast.unparse(target)} = "
        case ast.Return(value=ast.IfExp(test=test, body=value, orelse=other)):
            head = "return "
        case _:
            return ()
    if head != "return " and not isinstance(target, ast.Name):
        return ()
    condition = without_item(test)
    names = {_element_of(value), _element_of(other)}
    if not _is_reduced(condition) or len(names) > 1 or None in names:
        return ()
    test_text, values = ast.unparse(condition), f"{ast.unparse(value)}, {ast.unparse(other)}"
    line = f"{site.indent}{head}torch.where({test_text}, {values})\n"
    branches = []
    for taken, name in ((True, "taken"), (False, "not taken")):
        forced = f"torch.full_like({test_text}, {taken}, dtype=torch.bool)"
        new = f"{site.indent}{head}torch.where({forced}, {values})\n"
        plain = with_test(site, statement, owner, taken, last)
        branches.append((f"the branch at line {statement.lineno} {name}", plain, new))
    return all_of(site.edit(site.span(statement, last), line, branches))


def _is_reduced(test: ast.expr) -> bool:
    """Whether a condition is `x.any()`, `x.all()` or a comparison of `x.max()` and the like."""
    match test:
        case ast.Call(func=ast.Attribute(value=owner, attr="any" | "all"), args=args, keywords=[]):
            return len(args) == (1 if ast.unparse(owner) == "torch" else 0)
        case ast.Compare(
            left=ast.Call(func=ast.Attribute(attr=attr), args=[], keywords=[]),
            ops=[_],
            comparators=[right],
        ):
            return attr in _REDUCED and _is_number(right)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr(), right=right):
            return _is_reduced(left) and _is_reduced(right)
    return False


def _element_of(value: ast.expr) -> str | None:
    """The name whose elements an expression changes one by one, with numbers only; or None."""
    match value:
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _element_of(inner)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            inner, number = (right, left) if _is_number(left) else (left, right)
            return _element_of(inner) if _is_number(number) else None
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=args, keywords=keywords):
            arguments = args if ast.unparse(owner) == "torch" else [owner, *args]
            numbers = [*arguments[1:], *(keyword.value for keyword in keywords)]
            if attr in _ELEMENTWISE and arguments and all(map(_is_number, numbers)):
                return _element_of(arguments[0])
    return None


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is a number for sure."""
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(operand, ast.Constant):
        return isinstance(operand.value, int | float)
    return bool(
        re.fullmatch(r"torch\.finfo\([\w.]+\)\.(max|min)( [-+*/] [\d.]+)?", ast.unparse(operand))
    )


OF_BRANCHES = (
    RewriteRule(
        name="chosen instead of branched",
        summary="Under a condition on values, both values of a tensor are computed, and one is "
        "chosen.",
        when=r"GB0170|data_dependent|[Dd]ata.dependent|GuardOnDataDependent",
        apply=chosen,
        holds_if=(
            "The derivative of the value that is not chosen is finite: a gradient of NaN or "
            "infinity reaches the weights.",
        ),
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
)


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


OF_MASKS = (
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
