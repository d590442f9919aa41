"""The rules, the least intrusive first: checks, loops, branches, numbers, attention."""

import ast
import re
import textwrap
from collections.abc import Callable

from compilewatch.extras.fixes import rewriting
from compilewatch.extras.fixes.records import Edit, FixChange, FixKind
from compilewatch.extras.fixes.rewriting import without_item

_ON_DATA = r"GB0170|data_dependent|[Dd]ata.dependent|GuardOnDataDependent"
_ON_VALUES = rf"{_ON_DATA}|Tensor\.item|GB0124"

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}

Apply = Callable[[rewriting.Site], rewriting.Edits]

RULES: list[rewriting.RewriteRule] = []
"""In the order of their definitions."""


def rule(name: str, summary: str, *holds_if: str, when: str) -> Callable[[Apply], Apply]:
    """Make a function a rule; `holds_if` are conditions that no script can try."""
    change = FixChange(
        name=name, kind=FixKind.REWRITE, summary=summary, lines=(), holds_if=holds_if
    )

    def registered(function: Apply) -> Apply:
        RULES.append(rewriting.RewriteRule(change, when, function))
        return function

    return registered


# --- messages and checks --------------------------------------------------------------------------


@rule(
    "message guarded",
    "A message is left out while the model is compiled.",
    "Nobody needs the message of compiled code, and no handler counts it.",
    when=r"GB0291|[Ll]ogg|print|warn|GB0059|builtin",
)
def said(site: rewriting.Site) -> rewriting.Edits:
    """Say nothing while a graph is captured: the message of a logger, of `warnings`, a print.

    What is computed is the same. The message is lost where the model is compiled. The arguments
    must not call anything but functions that have no effect, for they are not evaluated either.
    """
    match site.statement:
        case ast.Expr(value=ast.Call() as call) if _is_message(call):
            first, last = rewriting.lines_of(site.statement)
            text = textwrap.indent("".join(site.lines[first - 1 : last]), "    ")
            guard = f"{site.indent}if not torch.compiler.is_compiling():\n"
            return rewriting.all_of(site.edit(site.statement, guard + text))
    return ()


def _is_message(call: ast.Call) -> bool:
    """Whether a call is that of a logger, `warnings.warn` or `print`, with no other effect."""
    own = r"print|warnings\.warn|(.*\.)?(?i:logger|logging|log|_logger)\.(debug|info|warning|"
    own += r"warning_once|info_once|error|critical|log)"
    harmless = {"len", "str", "repr", "type", "tuple", "list", "format", "int", "float"}
    harmless |= {"size", "dim", "item", "tolist", "join"}
    inner = (node for node in ast.walk(call) if isinstance(node, ast.Call) and node is not call)
    return re.fullmatch(own, ast.unparse(call.func)) is not None and all(
        ast.unparse(node.func).rpartition(".")[2] in harmless for node in inner
    )


def _check(statement: ast.stmt) -> tuple[ast.expr, bool] | None:
    """The condition of a statement that only raises, and whether it raises where that is true."""
    match statement:
        case ast.If(test=test, body=[ast.Raise()], orelse=[]):
            return test, True
        case ast.Assert(test=test):
            return test, False
    return None


@rule(
    "check of numbers in the graph",
    "A check of numbers that a graph does not know is made when it runs. It raises RuntimeError.",
    "Nobody catches the error by another type than RuntimeError, or by its text.",
    when=_ON_VALUES,
)
def hinted(site: rewriting.Site) -> rewriting.Edits:
    """Check numbers that are unknown in a graph by `torch._check`, which the compiler believes.

    It checks when the graph runs, and raises RuntimeError. It takes numbers only: for a comparison
    of tensors it is an error, which the search rejects. NaN is not expected among numbers that are
    read from tensors here: `not x < y` is true for NaN, its opposite `x >= y` is not, and the check
    is the stricter of the two for `if`, the same for `assert`.
    """
    match _check(site.statement):
        case ast.Compare(left=left, ops=[op], comparators=[right]), wrong if type(op) in _OPPOSITE:
            compared = ast.Compare(left, [_OPPOSITE[type(op)]() if wrong else op], [right])
            line = f"{site.indent}torch._check({ast.unparse(compared)})\n"
            return rewriting.all_of(site.edit(site.statement, line))
    return ()


