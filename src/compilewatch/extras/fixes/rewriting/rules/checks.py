"""Rules for checks of values and for messages."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.rewriting.matching import logger_call, without_item
from compilewatch.extras.fixes.rewriting.rule import Edits, RewriteRule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site

_ON_VALUES = r"GB0170|data_dependent|[Dd]ata.dependent|GuardOnDataDependent|Tensor\.item|GB0124"


def raised(site: Site) -> Edits:
    """Check by an operator of the graph what `if condition: raise ...` and `assert` check.

    `torch._assert_async` raises RuntimeError when the graph runs, so the check is as strict and the
    type of the error another. The statement must do nothing but raise, and the condition compare or
    reduce something, with nothing that is evaluated only sometimes (`and`, `or`). The condition
    becomes a tensor first, so that numbers, unknown numbers of a graph and tensors all will do.
    """
    match site.statement:
        case ast.If(test=test, body=[ast.Raise()], orelse=[]):
            wrong = True
        case ast.Assert(test=test):
            wrong = False
        case _:
            return ()
    if not _on_values(test):
        return ()
    text = ast.unparse(without_item(test))
    condition = site.new_name("condition")
    message = f"a check of the model failed: {_quoted(ast.unparse(test))}"
    lines = (
        f"{condition} = torch.as_tensor({text}).bool().{'any' if wrong else 'all'}()",
        f'torch._assert_async({"~" if wrong else ""}{condition}, "{message}")',
    )
    text = "".join(f"{site.indent}{line}\n" for line in lines)
    return all_of(site.edit(site.span(site.statement), text))


_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}


def hinted(site: Site) -> Edits:
    """Check numbers that are unknown in a graph by `torch._check`, which the compiler believes.

    It checks when the graph runs, and raises RuntimeError. It takes numbers only: for a comparison
    of tensors it is an error, which the search rejects. NaN is not expected among numbers that are
    read from tensors here: `not x < y` is true for NaN, its opposite `x >= y` is not, and the check
    is the stricter of the two for `if`, the same for `assert`.
    """
    match site.statement:
        case ast.If(
            test=ast.Compare(left=left, ops=[op], comparators=[right]),
            body=[ast.Raise()],
            orelse=[],
        ):
            wrong = True
        case ast.Assert(test=ast.Compare(left=left, ops=[op], comparators=[right])):
            wrong = False
        case _:
            return ()
    if type(op) not in _OPPOSITE:
        return ()
    compared = ast.Compare(left, [_OPPOSITE[type(op)]() if wrong else op], [right])
    line = f"{site.indent}torch._check({ast.unparse(compared)})\n"
    return all_of(site.edit(site.span(site.statement), line))


def _on_values(test: ast.expr) -> bool:
    """Whether a condition is one comparison or a reduction to a boolean."""
    for node in ast.walk(test):
        if isinstance(node, ast.BoolOp | ast.IfExp | ast.NamedExpr | ast.Lambda | ast.Await):
            return False
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "hasattr"):
            return False
        if isinstance(node, ast.Compare) and not all(type(op) in _OPPOSITE for op in node.ops):
            return False
    match test:
        case ast.Compare(ops=[_]):
            return True
        case ast.Call(func=ast.Attribute(attr="any" | "all" | "item")):
            return True
    return False


def _quoted(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")


def said(site: Site) -> Edits:
    """Say nothing while a graph is captured: the message of a logger, of `warnings`, a print.

    What is computed is the same. The message is lost where the model is compiled. The arguments
    must not call anything but functions that have no effect, for they are not evaluated either.
    """
    match site.statement:
        case ast.Expr(value=ast.Call() as call) if logger_call(call):
            pass
        case _:
            return ()
    first, last = site.span(site.statement)
    lines = [f"{' ' * 4}{line}" if line.strip() else line for line in site.lines[first - 1 : last]]
    guard = f"{site.indent}if not torch.compiler.is_compiling():\n"
    return all_of(site.edit((first, last), guard + "".join(lines)))


RULES = (
    RewriteRule(
        name="message guarded",
        summary="A message is left out while the model is compiled.",
        when=r"GB0291|[Ll]ogg|print|warn|GB0059|builtin",
        apply=said,
        holds_if=("Nobody needs the message of compiled code, and no handler counts it.",),
        before="""\
logger.warning(f"The sequence has {x.shape[0]} tokens.")
return x + 1
""",
        after="""\
if not torch.compiler.is_compiling():
    logger.warning(f"The sequence has {x.shape[0]} tokens.")
return x + 1
""",
    ),
    RewriteRule(
        name="check of numbers in the graph",
        summary="A check of numbers that a graph does not know is made when it runs. It raises "
        "RuntimeError.",
        other_error=True,
        when=_ON_VALUES,
        apply=hinted,
        holds_if=("Nobody catches the error by another type than RuntimeError, or by its text.",),
        before="""\
count = mask.sum().item()
if count != limit:
    raise ValueError(f"{count} elements")
return x[:count]
""",
        at=2,
        after="""\
count = mask.sum().item()
torch._check(count == limit)
return x[:count]
""",
    ),
    RewriteRule(
        name="check in the graph",
        summary="A check of values is made by an operator of the graph. It raises RuntimeError.",
        other_error=True,
        when=_ON_VALUES,
        apply=raised,
        holds_if=(
            "Nobody catches the error by another type than RuntimeError, or by its text; on an "
            "accelerator it is raised after the call.",
        ),
        before="""\
if x.max().item() > 10:
    raise ValueError("too large")
return x + 1
""",
        after="""\
condition = torch.as_tensor(x.max() > 10).bool().any()
torch._assert_async(~condition, "a check of the model failed: x.max().item() > 10")
return x + 1
""",
    ),
)
