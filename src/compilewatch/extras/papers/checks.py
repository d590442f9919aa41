"""Checks of generated code by its syntax tree: nothing is imported or run.

`check_source` says what the code may not contain, with precise lines to repair; it is no
protection, for which there is the sandbox. `check_structure` and `check_rubric` ask whether the
code contains the paper's contribution, or a stock network with its name on it: by the operations
that its live parts contain, and by the reviewer's quotations, which are looked up. Formulas are
computed beside the code, in the sandbox (`worker/`).
"""

import ast
import copy
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from compilewatch.extras.papers import records
from compilewatch.extras.papers.records import FindingClass, PipelineStage, finding_of

SOURCE_VERSION = 1
FAITHFUL_VERSION = 1
"""Raised when a change of the checks can change a finding; they are part of a stage's key."""

IMPORTS = frozenset(
    {"__future__", "collections", "dataclasses", "enum", "functools", "itertools", "math"}
    | {"typing", "torch"}
)
"""Packages that generated code may import."""

_TORCH_BANNED = frozenset(
    {"cuda", "distributed", "hub", "load", "save", "ops", "jit", "compile", "package", "backends"}
    | {"xpu", "mps", "multiprocessing", "classes", "library", "_dynamo", "_inductor"}
    | {"serialization", "cpp_extension", "from_file"}
)
_BUILTINS_BANNED = frozenset(
    {"eval", "exec", "compile", "open", "input", "breakpoint", "globals", "locals", "vars"}
    | {"__import__", "memoryview", "setattr", "delattr", "exit", "quit", "print"}
)
_DEVICE_METHODS = frozenset({"cuda", "xpu", "ipu", "mark_step", "xla_device", "optimizer_step"})
_DEVICES = ("cuda", "xla", "xpu", "mps", "neuron", "hpu")
_DUNDERS = frozenset({"__init__", "__class__", "__name__", "__version__", "__len__", "__call__"})
_DECORATORS = frozenset(
    {"staticmethod", "classmethod", "property", "dataclass", "no_grad", "cache", "lru_cache"}
    | {"cached_property"}
)
REQUIRED = ("model", "inputs", "loss")
"""The functions of a module."""

_disallowed = partial(finding_of, FindingClass.DISALLOWED, PipelineStage.STATIC)
_invalid = partial(finding_of, FindingClass.INVALID_CODE, PipelineStage.STATIC)
_unfaithful = partial(finding_of, FindingClass.UNFAITHFUL, PipelineStage.FAITHFUL)


_PARSING = threading.Lock()
"""Two threads that parse at a time may fail with a SystemError (python/cpython#106905)."""


def _parsed(source: str) -> ast.Module:
    with _PARSING:
        return ast.parse(source)


