"""Writes one file of plain PyTorch that defines what a piece of a library's code needs.

Functions of the library are written as they are, without annotations and docstrings. Objects become
stand-ins with only the attributes and methods that the written code reads by name. What cannot be
written becomes None: a candidate that needs it fails its check.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import inspect
import linecache
import math
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import nn

LITERAL_ELEMENTS = 16
"""Integer tensors of up to this size are always written out."""

MOST_ELEMENTS = 1024

_PLAIN_PACKAGES = frozenset({"torch", "numpy"})
"""Packages besides the standard library that a reproducer may import."""


def tensor_source(tensor: torch.Tensor, *, exact: bool) -> str:
    """Python source of a tensor: exact for small integers, noise for floating-point numbers."""
    shape, dtype = tuple(tensor.shape), tensor.dtype
    named = "" if dtype in (torch.float32, torch.int64) else f", dtype={dtype}"
    size = repr(shape) if len(shape) != 1 else str(shape[0])
    if tensor.is_floating_point() or tensor.is_complex():
        if tensor.numel() > 1 and bool((tensor == 0).all()):
            return f"torch.zeros({size}{named})"
        return f"torch.randn({size}{named})" if named == "" or dtype.itemsize > 1 else _ones(tensor)
    if tensor.numel() <= LITERAL_ELEMENTS or (exact and tensor.numel() <= MOST_ELEMENTS):
        named = named.removesuffix(", dtype=torch.bool")
        return f"torch.tensor({tensor.tolist()}{named})"
    if tensor.numel() and bool((tensor == tensor.flatten()[0]).all()):
        kind = {0: "zeros", 1: "ones"}.get(int(tensor.flatten()[0].item()))
        if kind:
            return f"torch.{kind}({size}, dtype={dtype})"
    return f"torch.ones({size}, dtype={dtype})"


def _ones(tensor: torch.Tensor) -> str:
    return f"torch.ones({tuple(tensor.shape)}, dtype={tensor.dtype})"


def plain_source(value: Any) -> str | None:
    """Python source of a value of Python itself or of torch; None for another one."""
    if value is None or value is Ellipsis or type(value) in (bool, int, str, bytes, complex):
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, enum.Enum):
        plain = isinstance(value, str | int) and path_of(type(value)) is None
        return repr(value.value) if plain else None
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, slice):
        return (
            repr(value)
            if all(type(v) in (int, type(None)) for v in (value.start, value.stop, value.step))
            else None
        )
    return None


def known_object(value: Any) -> tuple[str, str] | None:
    """The module to import and an expression, for objects of the standard library."""
    import contextvars
    import logging
    import re
    import weakref

    kinds: dict[type, tuple[str, str]] = {
        type(threading.Lock()): ("threading", "threading.Lock()"),
        type(threading.RLock()): ("threading", "threading.RLock()"),
        threading.local: ("threading", "threading.local()"),
        weakref.WeakKeyDictionary: ("weakref", "weakref.WeakKeyDictionary()"),
    }
    if type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, logging.Logger):
        return "logging", f"logging.getLogger({value.name!r})"
    if isinstance(value, re.Pattern):
        return "re", f"re.compile({value.pattern!r}, {value.flags})"
    if isinstance(value, contextvars.ContextVar):
        return "contextvars", f"contextvars.ContextVar({value.name!r}, default=None)"
    return None


def is_plain_module(name: str) -> bool:
    """Whether a reproducer may import a module."""
    root = name.partition(".")[0]
    return root in _PLAIN_PACKAGES or root in sys.stdlib_module_names


def path_of(value: Any) -> tuple[str, str] | None:
    """The module and the name under which torch or the standard library has an object."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str) or "<" in name:
        return None
    candidates = ["torch", "torch.nn"]
    candidates += [module] if isinstance(module, str) else []
    candidates += ["torch.nn.functional", "torch._C._nn", "torch.linalg", "builtins"]
    for candidate in candidates:
        if not is_plain_module(candidate):
            continue
        value_there: Any = sys.modules.get(candidate)
        for part in name.split("."):
            value_there = getattr(value_there, part, None)
        if value_there is value:
            return candidate, name
    return None