@rule(
    "check in the graph",
    "A check of values is made by an operator of the graph. It raises RuntimeError.",
    "Nobody catches the error by another type than RuntimeError, or by its text; on an "
    "accelerator it is raised after the call.",
    when=_ON_VALUES,
)
def raised(site: rewriting.Site) -> rewriting.Edits:
    """Check by an operator of the graph what `if condition: raise ...` and `assert` check.

    `torch._assert_async` raises RuntimeError when the graph runs, so the check is as strict and the
    type of the error another. The statement must do nothing but raise, and the condition compare or
    reduce something, with nothing that is evaluated only sometimes (`and`, `or`). The condition
    becomes a tensor first, so that numbers, unknown numbers of a graph and tensors all will do.
    """
    test, wrong = _check(site.statement) or (None, False)
    if test is None or not _on_values(test):
        return ()
    condition = site.new_name("condition")
    quoted = ast.unparse(test).replace("\\", "/").replace('"', "'")
    tensor = f"torch.as_tensor({ast.unparse(without_item(test))}).bool()"
    lines = (
        f"{condition} = {tensor}.{'any' if wrong else 'all'}()",
        f"torch._assert_async({'~' if wrong else ''}{condition}, "
        f'"a check of the model failed: {quoted}")',
    )
    text = "".join(f"{site.indent}{line}\n" for line in lines)
    return rewriting.all_of(site.edit(site.statement, text))


CHECKS = (hinted, raised)
"""An error of the model becomes one of another type: they apply only where nothing catches it."""


def _on_values(test: ast.expr) -> bool:
    """Whether a condition is one comparison or a reduction to a boolean."""
    for node in ast.walk(test):
        match node:
            case ast.BoolOp() | ast.IfExp() | ast.NamedExpr() | ast.Lambda() | ast.Await():
                return False
            case ast.Call(func=ast.Name(id="isinstance" | "hasattr")):
                return False
            case ast.Compare(ops=ops) if not all(type(op) in _OPPOSITE for op in ops):
                return False
    match test:
        case ast.Compare(ops=[_]) | ast.Call(func=ast.Attribute(attr="any" | "all" | "item")):
            return True
    return False


# --- sizes ----------------------------------------------------------------------------------------


@rule(
    "tensor instead of a list",
    "A list that has a size as its length, and only becomes a tensor, is made as a tensor.",
    "The size is not 0: an empty list becomes a tensor of floats.",
    when=r"^recompiled_",
)
def filled(site: rewriting.Site) -> rewriting.Edits:
    """Make a tensor of a size without a list of numbers, which is compiled for one length.

    `torch.tensor(list(range(n)))` is `torch.arange(n)`, and `torch.tensor([1.0] * n)` is
    `torch.full((n,), 1.0)`: the same numbers, and the same type, which torch derives from them.
    """
    for node in ast.walk(site.statement):
        match node:
            case ast.Call(func=function, args=[numbers], keywords=options) if ast.unparse(
                function
            ) == "torch.tensor" and (tensor := _of_numbers(numbers)):
                others = "".join(f", {ast.unparse(option)}" for option in options)
                return rewriting.all_of(site.replaced(node, f"{tensor}{others})"))
    return ()


def _of_numbers(numbers: ast.expr) -> str:
    """The call, without its last bracket, that makes a tensor of a list's numbers; or ""."""
    match numbers:
        case ast.Call(func=ast.Name(id="list"), args=[inner], keywords=[]):
            return _of_numbers(inner) if isinstance(inner, ast.Call) else ""
        case ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]):
            return f"torch.arange({', '.join(map(ast.unparse, bounds))}"
        case ast.BinOp(ast.List([ast.Constant(int() | float() as value)]), ast.Mult(), size):
            return f"torch.full(({ast.unparse(size)},), {value!r}"
    return ""