def check_source(source: str) -> tuple[records.PaperFinding, ...]:
    """The findings of a version of the code, in the order of its lines."""
    try:
        tree = _parsed(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return (_invalid(f"the code does not parse: {error}", line),)
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    findings = [
        *(_invalid(f"there is no function {name}()") for name in REQUIRED if name not in functions),
        *_at_import(tree.body),
        *(
            _disallowed(reason, getattr(node, "lineno", None))
            for node in ast.walk(tree)
            if (reason := _not_allowed(node))
        ),
    ]
    return tuple(sorted(findings, key=lambda finding: finding.line or 0))


def _at_import(body: list[ast.stmt]) -> Iterator[records.PaperFinding]:
    """What would run when the module is imported."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                if _name_of(decorator) not in _DECORATORS:
                    reason = f"the decorator {ast.unparse(decorator)[:60]} is not allowed"
                    yield _disallowed(reason, decorator.lineno)
        if isinstance(node, ast.FunctionDef):
            values = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
            if any(map(_calls, values)):
                reason = f"a default value of {node.name}() is a call, which runs at import"
                yield _disallowed(reason, node.lineno)
        elif isinstance(node, ast.ClassDef):
            if node.keywords:
                yield _disallowed(f"class {node.name} has keyword arguments", node.lineno)
            yield from _at_import(node.body)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if _calls(node):
                reason = "a call at the top level runs at import: move it into a function"
                yield _disallowed(reason, node.lineno)
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Pass) and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        ):
            yield _disallowed(
                f"`{type(node).__name__}` at the top level runs at import", node.lineno
            )


def _name_of(node: ast.expr) -> str:
    """`softmax` of `torch.nn.functional.softmax(…)`, called or not."""
    function = node.func if isinstance(node, ast.Call) else node
    return str(getattr(function, "attr", "") or getattr(function, "id", ""))


def _calls(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Call) for inner in ast.walk(node))


def _not_allowed(node: ast.AST) -> str:
    """Why generated code may not contain a node; empty if it may."""
    match node:
        case ast.ImportFrom():
            if node.level:
                return "a relative import: the code is a single module"
            return _import(f"{node.module}.{alias.name}" for alias in node.names)
        case ast.Import():
            return _import(alias.name for alias in node.names)
        case ast.Name() if node.id in _BUILTINS_BANNED:
            return f"{node.id} is not allowed"
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" as name)):
            if not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant)):
                return f"{name} with a computed name is not allowed"
        case ast.Global() | ast.Nonlocal() | ast.AsyncFunctionDef() | ast.Await():
            return f"`{type(node).__name__.lower()}` is not allowed"
        case ast.Attribute():
            return _attribute(node)
        case ast.Constant(value=str()):
            device, _, number = str(node.value).partition(":")
            if device in _DEVICES and (not number or number.isdigit()):
                return f"the device {node.value!r}: the code must be free of devices"
    return ""


def _import(names: Iterable[str]) -> str:
    for name in names:
        top, *rest = name.split(".")
        if top not in IMPORTS:
            return f"import of {name}: only {', '.join(sorted(IMPORTS - {'__future__'}))}"
        if top == "torch" and _TORCH_BANNED.intersection(rest):
            return f"import of {name} is not allowed"
        if rest and rest[-1] == "*":
            return f"import of all names of {top}: name them"
    return ""


def _attribute(node: ast.Attribute) -> str:
    name = node.attr
    if name.startswith("__") and name.endswith("__") and name not in _DUNDERS:
        return f"the attribute {name} is not allowed"
    if name in _DEVICE_METHODS:
        return f".{name} binds the code to a device: the caller chooses it"
    owner = ast.unparse(node.value)
    if owner == "torch" and name in _TORCH_BANNED:
        return f"torch.{name} is not allowed"
    if owner == "torch.utils" and name != "checkpoint":
        return f"torch.utils.{name} is not allowed"
    return ""


# --- does it contain the paper's contribution? ---

OPERATIONS: dict[str, frozenset[str]] = {
    "sigmoid": frozenset({"sigmoid", "Sigmoid", "logsigmoid", "expit"}),
    "tanh": frozenset({"tanh", "Tanh"}),
    "softmax": frozenset({"softmax", "Softmax", "log_softmax", "gumbel_softmax"}),
    "softplus": frozenset({"softplus", "Softplus"}),
    "relu": frozenset({"relu", "ReLU", "relu6", "clamp_min"}),
    "gelu": frozenset({"gelu", "GELU"}),
    "silu": frozenset({"silu", "SiLU"}),
    "exp": frozenset({"exp", "expm1", "exp2"}),
    "log": frozenset({"log", "log1p", "log2", "logsumexp"}),
    "sqrt": frozenset({"sqrt", "rsqrt"}),
    "sine": frozenset({"sin", "cos"}),
    "norm": frozenset({"norm", "normalize", "vector_norm", "cosine_similarity"}),
    "mean": frozenset({"mean", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d"}),
    "variance": frozenset({"var", "std", "var_mean", "std_mean"}),
    "maximum": frozenset({"max", "amax", "maximum", "max_pool2d"}),
    "cumulative_sum": frozenset({"cumsum", "cumprod", "logcumsumexp"}),
    "top_k": frozenset({"topk", "sort", "argsort", "kthvalue"}),
    "fourier": frozenset({"fft", "rfft", "ifft", "irfft", "fft2", "rfft2", "irfft2"}),
    "outer": frozenset({"outer", "ger"}),
    "multiply": frozenset({"mul", "multiply", "mul_", "addcmul", "lerp"}),
    "divide": frozenset({"div", "divide", "true_divide", "reciprocal"}),
    "subtract": frozenset({"sub", "subtract", "rsub"}),
    "power": frozenset({"pow", "square"}),
    "matmul": frozenset({"matmul", "bmm", "mm", "einsum", "linear", "baddbmm", "addmm"}),
    "convolution": frozenset({"conv1d", "conv2d", "conv3d", "Conv1d", "Conv2d", "unfold"}),
    "shift": frozenset({"roll", "shift", "pad"}),
    "where": frozenset({"where", "masked_fill", "masked_fill_"}),
}
"""Operation -> names of functions, methods and layers that do it."""

_OPERATORS: dict[type[ast.operator], str] = {
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Sub: "subtract",
    ast.Pow: "power",
    ast.MatMult: "matmul",
}

_BY_NAME = {name: operation for operation, names in OPERATIONS.items() for name in names}


def operations_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the operations of some nodes."""
    for inner in _walk(nodes):
        if isinstance(inner, ast.BinOp | ast.AugAssign) and type(inner.op) in _OPERATORS:
            # Of two numbers, it is no operation on tensors.
            numbers = isinstance(inner, ast.BinOp) and all(
                isinstance(side, ast.Constant) for side in (inner.left, inner.right)
            )
            if not numbers:
                yield _OPERATORS[type(inner.op)]
        elif isinstance(inner, ast.Call) and (name := _name_of(inner)) in _BY_NAME:
            yield _BY_NAME[name]


class LivePart(NamedTuple):
    """A class that the model uses, with the code of it that counts: the statements of `forward`
    and of what it calls, and the calls that construct the layers that these use.
    """

    name: str
    line: int
    nodes: tuple[ast.AST, ...]


def live_parts(tree: ast.Module) -> tuple[LivePart, ...]:
    """The parts of the model, in the order in which they are reached from `model()`."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    parts: list[LivePart] = []
    reached = ["model"]
    for name in reached:  # which grows
        names: list[str] = []
        if name in functions:
            names = _names(functions[name].body)
        elif name in classes:
            parts.append(_part_of(classes[name], classes, functions))
            used = _names((*parts[-1].nodes, *classes[name].bases))
            names = [name for name in used if name in classes]
        reached += [name for name in dict.fromkeys(names) if name not in reached]
    return tuple(parts)


def _part_of(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], functions: dict[str, ast.FunctionDef]
) -> LivePart:
    methods = _methods(node, classes)
    live: list[ast.AST] = []
    called = ["forward"]
    for name in called:  # which grows
        function = methods.get(name) or functions.get(name)
        if function is None or name == "__init__":
            continue
        live.append(_live(function))
        used = [n for n in _attributes(live[-1:]) if n in methods]
        used += [n for n in _names(live[-1:]) if n in functions]
        called += [name for name in dict.fromkeys(used) if name not in called]
    read = set(_attributes(live))
    for inner in _walk([methods["__init__"]] if "__init__" in methods else []):
        if isinstance(inner, ast.Assign | ast.AnnAssign) and inner.value is not None:
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            if not read.isdisjoint(_attributes(targets)):
                live += [layer for layer in ast.walk(inner.value) if isinstance(layer, ast.Call)]
    return LivePart(node.name, node.lineno, tuple(live))


def _methods(
    node: ast.ClassDef, classes: dict[str, ast.ClassDef], depth: int = 0
) -> dict[str, ast.FunctionDef]:
    """The methods of a class with those that it inherits from classes of the same file."""
    methods: dict[str, ast.FunctionDef] = {}
    for base in node.bases if depth < 5 else ():
        if isinstance(base, ast.Name) and base.id in classes and base.id != node.name:
            methods |= _methods(classes[base.id], classes, depth + 1)
    return methods | {n.name: n for n in node.body if isinstance(n, ast.FunctionDef)}


def _live(function: ast.FunctionDef) -> ast.FunctionDef:
    """A function without statements whose result nothing uses, and products with zero."""
    tree = copy.deepcopy(function)
    size = 0
    while size != (size := sum(1 for _ in ast.walk(tree))):
        _Pruned(set(_names([tree]))).visit(tree)
    return tree


class _Pruned(ast.NodeTransformer):
    def __init__(self, read: set[str]) -> None:
        self._read = read

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.Expr):
            value = node.value
            function = value.func if isinstance(value, ast.Call) else None
            in_place = isinstance(function, ast.Attribute) and function.attr.endswith("_")
            if not in_place and not isinstance(value, ast.Yield | ast.YieldFrom | ast.Await):
                return None
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(name is not None and name not in self._read for name in _bound(targets)):
                return None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = (node.left, node.right)
            if any(isinstance(side, ast.Constant) and side.value == 0 for side in sides):
                return ast.copy_location(ast.Constant(0), node)
        return self.generic_visit(node)


def _bound(targets: Iterable[ast.expr]) -> Iterator[str | None]:
    """The names that an assignment binds; None for an attribute or an element."""
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from _bound(target.elts)
        elif isinstance(target, ast.Starred):
            yield from _bound([target.value])
        else:
            yield target.id if isinstance(target, ast.Name) else None


def _walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield from ast.walk(node)


def _names(nodes: Iterable[ast.AST]) -> list[str]:
    """The names that are read in some nodes, in order."""
    return [
        inner.id
        for inner in _walk(nodes)
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)
    ]


def _attributes(nodes: Iterable[ast.AST]) -> list[str]:
    """The attributes of `self` in some nodes."""
    return [
        inner.attr
        for inner in _walk(nodes)
        if isinstance(inner, ast.Attribute)
        and isinstance(inner.value, ast.Name)
        and inner.value.id == "self"
    ]


LINES_AROUND = 2
"""A reviewer may miss the line of a quotation by this much."""


def check_structure(source: str, plan: records.PaperPlan) -> Iterator[records.PaperFinding]:
    """A finding for each claim that no live part of the code can implement.

    The operations of a claim must meet in one class, else they may belong to something else.
    """
    parts = live_parts(_parsed(source))
    operations = {part: set(operations_in(part.nodes)) for part in parts}
    for claim in plan.claims:
        required = set(claim.operations)
        if not operations:
            text = f"claim {claim.id}: model() uses no class of this module, only stock layers"
            yield _unfaithful(text)
            continue
        nearest = max(operations, key=lambda part: len(required & operations[part]))
        if missing := ", ".join(sorted(required - operations[nearest])):
            text = (
                f"claim {claim.id} ({claim.statement}): no class that the model uses contains "
                f"{', '.join(sorted(required))}; {nearest.name} comes closest and lacks {missing}"
            )
            yield _unfaithful(text, nearest.line)


def check_rubric(
    source: str, plan: records.PaperPlan, review: records.Review
) -> Iterator[records.PaperFinding]:
    """A finding for each claim that the reviewer does not confirm with a line of the code."""
    reviewed = {one.claim: one for one in review.claims}
    for claim in plan.claims:
        one = reviewed.get(claim.id)
        if one is None or not one.present:
            yield _unfaithful(f"the review does not find claim {claim.id}: {claim.statement}")
        elif not any(_is_quoted(source, evidence) for evidence in one.evidence):
            why = "but its evidence is not in the code"
            yield _unfaithful(f"the review confirms claim {claim.id}, {why}")


def _is_quoted(source: str, evidence: records.Evidence) -> bool:
    """Whether the quotation stands at the line, or within a few lines of it."""
    quote = "".join(evidence.quote.split())
    start = max(0, evidence.line - 1 - LINES_AROUND)
    near = source.splitlines()[start : evidence.line + LINES_AROUND]
    return len(quote) >= 4 and quote in "".join("".join(near).split())