def present(value: Any, names: set[str]) -> set[str]:
    """Those names that may be attributes of an object; a module is asked for what it has."""
    if not isinstance(value, torch.nn.Module):
        return {name for name in names if not name.endswith("()")}
    own = vars(value)  # an uninitialized module has no tables
    tables = (own, *(own.get(table, {}) for table in ("_modules", "_parameters", "_buffers")))
    return names.intersection(_names_of(type(value)).union(*tables))


_NAMES: dict[type, frozenset[str]] = {}


def _names_of(kind: type) -> frozenset[str]:
    """The attributes of a class; `dir` takes long for a class of models."""
    if kind not in _NAMES:
        _NAMES[kind] = frozenset(dir(kind))
    return _NAMES[kind]


def path_of_owner(kind: type, name: str) -> bool:
    """Whether torch itself defines an attribute of a class."""
    owner = next((c for c in kind.__mro__ if name in vars(c)), None)
    return owner is not None and path_of(owner) is not None


_OF_MODE = (nn.Dropout, nn.modules.batchnorm._BatchNorm)
_UNSET = object()


def torch_module_source(
    value: nn.Module, children: Sequence[str], expression: Callable[[Any, str], str]
) -> str:
    """Return the source of a module: its constructor with the attributes of the same names.

    `children` are the sources of the modules that it holds, and `expression` returns that of a
    value under a name.
    """
    module, kind = path_of(type(value)) or ("", "")
    known = getattr(nn, kind, None) is type(value)
    short = f"torch.nn.{kind}" if known else f"{module}.{kind}"
    if isinstance(value, nn.ModuleList):
        source = f"{short}([{', '.join(children)}])"
    elif isinstance(value, nn.Sequential):
        source = f"{short}({', '.join(children)})"
    elif isinstance(value, nn.ModuleDict):
        pairs = zip(value.keys(), children, strict=True)
        source = f"{short}({{{', '.join(f'{k!r}: {v}' for k, v in pairs)}}})"
    else:
        source = f"{short}({', '.join(_arguments(value, expression))})"
    depends_on_mode = any(isinstance(inner, _OF_MODE) for inner in value.modules())
    return f"{source}.eval()" if not value.training and depends_on_mode else source


def _arguments(value: nn.Module, expression: Callable[[Any, str], str]) -> list[str]:
    arguments = []
    kinds = (kind for kind in type(value).__mro__ if "__init__" in vars(kind))
    signatures = (inspect.signature(vars(kind)["__init__"]).parameters for kind in kinds)
    named: Mapping[str, inspect.Parameter] = next(
        (s for s in signatures if "args" not in s), {}
    )  # LSTM passes them on
    for parameter in named.values():
        attribute = getattr(value, parameter.name, _UNSET)
        if attribute is _UNSET or parameter.name in ("self", "device", "dtype", "mode"):
            continue
        if isinstance(attribute, torch.Tensor) or (attribute is None and parameter.name == "bias"):
            attribute = attribute is not None
        if attribute is not parameter.default and attribute != parameter.default:
            arguments.append(f"{parameter.name}={expression(attribute, parameter.name)}")
    return arguments


Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Statement = ast.stmt

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Names of code objects that are part of a statement of another function."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPOUND = (ast.For, ast.While, ast.If, ast.With, ast.Try)


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module | None:
    """The syntax tree of a file; None if it cannot be read."""
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        return None