# --- loops ----------------------------------------------------------------------------------------

_CONSUMERS = ("tuple", "list", "set", "frozenset", "dict", "sorted", "sum", "max", "min")
"""Functions that take all elements of their argument in order, before anything else runs."""


@rule(
    "list instead of a generator",
    "A function gets a list instead of a generator; it consumes all of it.",
    "What the generator yields ends, and making all of it at once has no effect.",
    when=r"GB0003|[Gg]enerator|GB9493|__next__",
)
def listed(site: rewriting.Site) -> rewriting.Edits:
    """Give a list instead of a generator to a function that consumes all of it at once.

    The elements are evaluated in the same order, all of them before the function continues. The
    same is true of the elements that are unpacked to names. `any`, `all` and `next` stop early and
    are left alone.
    """
    nodes: list[ast.AST] = [site.statement]
    for node in nodes:  # without the statements inside of it
        nodes += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.Lambda)
        ]
        match node:
            case ast.Call(func=function, args=[ast.GeneratorExp() as given, *_]) if ast.unparse(
                function
            ) in _CONSUMERS or (isinstance(function, ast.Attribute) and function.attr == "join"):
                return rewriting.all_of(_as_list(site, given, node))
            case ast.Assign(targets=[ast.Tuple()], value=ast.GeneratorExp() as given):
                return rewriting.all_of(_as_list(site, given, node))
    return ()


def _as_list(
    site: rewriting.Site, argument: ast.GeneratorExp, owner: ast.expr | ast.stmt
) -> Edit | None:
    """Put brackets around a generator, which keeps its lines as they are."""
    inner = (ast.get_source_segment("".join(site.lines), argument) or "")[1:-1]
    end = argument.end_lineno, argument.end_col_offset
    # The parentheses of a call that has no other argument are the generator's own.
    shared = isinstance(owner, ast.Call) and (owner.end_lineno, owner.end_col_offset) == end
    return site.replaced(argument, f"([{inner}])" if shared else f"[{inner}]")


@rule(
    "all rows visited",
    "A loop visits all rows of a mask instead of those that have an element: "
    "the others add nothing.",
    "A row without an element adds nothing: its weights get a gradient of zeros instead "
    "of none, which an optimizer with weight decay or momentum takes for an update.",
    when=r"nonzero|GB0036|GB0170|[Dd]ata.dependent|GuardOnDataDependent|GB7000",
)
def visited(site: rewriting.Site) -> rewriting.Edits:
    """Visit all rows of a mask in a loop that visits those with an element only.

    `hit = torch.greater(mask.sum(...), 0).nonzero()` and a loop over `hit` whose body finds its
    elements by `torch.where(mask[...])`, selects by them, and adds what it computed by
    `index_add_`: for a row without elements all selections are empty, and adding nothing changes
    nothing. In training the parameters of such a row get a gradient of zeros instead of none. The
    number of the row is a list of one number, which indexes as a tensor of one element does.
    `row.item()` becomes that number, and `if index.numel() == 0: continue` is left out. Where
    `one_hot` has a row more than there are parameters, and the loop does not pass over it, an
    element there was an error of indexing; that there is none is checked in the graph.
    """
    loop = next((node for node in site.nodes[::-1] if isinstance(node, ast.For)), None)
    nodes = list(ast.walk(site.function))
    if loop is None and isinstance(site.statement, ast.Assign) and _mask_of(site.statement):
        hit = rewriting.name_of(site.statement.targets[0])
        loops = [
            node
            for node in nodes
            if isinstance(node, ast.For) and rewriting.name_of(node.iter) == hit
        ]
        loop = loops[0] if len(loops) == 1 else None
    if loop is None or loop.orelse or not isinstance(loop.target, ast.Name):
        return ()
    hit = rewriting.name_of(loop.iter)
    assigned = [
        n for n in nodes if isinstance(n, ast.Assign) and rewriting.name_of(n.targets[0]) == hit
    ]
    mask = _mask_of(assigned[0]) if len(assigned) == 1 else ""
    if not mask or len(rewriting.uses_of(hit, site.function)) != 2:
        return ()
    indices = {
        name
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and _elements_of(node.value, mask)
        for name in _names(node.targets[0])
    }
    if not _adds_only(loop, mask, indices) or not _as_list_does(loop):
        return ()
    indent, row = " " * assigned[0].col_offset, site.new_name("number")
    passes_over = any(isinstance(node, ast.Continue) for node in ast.walk(loop))
    spare = _has_spare_row(nodes, mask) and not passes_over
    check = f"{indent}torch._assert_async(~{mask}[-1].any())\n" if spare else ""
    count = f"{mask}.shape[0] - 1" if spare else f"{mask}.shape[0]"
    rows = f"{check}{indent}{hit} = [[{row}] for {row} in range({count})]\n"
    edits: list[Edit | None] = []
    for node in ast.walk(loop):
        match node:
            # The row as a number, and no question whether it has elements.
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="item"), args=[]) if (
                name == loop.target.id
            ):
                edits.append(site.replaced(node, f"{name}[0]"))
            case ast.If(test=test, body=[ast.Continue()], orelse=[]) if node in loop.body and (
                ast.unparse(test) in {f"{name}.numel() == 0" for name in indices}
            ):
                edits.append(site.edit(node, ""))
    edits.sort(key=lambda edit: edit.line if edit else 0)
    return rewriting.all_of(site.edit(assigned[0], rows), *edits)


