"""What generated code may contain, read from its syntax tree. Nothing is imported or run.

These checks give the model precise lines to repair. They are no protection: generated code only
ever runs in the sandbox.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from compilewatch.extras.papers.records import FindingClass, PaperFinding, PipelineStage

VERSION = 1
"""Raised when a change of this module can change a finding; it is part of a stage's key."""

MAX_SOURCE_BYTES = 200_000

IMPORTS = frozenset(
    {"__future__", "collections", "dataclasses", "enum", "functools", "itertools", "math"}
    | {"typing", "torch"}
)
"""Packages that generated code may import."""

_TORCH_BANNED = frozenset(
    {"cuda", "distributed", "hub", "load", "save", "ops", "jit", "compile", "package", "backends"}
    | {
        "xpu",
        "mps",
        "multiprocessing",
        "classes",
        "library",
        "_dynamo",
        "_inductor",
        "serialization",
    }
    | {"cpp_extension", "from_file"}
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
REQUIRED = {"model": 0, "inputs": 0, "loss": 2}
"""Function -> the number of its arguments: `loss(output, inputs)` returns a scalar."""


def check_source(source: str) -> tuple[PaperFinding, ...]:
    """The findings of a version of the code, in the order of its lines."""
    if len(source.encode()) > MAX_SOURCE_BYTES:
        return (_finding(FindingClass.INVALID_CODE, f"more than {MAX_SOURCE_BYTES:,} bytes"),)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        return (_finding(FindingClass.INVALID_CODE, f"the code does not parse: {error}", line),)
    findings = [*_missing(tree), *_at_import(tree.body), *_banned(tree)]
    return tuple(sorted(findings, key=lambda finding: finding.line or 0))


def _finding(kind: FindingClass, evidence: str, line: int | None = None) -> PaperFinding:
    one_line = " ".join(evidence.split())
    return PaperFinding(kind=kind, stage=PipelineStage.STATIC, evidence=one_line[:400], line=line)


def _missing(tree: ast.Module) -> Iterator[PaperFinding]:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, count in REQUIRED.items():
        if name not in functions:
            yield _finding(FindingClass.INVALID_CODE, f"there is no function {name}()")
            continue
        arguments = functions[name].args
        positional = [*arguments.posonlyargs, *arguments.args]
        needed = len(positional) - len(arguments.defaults)
        keyword = sum(default is None for default in arguments.kw_defaults)
        if keyword or not needed <= count <= len(positional):
            line = functions[name].lineno
            evidence = f"{name}() must be callable with {count} positional arguments"
            yield _finding(FindingClass.INVALID_CODE, evidence, line)


def _at_import(body: list[ast.stmt]) -> Iterator[PaperFinding]:
    """What would run when the module is imported."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield from _decorated(node)
        if isinstance(node, ast.FunctionDef):
            values = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
            if any(isinstance(inner, ast.Call) for value in values for inner in ast.walk(value)):
                evidence = f"a default value of {node.name}() is a call, which runs at import"
                yield _finding(FindingClass.DISALLOWED, evidence, node.lineno)
        elif isinstance(node, ast.ClassDef):
            if node.keywords:
                evidence = f"class {node.name} has keyword arguments"
                yield _finding(FindingClass.DISALLOWED, evidence, node.lineno)
            yield from _at_import(node.body)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if any(isinstance(inner, ast.Call) for inner in ast.walk(node)):
                evidence = "a call at the top level runs at import: move it into a function"
                yield _finding(FindingClass.DISALLOWED, evidence, node.lineno)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
            evidence = f"`{type(node).__name__}` at the top level runs at import"
            yield _finding(FindingClass.DISALLOWED, evidence, node.lineno)


def _decorated(node: ast.FunctionDef | ast.ClassDef) -> Iterator[PaperFinding]:
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name not in _DECORATORS:
            evidence = f"the decorator {ast.unparse(decorator)[:60]} is not allowed"
            yield _finding(FindingClass.DISALLOWED, evidence, decorator.lineno)


def _banned(tree: ast.Module) -> Iterator[PaperFinding]:
    for node in ast.walk(tree):
        evidence = _import_of(node) or _name_of(node) or _attribute_of(node) or _constant_of(node)
        if evidence:
            yield _finding(FindingClass.DISALLOWED, evidence, getattr(node, "lineno", None))


def _import_of(node: ast.AST) -> str:
    if isinstance(node, ast.ImportFrom):
        if node.level:
            return "a relative import: the code is a single module"
        names = [f"{node.module}.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        return ""
    for name in names:
        top, *rest = name.split(".")
        if top not in IMPORTS:
            return f"import of {name}: only {', '.join(sorted(IMPORTS - {'__future__'}))}"
        if top == "torch" and _TORCH_BANNED.intersection(rest):
            return f"import of {name} is not allowed"
        if rest and rest[-1] == "*":
            return f"import of all names of {top}: name them"
    return ""


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Name) and node.id in _BUILTINS_BANNED:
        return f"{node.id} is not allowed"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        dynamic = node.func.id in ("getattr", "hasattr")
        if dynamic and not (len(node.args) > 1 and isinstance(node.args[1], ast.Constant)):
            return f"{node.func.id} with a computed name is not allowed"
    if isinstance(node, ast.Global | ast.Nonlocal | ast.AsyncFunctionDef | ast.Await):
        return f"`{type(node).__name__.lower()}` is not allowed"
    return ""


def _attribute_of(node: ast.AST) -> str:
    if not isinstance(node, ast.Attribute):
        return ""
    name = node.attr
    if name.startswith("__") and name.endswith("__") and name not in _DUNDERS:
        return f"the attribute {name} is not allowed"
    if name in _DEVICE_METHODS:
        return f".{name} binds the code to a device: the caller chooses it"
    if isinstance(node.value, ast.Name) and node.value.id == "torch" and name in _TORCH_BANNED:
        return f"torch.{name} is not allowed"
    if isinstance(node.value, ast.Attribute) and ast.unparse(node.value) == "torch.utils":
        return "" if name in ("checkpoint",) else f"torch.utils.{name} is not allowed"
    return ""


def _constant_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        device, _, number = node.value.partition(":")
        if device in _DEVICES and (not number or number.isdigit()):
            return f"the device {node.value!r}: the code must be free of devices"
    return ""
