"""Rules for numbers that are read from tensors into Python."""

from __future__ import annotations

import ast

from compilewatch.extras.fixes.records import Edit
from compilewatch.extras.fixes.rewriting.matching import attribute_call, name_of
from compilewatch.extras.fixes.rewriting.rule import Edits, RewriteRule, all_of
from compilewatch.extras.fixes.rewriting.sites import Site


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
        ) if target == name and elements and all(map(_is_integer, elements)):
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


def _is_integer(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


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


RULES = (
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