def _mask_of(statement: ast.Assign) -> str:
    """`mask` of `hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()`; or ""."""
    form = r"torch\.(?:greater|gt)\((\w+)\.sum\(dim=\((?:-1, -2|-2, -1)\)\), 0\)\.nonzero"
    form += r"\((?:as_tuple=False)?\)"
    rows = re.fullmatch(form, ast.unparse(statement.value))
    return rows[1] if rows and rewriting.name_of(statement.targets[0]) else ""


def _has_spare_row(nodes: list[ast.AST], mask: str) -> bool:
    """Whether a mask is `one_hot(..., num_classes=n + 1)`."""
    return any(
        ast.unparse(inner.value).endswith("+ 1")
        for node in nodes
        if isinstance(node, ast.Assign) and rewriting.name_of(node.targets[0]) == mask
        for inner in ast.walk(node.value)
        if isinstance(inner, ast.keyword) and inner.arg == "num_classes"
    )


def _elements_of(value: ast.expr, mask: str) -> bool:
    """Whether a value is `torch.where(mask[...])`, or that of its only row."""
    match value:
        case ast.Call(func=called, args=[row], keywords=[]) if ast.unparse(called) == "torch.where":
            if ast.unparse(row).endswith(".squeeze(0)") and isinstance(row, ast.Call):
                row = row.func.value  # type: ignore[attr-defined]
            return isinstance(row, ast.Subscript) and rewriting.name_of(row.value) == mask
    return False


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _adds_only(loop: ast.For, mask: str, indices: set[str]) -> bool:
    """Whether a body assigns names and adds by index, the elements of `mask` being indices."""
    nodes = [inner for statement in loop.body for inner in ast.walk(statement)]
    targets = [node.targets[0] for node in nodes if isinstance(node, ast.Assign)]
    assigned = {name for target in targets for name in _names(target)}
    added = False
    for node in nodes:
        match node:
            case ast.Assign(value=value) if _elements_of(value, mask):
                pass
            case ast.Call(
                func=ast.Attribute(attr="index_add_"), args=[ast.Constant(value=0), index, *_]
            ):
                added = rewriting.name_of(index) in indices
                if not added:
                    return False
            case ast.AugAssign(target=ast.Name(id=name)) if name in assigned:
                pass  # a tensor of this row alone
            case ast.AugAssign() | ast.Break() | ast.Return() | ast.While() | ast.Delete():
                return False
            case ast.Assign(targets=places) if not all(
                isinstance(place, ast.Name | ast.Tuple) for place in places
            ):
                return False
            case ast.Call(func=ast.Attribute(attr=attr)) if attr != "index_add_" and (
                attr.endswith("_") or attr in ("append", "extend", "add", "update", "pop")
            ):
                return False
    return added