def function_of(code: CodeType) -> Function | None:
    """The definition from which a code object was compiled, as a tree that may be changed."""
    node = _functions(code.co_filename).get((code.co_firstlineno, code.co_name))
    return _copied(node) if node is not None else None


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> dict[tuple[int, str], Function]:
    """The functions of a file by their first line, that of a decorator, and their name."""
    functions: dict[tuple[int, str], Function] = {}
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Lambda):
            functions.setdefault((node.lineno, "<lambda>"), node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions[first, node.name] = node
    return functions


def _copied(node: Function) -> Function:
    copied = ast.parse(ast.unparse(node)).body[0]
    if isinstance(copied, ast.Expr) and isinstance(copied.value, ast.Lambda):
        return copied.value
    assert isinstance(copied, ast.FunctionDef | ast.AsyncFunctionDef)
    return copied


def statements_at(code: CodeType, line: int) -> list[Statement]:
    """The statements of a function that contain a line of its file, innermost first."""
    tree = tree_of(code.co_filename)
    statements: list[Statement] = []
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.stmt) or isinstance(node, _SCOPES):
            continue
        inside = code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)
        if inside:
            statements.append(node)
    statements.sort(key=lambda node: (node.lineno, -(node.end_lineno or 0)), reverse=True)
    return statements


def arguments_of(statement: Statement) -> list[Statement]:
    """What a statement gives to a function that it calls, each as a statement of its own.

    A graph break there needs nothing of the function, which may be large.
    """
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return):
        return []
    if not isinstance(statement.value, ast.Call) or not isinstance(statement.value.func, ast.Name):
        return []
    call = statement.value
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    plain = (ast.Name, ast.Constant, ast.Attribute, ast.Starred, ast.JoinedStr, ast.Lambda)
    return [ast.Expr(value=argument) for argument in arguments if not isinstance(argument, plain)]


def header_of(statement: Statement) -> Statement | None:
    """A compound statement with nothing in its body; None for another one."""
    if not isinstance(statement, _COMPOUND) or isinstance(statement, ast.Try):
        return None
    copied = ast.parse(ast.unparse(statement)).body[0]
    assert isinstance(copied, ast.For | ast.While | ast.If | ast.With)
    copied.body = [ast.Pass()]
    if not isinstance(copied, ast.With):
        copied.orelse = []
    return copied


def names_read(node: ast.AST) -> list[str]:
    """The names that code reads and that a scope around it must define, in their order.

    A name that the code itself assigns before is also here if it is read: a statement in a loop
    reads what its last run assigned.
    """
    bound = bound_names(node) if isinstance(node, _SCOPES) else _bound_by_scopes(node)
    names: dict[str, None] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Store):
            names.setdefault(inner.id)
        elif isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            names.setdefault(inner.target.id)
    return [name for name in names if name not in bound]


