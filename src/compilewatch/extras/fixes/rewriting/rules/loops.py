"""Rules for generators and loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilewatch.extras.fixes.records import Edit
from compilewatch.extras.fixes.rewriting.sites import (
    Edits,
    RewriteRule,
    Site,
    all_of,
    attribute_call,
    keyword,
    name_of,
    stored_names,
)

_CONSUMERS = ("tuple", "list", "set", "frozenset", "dict", "sorted", "sum", "max", "min")
"""Functions that take all elements of their argument in order, before anything else runs."""


def listed(site: Site) -> Edits:
    """Give a list instead of a generator to a function that consumes all of it at once.

    The elements are evaluated in the same order, all of them before the function continues. The
    same is true of the elements that are unpacked to names. `any`, `all` and `next` stop early and
    are left alone.
    """
    edits: list[Edit | None] = []
    for node in _headers(site.statement):
        match node:
            case ast.Call(func=function, args=[ast.GeneratorExp() as given, *_]) if ast.unparse(
                function
            ) in _CONSUMERS or (isinstance(function, ast.Attribute) and function.attr == "join"):
                edits.append(_as_list(site, given))
            case ast.Assign(targets=[ast.Tuple()], value=ast.GeneratorExp() as given):
                edits.append(_as_list(site, given))
    return all_of(*edits[:1]) if edits else ()


def _headers(statement: ast.stmt) -> list[ast.AST]:
    """The nodes of a statement without those of the statements inside of it."""
    headers: list[ast.AST] = [statement]
    for entry in headers:
        headers += [
            child
            for child in ast.iter_child_nodes(entry)
            if not isinstance(child, ast.stmt | ast.ExceptHandler | ast.Lambda)
        ]
    return headers


def _as_list(site: Site, given: ast.GeneratorExp) -> Edit | None:
    """Put brackets around a generator, which keeps its lines as they are."""
    first, last = site.span(given)
    lines = [line.encode() for line in site.lines[first - 1 : last]]
    start, end = given.col_offset, given.end_col_offset or 0
    own = lines[0][start : start + 1] == b"(" and lines[-1][end - 1 : end] == b")"
    if not own:
        return None
    # The parentheses of a call that has no other argument are the generator's own.
    call = lines[0][:start].rstrip()[-1:].isalnum() or lines[0][:start].endswith((b"_", b"]", b")"))
    opened, closed = (b"([", b"])") if call else (b"[", b"]")
    lines[-1] = lines[-1][: end - 1] + closed + lines[-1][end:]
    lines[0] = lines[0][:start] + opened + lines[0][start + 1 :]
    return site.edit((first, last), b"".join(lines).decode())


def visited(site: Site) -> Edits:
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
    loop = next((e for e in (site.statement, *site.around[::-1]) if isinstance(e, ast.For)), None)
    hit = name_of(loop.iter) if loop is not None else _assigned_nonzero(site.statement)
    loop = loop or _loop_over(site, hit)
    if not hit or loop is None or loop.orelse or not isinstance(loop.target, ast.Name):
        return ()
    assigned = [
        node
        for node in ast.walk(site.function)
        if isinstance(node, ast.Assign) and name_of(node.targets[0]) == hit
    ]
    uses = [n for n in ast.walk(site.function) if isinstance(n, ast.Name) and n.id == hit]
    mask = _mask_of(assigned[0].value) if len(assigned) == 1 else None
    if mask is None or len(uses) != 2 or not _adds_only(loop, mask) or not _as_list_does(loop):
        return ()
    first, last = site.span(assigned[0])
    indent = " " * assigned[0].col_offset
    row = site.new_name("number")
    spare = _has_spare_row(site, mask) and not any(
        isinstance(n, ast.Continue) for n in ast.walk(loop)
    )
    check = f"{indent}torch._assert_async(~{mask}[-1].any())\n" if spare else ""
    count = f"{mask}.shape[0] - 1" if spare else f"{mask}.shape[0]"
    rows = f"{check}{indent}{hit} = [[{row}] for {row} in range({count})]\n"
    return all_of(site.edit((first, last), rows), *_in_the_body(site, loop, mask))


def _in_the_body(site: Site, loop: ast.For, mask: str) -> list[Edit | None]:
    """The edits of a body: the row as a number, and no question whether it has elements."""
    edits: list[Edit | None] = []
    empty = {f"{name}.numel() == 0" for name in _indices(loop, mask)}
    for node in ast.walk(loop):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="item"), args=[]) if (
                name == name_of(loop.target)
            ):
                edits.append(site.replaced(node, f"{name}[0]"))
            case ast.If(test=test, body=[ast.Continue()], orelse=[]) if (
                ast.unparse(test) in empty and node in loop.body
            ):
                edits.append(site.edit(site.span(node), ""))
    return sorted(edits, key=lambda each: each.line if each else 0)


def _has_spare_row(site: Site, mask: str) -> bool:
    """Whether a mask is `one_hot(..., num_classes=n + 1)`."""
    return any(
        ast.unparse(inner.value).endswith("+ 1")
        for node in ast.walk(site.function)
        if isinstance(node, ast.Assign) and name_of(node.targets[0]) == mask
        for inner in ast.walk(node.value)
        if isinstance(inner, ast.keyword) and inner.arg == "num_classes"
    )


def _assigned_nonzero(statement: ast.stmt) -> str:
    is_assigned = isinstance(statement, ast.Assign) and _mask_of(statement.value) is not None
    return name_of(statement.targets[0]) if is_assigned else ""  # type: ignore[attr-defined]


def _loop_over(site: Site, name: str) -> ast.For | None:
    loops = [
        n for n in ast.walk(site.function) if isinstance(n, ast.For) and name_of(n.iter) == name
    ]
    return loops[0] if len(loops) == 1 else None


def _mask_of(value: ast.expr) -> str | None:
    """`mask` of `torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()`; None for anything else."""
    match value:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(
                    func=compared,
                    args=[
                        ast.Call(func=ast.Attribute(value=ast.Name(id=mask), attr="sum")) as summed,
                        ast.Constant(value=0),
                    ],
                ),
                attr="nonzero",
            ),
        ) if ast.unparse(compared) in ("torch.greater", "torch.gt"):
            dim = keyword(summed, "dim")
            return (
                mask if dim is not None and ast.unparse(dim) in ("(-1, -2)", "(-2, -1)") else None
            )
    return None


def _elements_of(value: ast.expr, mask: str) -> bool:
    """Whether a value is `torch.where(mask[...])`, or that of its only row."""
    match value:
        case ast.Call(func=called, args=[row], keywords=[]) if ast.unparse(called) == "torch.where":
            if ast.unparse(row).endswith(".squeeze(0)") and isinstance(row, ast.Call):
                row = row.func.value  # type: ignore[attr-defined]
            return isinstance(row, ast.Subscript) and name_of(row.value) == mask
    return False


def _indices(loop: ast.For, mask: str) -> set[str]:
    """The names of the indices of the elements of a row."""
    return {
        name
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign) and _elements_of(node.value, mask)
        for name in stored_names(node.targets[0])
    }


def _adds_only(loop: ast.For, mask: str) -> bool:
    """Whether a body assigns names and adds by index, the elements of `mask` being indices."""
    indices = _indices(loop, mask)
    assigned = {
        name
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        for name in stored_names(node.targets[0])
    }
    added = False
    for node in (inner for stmt in loop.body for inner in ast.walk(stmt)):
        match node:
            case ast.Assign(value=value) if _elements_of(value, mask):
                pass
            case ast.Call(
                func=ast.Attribute(attr="index_add_"), args=[ast.Constant(value=0), index, *_]
            ):
                added = name_of(index) in indices
                if not added:
                    return False
            case ast.AugAssign(target=ast.Name(id=name)) if name in assigned:
                pass  # a tensor of this row alone
            case ast.AugAssign() | ast.Break() | ast.Return() | ast.While() | ast.Delete():
                return False
            case ast.Assign(targets=targets) if not all(
                isinstance(target, ast.Name | ast.Tuple) for target in targets
            ):
                return False
            case ast.Call(func=ast.Attribute(attr=attr)) if (
                attr.endswith("_") and attr != "index_add_"
            ):
                return False
            case ast.Call(func=ast.Attribute(attr="append" | "extend" | "add" | "update" | "pop")):
                return False
    return added


def _as_list_does(loop: ast.For) -> bool:
    """Whether the loop uses its row as a number or as an index, until `row = row[0]`."""
    row = name_of(loop.target)
    known = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript):
            if name_of(node.value) == row and ast.unparse(node.slice) == "0":
                known.add(id(node.value))
            if name_of(node.slice) == row and name_of(node.value):
                known.add(id(node.slice))
        elif isinstance(node, ast.Call) and ast.unparse(node) == f"{row}.item()":
            known |= {id(inner) for inner in ast.walk(node.func)}
    uses = [n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name) and n.id == row]
    return ast.unparse(loop.body[0]) == f"{row} = {row}[0]" or all(id(n) in known for n in uses)


OF_LOOPS = (
    RewriteRule(
        name="list instead of a generator",
        summary="A function gets a list instead of a generator; it consumes all of it.",
        when=r"GB0003|[Gg]enerator|GB9493|__next__",
        apply=listed,
        holds_if=("What the generator yields ends, and making all of it at once has no effect.",),
        before="""\
return tuple(each * 2 for each in x)
""",
        after="""\
return tuple([each * 2 for each in x])
""",
    ),
    RewriteRule(
        name="all rows visited",
        summary="A loop visits all rows of a mask instead of those that have an element: "
        "the others add nothing.",
        when=r"nonzero|GB0036|GB0170|[Dd]ata.dependent|GuardOnDataDependent|GB7000",
        apply=visited,
        holds_if=(
            "A row without an element adds nothing: its weights get a gradient of zeros instead "
            "of none, which an optimizer with weight decay or momentum takes for an update.",
        ),
        before="""\
hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
for row in hit:
    slot, token = torch.where(mask[row[0]])
    states = hidden[token] * weights[row[0]]
    output.index_add_(0, token, states)
return output
""",
        after="""\
hit = [[number] for number in range(mask.shape[0])]
for row in hit:
    slot, token = torch.where(mask[row[0]])
    states = hidden[token] * weights[row[0]]
    output.index_add_(0, token, states)
return output
""",
    ),
)


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


OF_COUNTING = (
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
