"""Rules for checks of values and for messages."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.records import Edit
from compilewatch.extras.fixes.rewriting.sites import (
    Edits,
    RewriteRule,
    Site,
    all_of,
    attribute_call,
    logger_call,
    name_of,
    without_item,
)

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


OF_CHECKS = (
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


def gathered(site: Site) -> Edits:
    """Gather numbers of tensors in a tensor, where a list of them becomes a tensor in the end.

    The list begins with integers in the body of the function, gets `extend(x.tolist())`, gives its
    last element as an operand, and is given to `torch.tensor` with a type; the function uses it for
    nothing else. The tensor has the same numbers in the same order: `torch.cat` accepts only what
    has one dimension, as a list of numbers has, and integers remain integers.
    """
    match site.statement:
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="extend"), args=[given])
        ):
            tensor = attribute_call(given, "tolist")
        case _:
            return ()
    if not name_of(tensor):
        return ()
    edits: list[Edit | None] = []
    known: set[int] = set()
    for node in ast.walk(site.function):
        edit = _of_use(node, name, site)
        if edit is not None:
            edits.append(edit)
        if edit is not None or _is_last(node, name):
            known |= {id(inner) for inner in ast.walk(node)}
    edits.sort(key=lambda each: each.line if each else 0)
    begins = [e for e in site.function.body if edits and edits[0] and e.lineno == edits[0].line]
    if len(edits) != 3 or not begins:
        return ()
    for node in ast.walk(site.function):
        # Before the first statement the name is something else, after the last one a tensor.
        if (
            isinstance(node, ast.Name)
            and node.id == name
            and id(node) not in known
            and node.lineno > begins[0].lineno
            and not _is_again(node, site, name)
        ):
            return ()
    return all_of(*edits)


_FUNCTIONS = ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "erf")
"""Functions of `math` and numpy that torch has under the same name, and that return a float."""


def on_tensors(site: Site) -> Edits:
    """Compute a function of `math` or numpy by torch's function of the same name.

    The argument becomes a tensor of one element in float64, the type in which `math` computes. Such
    a tensor changes the type of what it is combined with only where that is an integer, which
    becomes float64 and not float32; the script compares types. Where `math` raises an error, torch
    returns NaN or infinity: the rule removes that check.
    """
    edits = []
    for node in ast.walk(site.statement):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math" | "np" | "numpy"), attr=attr),
                args=[argument],
                keywords=[],
            ) if attr in _FUNCTIONS and not isinstance(argument, ast.Constant):
                given = attribute_call(argument, "item") or argument
                text = f"torch.as_tensor({ast.unparse(given)}, dtype=torch.float64)"
                edits.append(site.replaced(node, f"torch.{attr}({text})"))
    return all_of(*edits) if len(edits) == 1 else ()


def _of_use(node: ast.AST, name: str, site: Site) -> Edit | None:
    """The edit of one of the three statements with the list; None for anything else."""
    match node:
        case (
            ast.Assign(targets=[ast.Name(id=target)], value=ast.List(elts=elements))
            | ast.AnnAssign(target=ast.Name(id=target), value=ast.List(elts=elements))
        ) if (
            target == name
            and elements
            and all(
                isinstance(element, ast.Constant) and type(element.value) is int
                for element in elements
            )
        ):
            text = ", ".join(map(ast.unparse, elements))
            return _line(site, node, f"{name} = torch.tensor([{text}])")
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=target), attr="extend"), args=[given]
            )
        ) if target == name and (tensor := attribute_call(given, "tolist")) is not None:
            text = ast.unparse(tensor)
            return _line(site, node, f"{name} = torch.cat([{name}.to({text}.device), {text}])")
        case ast.Assign(
            targets=[ast.Name()],
            value=ast.Call(func=function, args=[ast.Name(id=target)], keywords=keywords),
        ) if target == name and ast.unparse(function) == "torch.tensor":
            arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
            if "dtype" not in arguments or set(arguments) - {"dtype", "device"}:
                return None
            given_text = ", ".join(f"{key}={value}" for key, value in arguments.items())
            return _line(site, node, f"{ast.unparse(node.targets[0])} = {name}.to({given_text})")
    return None


def _line(site: Site, node: ast.stmt, text: str) -> Edit | None:
    return site.edit(site.span(node), f"{' ' * node.col_offset}{text}\n")


def _is_last(node: ast.AST, name: str) -> bool:
    """Whether a node is an operation with `name[-1]`, which a tensor has too."""
    return isinstance(node, ast.BinOp) and any(
        isinstance(each, ast.Subscript)
        and name_of(each.value) == name
        and ast.unparse(each.slice) == "-1"
        for each in (node.left, node.right)
    )


def _is_again(use: ast.Name, site: Site, name: str) -> bool:
    """Whether a use is after the list became a tensor under its own name."""
    ends = [
        node.end_lineno or 0
        for node in ast.walk(site.function)
        if isinstance(node, ast.Assign)
        and name_of(node.targets[0]) == name
        and ast.unparse(node.value).startswith(f"torch.tensor({name},")
    ]
    return bool(ends) and use.lineno > max(ends)


OF_NUMBERS = (
    RewriteRule(
        name="function of torch instead of math",
        summary="A function of math or numpy on a value of a tensor is computed by torch, in "
        "float64. Where math raises an error, torch returns NaN or infinity.",
        when=r"GB0124|\bmath\b|numpy|[Dd]ata.dependent|GuardOnDataDependent|data_dependent",
        apply=on_tensors,
        holds_if=(
            "The function gets values that it is defined for: there is no error for others.",
            "The result is used in arithmetic only: it is a tensor instead of a number.",
        ),
        before="""\
return x / math.sqrt(x.sum().item())
""",
        after="""\
return x / torch.sqrt(torch.as_tensor(x.sum(), dtype=torch.float64))
""",
        removes_check=True,
        other_error=True,
    ),
    RewriteRule(
        name="numbers gathered in a tensor",
        summary="Numbers that are read from tensors into a list, which becomes a tensor, are "
        "gathered in a tensor.",
        when=r"tolist|[Dd]ata.dependent|GuardOnDataDependent",
        apply=gathered,
        holds_if=("The numbers are integers of at most 64 bits, and need no gradient.",),
        before="""\
ends = [0]
for x in tensors:
    x = x.cumsum(0) + ends[-1]
    ends.extend(x.tolist())
ends = torch.tensor(ends, device=device, dtype=torch.int32)
return ends.diff()
""",
        at=4,
        after="""\
ends = torch.tensor([0])
for x in tensors:
    x = x.cumsum(0) + ends[-1]
    ends = torch.cat([ends.to(x.device), x])
ends = ends.to(device=device, dtype=torch.int32)
return ends.diff()
""",
    ),
)