def _as_list_does(loop: ast.For) -> bool:
    """Whether the loop uses its row as a number or as an index, until `row = row[0]`."""
    row, known = rewriting.name_of(loop.target), set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript):
            if rewriting.name_of(node.value) == row and ast.unparse(node.slice) == "0":
                known.add(node.value)
            if rewriting.name_of(node.slice) == row and rewriting.name_of(node.value):
                known.add(node.slice)
        elif isinstance(node, ast.Call) and ast.unparse(node) == f"{row}.item()":
            known |= {*ast.walk(node.func)}  # type: ignore[arg-type]
    first = ast.unparse(loop.body[0]) == f"{row} = {row}[0]"
    return first or known.issuperset(rewriting.uses_of(row, *loop.body))


# --- branches -------------------------------------------------------------------------------------


@rule(
    "chosen instead of branched",
    "Under a condition on values, both values of a tensor are computed, and one is chosen.",
    "The derivative of the value that is not chosen is finite: a gradient of NaN or "
    "infinity reaches the weights.",
    when=_ON_DATA,
)
def chosen(site: rewriting.Site) -> rewriting.Edits:
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
    owner: ast.stmt | ast.expr | None = statement
    target: ast.expr | None = None
    match statement:
        case ast.If(body=[ast.Assign(targets=[target], value=value)], orelse=[]):
            other: ast.expr = target
        case ast.If(
            body=[ast.Assign(targets=[target], value=value)],
            orelse=[ast.Assign(targets=[again], value=other)],
        ) if ast.unparse(target) == ast.unparse(again):
            pass
        case ast.If(body=[ast.Return(value=ast.expr() as value)], orelse=rest):
            block = site.block()
            match rest or block[block.index(statement) + 1 :][:1]:
                case [ast.Return(value=ast.expr() as other) as last]:
                    target = None
                case _:
                    return ()
        case ast.Assign(targets=[target], value=ast.IfExp(body=value, orelse=other) as owner):
            pass
        case ast.Return(value=ast.IfExp(body=value, orelse=other) as owner):
            pass
        case _:
            return ()
    if not isinstance(owner, ast.If | ast.IfExp) or not isinstance(target, ast.Name | None):
        return ()
    condition = without_item(owner.test)
    names = {_element_of(value), _element_of(other)}
    if not _is_reduced(condition) or len(names) > 1 or None in names:
        return ()
    head = f"{site.indent}{f'{target.id} =' if target else 'return'} torch.where("
    test, values = ast.unparse(condition), f"{ast.unparse(value)}, {ast.unparse(other)}"

    def forced(taken: bool) -> str:
        return f"{head}torch.full_like({test}, {taken}, dtype=torch.bool), {values})\n"

    branches = rewriting.branches_of(site, owner, last, forced)
    return rewriting.all_of(site.edit(statement, f"{head}{test}, {values})\n", branches, last=last))


def _is_reduced(test: ast.expr) -> bool:
    """Whether a condition is `x.any()`, `x.all()` or a comparison of `x.max()` and the like."""
    match test:
        case ast.Call(func=ast.Attribute(value=owner, attr="any" | "all"), args=args, keywords=[]):
            return len(args) == (1 if ast.unparse(owner) == "torch" else 0)
        case ast.Compare(
            left=ast.Call(
                func=ast.Attribute(attr="max" | "min" | "sum" | "mean"), args=[], keywords=[]
            ),
            ops=[_],
            comparators=[right],
        ):
            return _is_number(right)
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
        case ast.Call(
            func=ast.Attribute(value=owner, attr="clamp" | "clip" | "nan_to_num" | "abs" | "relu"),
            args=args,
            keywords=keywords,
        ):
            arguments = args if ast.unparse(owner) == "torch" else [owner, *args]
            numbers = [*arguments[1:], *(keyword.value for keyword in keywords)]
            if arguments and all(map(_is_number, numbers)):
                return _element_of(arguments[0])
    return None