def bound_names(node: ast.AST) -> set[str]:
    """Names that code binds somewhere: arguments, targets, imports, and functions in it."""
    names = {part.id for part in ast.walk(node) if _stores(part)}  # type: ignore[attr-defined]
    names |= {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
    inner = (e for e in ast.walk(node) if isinstance(e, _SCOPES) and e is not node)
    names |= {child.name for child in inner if not isinstance(child, ast.Lambda)}
    names |= {
        (alias.asname or alias.name).partition(".")[0]
        for part in ast.walk(node)
        if isinstance(part, ast.Import | ast.ImportFrom)
        for alias in part.names
    }
    handlers = (e for e in ast.walk(node) if isinstance(e, ast.ExceptHandler))
    return names | {handler.name for handler in handlers if handler.name}


def _stores(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _bound_by_scopes(node: ast.AST) -> set[str]:
    """Names that only exist in a comprehension or a lambda of a statement."""
    targets = (inner.target for inner in ast.walk(node) if isinstance(inner, ast.comprehension))
    names = {e.id for target in targets for e in ast.walk(target) if isinstance(e, ast.Name)}
    lambdas = (inner for inner in ast.walk(node) if isinstance(inner, ast.Lambda))
    return names | {
        inner.arg for f in lambdas for inner in ast.walk(f) if isinstance(inner, ast.arg)
    }


def attributes_read(node: ast.AST) -> set[str]:
    """The names of attributes that code reads, also those that `getattr` gets as a text."""
    attributes = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            if inner.func.id in ("getattr", "hasattr"):
                texts = (a.value for a in inner.args if isinstance(a, ast.Constant))
                attributes |= {text for text in texts if isinstance(text, str)}
        elif isinstance(inner, ast.JoinedStr):
            continue
    return attributes


def names_called(node: ast.AST) -> set[str]:
    """The last names of what code calls: `layer` for `self.layer(x)` and for `layer(x)`."""
    called = (inner.func for inner in ast.walk(node) if isinstance(inner, ast.Call))
    names = set()
    for inner in called:
        if isinstance(inner, ast.Attribute):
            names.add(inner.attr)
        elif isinstance(inner, ast.Name):
            names.add(inner.id)
    return names


class Plain(ast.NodeTransformer):
    """Removes annotations, docstrings and, if wanted, decorators, and renames global names."""

    def __init__(self, renamed: dict[str, str], *, decorators: bool = False) -> None:
        self._renamed = renamed
        self._decorators = decorators

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        if not self._decorators:
            node.decorator_list = []
        self._without_docstring(node)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.Assign(targets=[node.target], value=node.value, lineno=0)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._renamed.get(node.id, node.id)
        return node

    def _without_docstring(self, node: ast.FunctionDef) -> None:
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:] or [ast.Pass()]


def scope_of(function: FunctionType) -> dict[str, Any]:
    """The values of the names that a function reads from outside: globals and its closure."""
    closure = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return {**function.__globals__, **closure}


def without_annotations(node: ast.AST) -> None:
    """Remove annotations before names are looked up: a type is not needed."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.arg):
            inner.annotation = None
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            inner.returns = None
        elif isinstance(inner, ast.AnnAssign):
            inner.annotation = ast.Constant(None)


MOST_ITEMS = 64
MOST_DEFINITIONS = 40
"""What needs more is written as None: no small file could be made from it."""
_IMPLICIT = (
    *("__getitem__", "__len__", "__iter__", "__contains__", "__call__", "__enter__", "__exit__"),
)
"""Methods that code calls without their names."""

_MISSING = object()
_ELEMENT = "element_of_"
"""How the names of modules begin that are in another one: code calls them by names of its own."""
_OF_EACH_MODULE = frozenset(vars(nn.Module())) - {"training"}
_ABSTRACT = ("Generic", "ABC", "Protocol")


class Writer:
    """Collects definitions. `expression` returns the source of a value that may need some.

    `attributes` are the names of attributes that the written code reads; it grows while code is
    written, so that what is written first may lack some: `write_until_complete` repeats.
    `reached` are the code objects that ran when the graph break occurred; properties among them are
    written as code, and others as their values.
    """

    def __init__(
        self, attributes: set[str], reached: frozenset[Any], *, exact: bool, decorators: bool
    ) -> None:
        self.attributes = attributes
        self._reached = reached
        self._exact = exact
        self._decorators = decorators
        self._imports: dict[str, None] = {"import torch": None}
        self._definitions: list[str] = []
        self._objects: list[str] = []
        self._settings: list[str] = []
        self._names: dict[int, str] = {}
        self._taken: set[str] = {"f", "torch"}
        self._functions = 0
        self._kept: list[Any] = []  # an id is only unique while its object lives

    def text(self, rest: Iterable[str]) -> str:
        """The complete file, with `rest` behind the definitions."""
        lines = [*self._imports, *self._definitions, *self._objects, *self._settings, *rest]
        return "\n".join(lines) + "\n"

    def expression(self, value: Any, hint: str) -> str:
        """Python source of a value; `hint` becomes its name, if it needs one."""
        if id(value) in self._names:
            return self._names[id(value)]
        plain = plain_source(value)
        if plain is not None:
            return plain
        if isinstance(value, torch.Tensor):
            return tensor_source(value.detach(), exact=self._exact)
        if isinstance(value, types.ModuleType):
            return self._module(value, hint)
        of_library = known_object(value)
        if of_library is not None:
            self._import(of_library[0])
            return self._named(value, hint, of_library[1])
        collection = self._collection(value, hint)
        if collection is not None:
            return collection
        return self._defined(value, hint)

    def _defined(self, value: Any, hint: str) -> str:
        path = path_of(value) if isinstance(value, type) or callable(value) else None
        if path is not None:
            module, name = path
            if module == "builtins":
                return name
            self._import(module)
            return f"{module}.{name}"
        if len(self._names) + self._functions > MOST_DEFINITIONS:
            return "None"
        if isinstance(value, types.MethodType):
            owner = self.expression(value.__self__, hint + "_self")
            self.attributes.add(value.__name__)
            return f"{owner}.{value.__name__}"
        if isinstance(value, functools.partial):
            self._import("functools")
            parts_given = [value.func, *value.args]
            parts = [self.expression(part_given, hint) for part_given in parts_given]
            parts += [f"{k}={self.expression(v, k)}" for k, v in value.keywords.items()]
            return f"functools.partial({', '.join(parts)})"
        if isinstance(value, types.FunctionType):
            return self._function(value, hint)
        if hasattr(value, "__wrapped__") and callable(value):  # functools.lru_cache
            return self.expression(value.__wrapped__, hint)
        if isinstance(value, type):
            instantiated = not self.attributes.isdisjoint({f"{hint}()", f"{value.__name__}()"})
            return self._class(value, instantiated=instantiated, called=instantiated)
        if isinstance(value, inspect.Signature):
            return self._signature(value)
        return self._object(value, hint)

    def _signature(self, value: inspect.Signature) -> str:
        self._import("inspect")
        parameters = (
            f"inspect.Parameter({p.name!r}, inspect.Parameter.{p.kind.name}"
            + ("" if p.default is p.empty else f", default={self.expression(p.default, p.name)}")
            + ")"
            for p in value.parameters.values()
        )
        return f"inspect.Signature([{', '.join(parameters)}])"

    def _import(self, module: str) -> None:
        if module.partition(".")[0] != "torch":  # `import torch` imports what is in use
            self._imports.setdefault(f"import {module}")

    def _module(self, value: types.ModuleType, hint: str) -> str:
        if is_plain_module(value.__name__):
            self._import(value.__name__)
            return value.__name__
        return self._namespace(value, hint)

    def _named(self, value: Any, hint: str, source: str) -> str:
        name = self._new_name(value, hint)
        self._definitions.append(f"{name} = {source}")
        for attribute in sorted(self.attributes):
            own = getattr(type(value), attribute, None)
            function = inspect.unwrap(own) if callable(own) else None
            if isinstance(function, types.FunctionType) and path_of(own) is None:
                kind = f"{type(value).__module__}.{type(value).__name__}"
                written = self._function(function, attribute)
                self._definitions.append(f"{kind}.{attribute} = {written}")
        return name

    def _new_name(self, value: Any, hint: str) -> str:
        base = hint if hint.isidentifier() and hint not in ("self", "cls") else f"{hint}_"
        base = base if base.isidentifier() else "value"
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        self._names[id(value)] = name
        self._kept.append(value)
        return name

    def _collection(self, value: Any, hint: str) -> str | None:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._namespace(value, hint)
        if type(value) in (list, tuple, set, frozenset, torch.Size, deque):
            items = [self.expression(each, hint) for each in list(value)[:MOST_ITEMS]]
            if type(value) is tuple or type(value) is torch.Size:
                return f"({', '.join(items)}{',' * (len(items) == 1)})"
            if type(value) is list:
                return f"[{', '.join(items)}]"
            return f"{type(value).__name__}([{', '.join(items)}])" if items else "set()"
        if type(value) in (dict, OrderedDict, defaultdict):
            pairs = list(value.items())[:MOST_ITEMS]
            written = (f"{self.expression(k, hint)}: {self.expression(v, hint)}" for k, v in pairs)
            return "{" + ", ".join(written) + "}"
        if type(value) in (type({}.keys()), type({}.values()), type({}.items()), zip, map):
            return None
        return None

    def _function(self, function: types.FunctionType, hint: str) -> str:
        if not self._decorators:
            unwrapped = inspect.unwrap(function)
            if isinstance(unwrapped, types.FunctionType) and unwrapped is not function:
                return self.expression(unwrapped, hint)
        node = function_of(function.__code__)
        if node is None:
            return "None"
        own = hint if function.__name__ == "<lambda>" else function.__name__
        name = self._new_name(function, own)
        self._definitions.append(self.code(node, name, scope_of(function)))
        return name

    def reads(self, node: ast.AST) -> None:
        """Take note of the attributes and calls of code that will be written."""
        self.attributes |= attributes_read(node)
        # A module is only called where its name is: this keeps most of a model out.
        self.attributes |= {f"{name}()" for name in names_called(node)}

    def code(self, node: ast.AST, name: str, scope: dict[str, Any]) -> str:
        """The source of a function under a new name, after what it reads has been defined."""
        self._functions += 1
        self.reads(node)
        if isinstance(node, ast.FunctionDef) and not self._decorators:
            node.decorator_list = []
        without_annotations(node)
        renamed = self.defined_names(names_read(node), scope)
        plain = ast.fix_missing_locations(Plain(renamed, decorators=self._decorators).visit(node))
        if isinstance(plain, ast.Lambda):
            return f"{name} = {ast.unparse(plain)}"
        plain.name = name
        return ast.unparse(plain)

    def defined_names(self, names: Iterable[str], scope: dict[str, Any]) -> dict[str, str]:
        """Define the values of names; return the other names under which some were defined."""
        renamed: dict[str, str] = {}
        for name in names:
            value = scope.get(name, _MISSING)
            if value is _MISSING:
                continue
            written = self.expression(value, name)
            if written == name:
                continue
            simple = written.replace(".", "").replace("_", "").isalnum() and written[0].isalpha()
            if not simple:  # a constant gets a name, so that the code reads as it did
                new = name
                while new in self._taken:
                    new += "_"
                self._taken.add(new)
                self._definitions.append(f"{new} = {written}")
                written = new
            if written != name:
                renamed[name] = written
        return renamed

    def _class(self, kind: type, *, instantiated: bool, called: bool = False) -> str:
        """A stand-in of a class with what the code reads.

        `instantiated` means that code calls the class, `called` that it calls an object of it.
        """
        bases = [base_class for base_class in kind.__mro__[1:] if path_of(base_class) is not None]
        base = next((base_class for base_class in bases if base_class is not object), None)
        if base is not None and (base.__name__ in _ABSTRACT or inspect.isabstract(base)):
            base = nn.Module if issubclass(kind, nn.Module) else None
        name = self._new_name(kind, kind.__name__)
        inherited = ""
        if base is not None:
            inherited = f"({self.expression(base, base.__name__)})"
        body: list[str] = []
        implicit = () if dataclasses.is_dataclass(kind) else _IMPLICIT
        names_read = [*sorted(self.attributes), *implicit]
        if called:
            names_read.append("forward")
        if instantiated:
            names_read.append("__init__")
        for attribute in dict.fromkeys(names_read):
            owner = next((c for c in kind.__mro__ if attribute in vars(c)), None)
            if owner is None or path_of(owner) is not None:
                continue
            body += self._member(attribute, vars(owner)[attribute])
        lines = [f"class {name}{inherited}:"]
        if dataclasses.is_dataclass(kind):
            self._import("dataclasses")
            lines = ["@dataclasses.dataclass", *lines]
            all_read = "fields" in self.attributes
            named = (field.name for field in dataclasses.fields(kind))
            read = [base_class for base_class in named if all_read or base_class in self.attributes]
            fields = [f"{used_name}: object = None" for used_name in read]
            body = [
                *fields,
                *(statement for statement in body if not statement.startswith("def __init__")),
            ]
        lines += [
            "    " + line for statement in body or ["pass"] for line in statement.splitlines()
        ]
        self._definitions.append("\n".join(lines))
        return name

    def _member(self, name: str, member: Any) -> list[str]:
        decorator = ""
        is_property = isinstance(member, property | functools.cached_property)
        if is_property and not self._is_reached(member):
            return []  # its value is an attribute of the object
        if isinstance(member, staticmethod | classmethod):
            decorator, member = f"@{type(member).__name__}\n", member.__func__
        elif isinstance(member, property):
            decorator, member = "@property\n", member.fget
        elif isinstance(member, functools.cached_property):
            self._import("functools")
            decorator, member = "@functools.cached_property\n", member.func
        if isinstance(member, types.FunctionType):
            if self._functions > MOST_DEFINITIONS:
                return []
            original = member if self._decorators else inspect.unwrap(member)
            node = function_of(original.__code__)
            if not isinstance(node, ast.FunctionDef):
                return []
            return [decorator + self.code(node, name, scope_of(original))]
        if decorator or callable(member) or name.startswith("__"):
            return []
        return [f"{name} = {self.expression(member, name)}"]

    def _object(self, value: Any, hint: str) -> str:
        if isinstance(value, nn.Module) and path_of(type(value)) is not None:
            return self._torch_module(value, hint)
        if path_of(type(value)) is not None or not hasattr(value, "__dict__"):
            return "None"
        kind = type(value)
        if not isinstance(value, nn.Module) and not self._has_methods(kind):
            return self._namespace(value, hint)
        called = f"{hint}()" in self.attributes or hint.startswith(_ELEMENT)
        class_name = self._names.get(id(kind)) or self._class(
            kind, instantiated=False, called=called
        )
        name = self._new_name(value, hint)
        if isinstance(value, nn.Module):
            self._objects.append(f"{name} = {class_name}.__new__({class_name})")
            self._objects.append(f"torch.nn.Module.__init__({name})")
        else:
            self._objects.append(f"{name} = {class_name}.__new__({class_name})")
        self._settings += [f"{name}.{k} = {v}" for k, v in self._read_attributes(value)]
        return name

    def _has_methods(self, kind: type) -> bool:
        if dataclasses.is_dataclass(kind):
            return True
        own = [c for c in kind.__mro__ if path_of(c) is None]
        names = self.attributes | set(_IMPLICIT)
        members = ((name, vars(c)[name]) for c in own for name in names if name in vars(c))
        return any(
            isinstance(member, types.FunctionType | classmethod | staticmethod)
            or self._is_reached(member)
            for _, member in members
        )

    def _namespace(self, value: Any, hint: str) -> str:
        self._imports.setdefault("from types import SimpleNamespace")
        name = self._new_name(value, hint)
        self._objects.append(f"{name} = SimpleNamespace()")
        self._settings += [f"{name}.{k} = {v}" for k, v in self._read_attributes(value)]
        return name

    def _read_attributes(self, value: Any) -> list[tuple[str, str]]:
        """The attributes of an object that code reads, and their sources; methods are left out."""
        pairs = []
        for name in sorted(present(value, self.attributes)):
            static = inspect.getattr_static(type(value), name, None)
            method = isinstance(static, types.FunctionType | classmethod | staticmethod)
            if (
                name.startswith("__")
                or name in _OF_EACH_MODULE
                or method
                or self._is_reached(static)
            ):
                continue
            if name not in vars(value) and path_of(static) is not None:
                continue
            try:
                attribute = getattr(value, name)
            except Exception:  # noqa: BLE001  (properties of the library)
                continue
            if isinstance(attribute, types.MethodType | types.BuiltinMethodType):
                continue
            if (
                isinstance(static, property)
                and isinstance(value, nn.Module)
                and path_of_owner(type(value), name)
            ):
                continue
            pairs.append((name, self.expression(attribute, name)))
        return pairs

    def _is_reached(self, member: Any) -> bool:
        function = getattr(member, "fget", None) or getattr(member, "func", None)
        return getattr(function, "__code__", None) in self._reached

    def _torch_module(self, value: nn.Module, hint: str) -> str:
        """A module of torch, made by its constructor from the attributes of the same names."""
        children = [self.expression(child, f"{_ELEMENT}{hint}") for child in value.children()]
        source = torch_module_source(value, children, self.expression)
        name = self._new_name(value, hint)
        self._objects.append(f"{name} = {source}")
        return name