def _is_number(node: ast.expr) -> bool:
    """Whether an expression is a number for sure."""
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    if isinstance(operand, ast.Constant):
        return isinstance(operand.value, int | float)
    limit = r"torch\.finfo\([\w.]+\)\.(max|min)( [-+*/] [\d.]+)?"
    return re.fullmatch(limit, ast.unparse(operand)) is not None


_BOOLEAN = (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "isnan", "isinf", "isfinite", "any", "all"),
    *("logical_and", "logical_or", "logical_not", "logical_xor"),
)
"""Functions of torch, and methods of tensors, that return booleans."""


@rule(
    "assigned where a mask is true",
    "What is assigned to the elements of a mask under a condition on values is "
    "assigned to those where both are true.",
    "Nobody needs the version or the gradient of a tensor that nothing is assigned "
    "to: it is written to in place all the same.",
    when=_ON_DATA,
)
def unconditional(site: rewriting.Site) -> rewriting.Edits:
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
        ) if _is_boolean(site, mask) and _is_plain(value):
            text = ast.unparse(mask)
        case _:
            return ()
    if ast.unparse(test) in (f"{text}.any()", f"torch.any({text})"):
        both = text
    elif _is_boolean(site, test) and isinstance(test, ast.Compare | ast.Call):
        both = f"({text}) & ({ast.unparse(test)})"
    else:
        return ()
    head, tail = f"{site.indent}{ast.unparse(target.value)}[", f"] = {ast.unparse(value)}\n"
    branches = rewriting.branches_of(
        site, statement, statement, lambda taken: f"{head}({text}) & {taken}{tail}"
    )
    return rewriting.all_of(site.edit(statement, f"{head}{both}{tail}", branches))


def _is_boolean(site: rewriting.Site, node: ast.expr) -> bool:
    """Whether an expression is a boolean tensor: a comparison, or a name that is one everywhere."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in _OPPOSITE:
            return True
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in _BOOLEAN:
            return True
        case ast.Call(
            func=ast.Attribute(value=inner, attr="to" | "unsqueeze" | "expand_as" | "squeeze")
        ):
            arguments = " ".join(map(ast.unparse, [*node.args, *(k.value for k in node.keywords)]))
            unchanged = "dtype" not in arguments and "torch." not in arguments
            return unchanged and _is_boolean(site, inner)
        case ast.UnaryOp(op=ast.Invert(), operand=inner):
            return _is_boolean(site, inner)
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.BitXor(), right=right):
            return _is_boolean(site, left) and _is_boolean(site, right)
        case ast.Name(id=name):
            values = [
                part.value
                for part in ast.walk(site.function)
                if isinstance(part, ast.Assign) and name in map(rewriting.name_of, part.targets)
            ]
            uses = rewriting.uses_of(name, site.function)
            stored = [use for use in uses if isinstance(use.ctx, ast.Store)]
            own = [v for v in values if ast.unparse(v) != f"{name}.all(-1)"]
            all_boolean = bool(own) and all(_is_boolean(site, v) for v in own)
            return len(stored) == len(values) and all_boolean
    return False


def _is_plain(value: ast.expr) -> bool:
    """Whether an expression can be evaluated in vain: it reads, indexes and converts only."""
    harmless = ("to", "type", "float", "half", "squeeze", "unsqueeze", "view")
    return not any(
        isinstance(node, ast.Await | ast.Yield | ast.NamedExpr)
        or (
            isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] not in harmless
        )
        for node in ast.walk(value)
    )


# --- numbers in a list ----------------------------------------------------------------------------


@rule(
    "numbers gathered in a tensor",
    "Numbers that are read from tensors into a list, which becomes a tensor, are "
    "gathered in a tensor.",
    "The numbers are integers of at most 64 bits, and need no gradient.",
    when=r"tolist|[Dd]ata.dependent|GuardOnDataDependent",
)
def gathered(site: rewriting.Site) -> rewriting.Edits:
    """Gather numbers of tensors in a tensor, where a list of them becomes a tensor in the end.

    The list begins with integers in the body of the function, gets `extend(x.tolist())`, gives its
    last element as an operand, and is given to `torch.tensor` with a type; the function uses it for
    nothing else. The tensor has the same numbers in the same order: `torch.cat` accepts only what
    has one dimension, as a list of numbers has, and integers remain integers.
    """
    extended = re.fullmatch(r"(\w+)\.extend\(\w+\.tolist\(\)\)", ast.unparse(site.statement))
    if extended is None:
        return ()
    name = extended[1]
    edits: list[tuple[ast.stmt, Edit | None]] = []
    known: set[ast.AST] = set()
    for node in ast.walk(site.function):
        if isinstance(node, ast.stmt) and (text := _of_use(node, name)):
            line = f"{' ' * node.col_offset}{text}\n"
            edits.append((node, site.edit(node, line)))
            known |= {*ast.walk(node)}
        elif isinstance(node, ast.BinOp) and f"{name}[-1]" in map(
            ast.unparse, (node.left, node.right)
        ):
            known |= {*ast.walk(node)}  # which a tensor has, too
    edits.sort(key=lambda pair: pair[0].lineno)
    if len(edits) != 3 or edits[0][0] not in site.function.body:
        return ()
    first, last = edits[0][0], edits[2][0]
    again = ast.unparse(last).startswith(f"{name} = torch.tensor({name},")
    for use in rewriting.uses_of(name, site.function):
        # Before the first statement the name is something else, after the last one a tensor.
        is_tensor = again and use.lineno > (last.end_lineno or 0)
        if use not in known and use.lineno > first.lineno and not is_tensor:
            return ()
    return rewriting.all_of(*(edit for _, edit in edits))


def _of_use(node: ast.stmt, name: str) -> str:
    """What one of the three statements with the list becomes; "" for anything else."""
    text = ast.unparse(node)
    if begun := re.fullmatch(rf"{name}(?:: .+)? = (\[\d+(?:, \d+)*\])", text):
        return f"{name} = torch.tensor({begun[1]})"
    if extended := re.fullmatch(rf"{name}\.extend\((.+)\.tolist\(\)\)", text):
        return f"{name} = torch.cat([{name}.to({extended[1]}.device), {extended[1]}])"
    keyword = "(?:dtype|device)=[^=]+"
    ended = re.fullmatch(rf"(\w+) = torch\.tensor\({name}, ({keyword}(?:, {keyword})?)\)", text)
    return f"{ended[1]} = {name}.to({ended[2]})" if ended and "dtype=" in ended[2] else ""


# --- attention ------------------------------------------------------------------------------------

_SPLIT = re.compile(
    r"(\w+) = \[torch\.split\((\w+), (\w+)\.tolist\(\), dim=2\)"
    r" for \2 in [([](\w+, \w+, \w+)[])]\]"
)
_SEGMENTS = r"(?P<loop>\w+, \w+, \w+) in zip\(\*(?P<splits>\w+)\)"
_JOINED = r"torch\.cat\((?P=outputs), dim=1\)"
_BY_SEGMENT = (
    rf"(?P<outputs>\w+) = \[(?P<call>.+)\[0\] for {_SEGMENTS}\]\n(?P<target>\w+) = {_JOINED}",
    rf"(?P<target>\w+) = torch\.cat\(\[(?P<call>.+)\[0\] for {_SEGMENTS}\], dim=1\)",
    r"(?P<outputs>\w+), (?P<weights>\w+) = \(\[\], \[\]\)\n"
    rf"for {_SEGMENTS}:\n    (?P<target>(?P<output>\w+), (?P<weight>\w+)) = (?P<call>.+)\n"
    r"    (?P=outputs)\.append\((?P=output)\)\n    (?P=weights)\.append\((?P=weight)\)\n"
    rf"(?P=output) = {_JOINED}",
)
"""The three forms of Transformers, as `ast.unparse` writes them."""


@rule(
    "segments attended in one call",
    "Segments are attended in one call with a mask that keeps them apart, instead of "
    "one call each. The mask has the square of the sequence's length as size.",
    "No segment has NaN or infinity, which would reach the other segments.",
    "The memory suffices for a mask with the square of the sequence's length.",
    when=r"tolist|data.dependent|GB9493|GuardOnDataDependent|split",
)
def masked(site: rewriting.Site) -> rewriting.Edits:
    """Attend to all segments in one call, with a mask that keeps them apart.

    A query meets the keys of its own segment only: the others have the smallest number of the type
    added, whose exponential is zero beside that of its own key. The calls by segment are those of
    Transformers: `function(module, query, key, value, attention_mask=None, ...)` on (batch, heads,
    length, size), with an output of (batch, length, heads, size); the mask is added to the weights
    by all of its implementations that take one. What `split` raises where the lengths are not those
    of the sequence is checked in the graph. An infinite value or NaN in one segment reaches others.
    """
    block = site.block()
    at = block.index(site.statement)
    for start in range(max(at - 3, 0), at + 1):
        split = _SPLIT.fullmatch(ast.unparse(block[start]))
        if split is None:
            continue
        for length in (2, 3, 4):
            statements = block[start : start + length]
            text = "\n".join(map(ast.unparse, statements[1:]))
            for form in _BY_SEGMENT:
                if (segment := re.fullmatch(form, text)) and (
                    edits := _attended(site, statements, split, segment.groupdict())
                ):
                    return edits
    return ()


def _attended(
    site: rewriting.Site, statements: list[ast.stmt], split: re.Match[str], segment: dict[str, str]
) -> rewriting.Edits:
    splits, _, lengths, names = split.groups()
    states, loop = names.split(", "), segment["loop"].split(", ")
    call = ast.parse(segment["call"], mode="eval").body
    lists = {splits, segment.get("outputs", splits)}
    uses = [use for name in lists for use in rewriting.uses_of(name, site.function)]
    inside = {node for statement in statements for node in ast.walk(statement)}
    # The call uses what it gets of a segment once, and the function its lists nowhere else.
    if segment["splits"] != splits or not inside.issuperset(uses) or not isinstance(call, ast.Call):
        return ()
    masks = [entry.value for entry in call.keywords if entry.arg == "attention_mask"]
    others = [*call.args[:-3], *(argument.value for argument in call.keywords)]
    if (
        [rewriting.name_of(argument) for argument in call.args[-3:]] != loop
        or any(ast.unparse(mask) != "None" for mask in masks)
        or any(rewriting.uses_of(name, *others) for name in loop)
    ):
        return ()
    rest = [argument for argument in call.keywords if argument.arg != "attention_mask"]
    segments, segment_mask = site.new_name("segments"), site.new_name("segment_mask")
    weights, weight = segment.get("weights"), segment.get("weight")
    query, indent = states[0], " " * statements[0].col_offset
    lines = [
        f"torch._assert_async(({lengths} >= 0).all() & ({lengths}.sum() == {query}.shape[2]))",
        f"{segments} = torch.arange({query}.shape[2], device={lengths}.device)",
        f"{segments} = torch.bucketize({segments}, {lengths}.cumsum(0), right=True)",
        f"{segment_mask} = {segments}[:, None] != {segments}",
        f"{segment_mask} = torch.zeros_like({segment_mask}, dtype={query}.dtype).masked_fill(",
        f"    {segment_mask}, torch.finfo({query}.dtype).min",
        ")",
        f"{segment['target']} = {ast.unparse(call.func)}(",
        *(f"    {text}," for text in (*map(ast.unparse, call.args[:-3]), *states)),
        f"    attention_mask={segment_mask}[None, None],",
        *(f"    {ast.unparse(argument)}," for argument in rest),
        f"){'' if weights else '[0]'}",
        # It has one entry then, for all segments; None where the implementation returns none.
        *([f"{weights} = [{weight}]"] if weights else []),
    ]
    text = "".join(f"{indent}{line}\n" for line in lines)
    return rewriting.all_of(site.edit(statements[0], text, last=statements[-1]))
