"""Writes one file of plain PyTorch that defines what a piece of a library's code needs.

Functions of the library are written as they are, without annotations and docstrings. Objects become
stand-ins with only the attributes and methods that the written code reads by name. What cannot be
written becomes None: a candidate that needs it fails its check.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import dataclasses
import enum
import functools
import inspect
import linecache
import logging
import math
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

LITERAL_ELEMENTS = 16
"""Integer tensors of up to this size are always written out."""

MOST_ELEMENTS = 1024
MOST_ITEMS = 64
MOST_DEFINITIONS = 40
"""What needs more is written as None: no small file could be made from it."""

COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Names of code objects that are part of a statement of another function."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_IMPLICIT = (
    *("__getitem__", "__len__", "__iter__", "__contains__", "__call__", "__enter__", "__exit__"),
)
"""Methods that code calls without their names."""

_MISSING = object()
_ELEMENT = "element_of_"
"""How the names of modules begin that are in another one: code calls them by names of its own."""
_OF_EACH_MODULE = frozenset(vars(nn.Module())) - {"training"}
_ABSTRACT = ("Generic", "ABC", "Protocol")
_OF_MODE = (nn.Dropout, nn.modules.batchnorm._BatchNorm)

_OBJECTS: dict[type, str] = {
    type(threading.Lock()): "threading.Lock()",
    type(threading.RLock()): "threading.RLock()",
    threading.local: "threading.local()",
    weakref.WeakKeyDictionary: "weakref.WeakKeyDictionary()",
}


# --- code -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def tree_of(file: str) -> ast.Module:
    """The syntax tree of a file; empty if it cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def function_of(code: types.CodeType) -> Any:
    """The definition from which a code object was compiled, as a tree that may be changed."""
    node = _functions(code.co_filename).get((code.co_firstlineno, code.co_name))
    copied: Any = node and ast.parse(ast.unparse(node)).body[0]
    return copied.value if isinstance(copied, ast.Expr) else copied  # of a lambda


@functools.lru_cache(maxsize=256)
def _functions(file: str) -> dict[tuple[int, str], ast.AST]:
    """The functions of a file by their first line, that of a decorator, and their name."""
    functions: dict[tuple[int, str], ast.AST] = {}
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Lambda):
            functions.setdefault((node.lineno, "<lambda>"), node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions[first, node.name] = node
    return functions


def statements_at(code: types.CodeType, line: int) -> list[ast.stmt]:
    """The statements of a function that contain a line of its file, innermost first."""
    statements = [
        node
        for node in ast.walk(tree_of(code.co_filename))
        if isinstance(node, ast.stmt)
        and not isinstance(node, _SCOPES)
        and code.co_firstlineno <= node.lineno <= line <= (node.end_lineno or 0)
    ]
    return sorted(statements, key=lambda e: (e.lineno, -(e.end_lineno or 0)), reverse=True)


def arguments_of(statement: ast.stmt) -> list[ast.stmt]:
    """What a statement gives to a function that it calls, each as a statement of its own.

    A graph break there needs nothing of the function, which may be large.
    """
    call = getattr(statement, "value", None)
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return):
        return []
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return []
    plain = ast.Name | ast.Constant | ast.Attribute | ast.Starred | ast.JoinedStr | ast.Lambda
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [ast.Expr(value=given) for given in arguments if not isinstance(given, plain)]


def header_of(statement: ast.stmt) -> ast.stmt | None:
    """A compound statement with nothing in its body; None for another one."""
    if not isinstance(statement, ast.For | ast.While | ast.If | ast.With):
        return None
    copied: Any = ast.parse(ast.unparse(statement)).body[0]
    copied.body, copied.orelse = [ast.Pass()], []
    return copied  # type: ignore[no-any-return]


def names_read(node: ast.AST) -> list[str]:
    """The names that code reads and that a scope around it must define, in their order.

    A name that the code itself assigns before is also here if it is read: a statement in a loop
    reads what its last run assigned.
    """
    bound = bound_names(node) if isinstance(node, _SCOPES) else set()
    names: dict[str, None] = {}
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Load() | ast.Del()):
                names.setdefault(name)
            case ast.AugAssign(target=ast.Name(id=name)):
                names.setdefault(name)
            case ast.comprehension(target=target):
                bound |= {e.id for e in ast.walk(target) if isinstance(e, ast.Name)}
            case ast.Lambda():
                bound |= {e.arg for e in ast.walk(inner) if isinstance(e, ast.arg)}
    return [name for name in names if name not in bound]


def bound_names(node: ast.AST) -> set[str]:
    """Names that code binds somewhere: arguments, targets, imports, and functions in it."""
    names: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                names.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ) if inner is not node:
                names.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
            case ast.ExceptHandler(name=str(name)):
                names.add(name)
    return names


def attributes_read(node: ast.AST) -> set[str]:
    """The attributes that code reads, also by `getattr`, and what it calls: `layer()`.

    A module is only called where its name is: this keeps most of a model out.
    """
    attributes: set[str] = set()
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(attr=name):
                attributes.add(name)
            case ast.Call(func=ast.Attribute(attr=name)):
                attributes.add(f"{name}()")
            case ast.Call(func=ast.Name(id=name), args=args):
                attributes.add(f"{name}()")
                if name in ("getattr", "hasattr"):
                    texts = (arg.value for arg in args if isinstance(arg, ast.Constant))
                    attributes |= {text for text in texts if isinstance(text, str)}
    return attributes


def renamed(node: ast.AST, names: dict[str, str]) -> None:
    """Put other names in the place of names."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            inner.id = names.get(inner.id, inner.id)


class Plain(ast.NodeTransformer):
    """Removes annotations, docstrings and, if wanted, decorators."""

    def __init__(self, *, decorators: bool = False) -> None:
        self._decorators = decorators

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        node.returns = None
        if not self._decorators:
            node.decorator_list = []
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  (ast's name)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return None
        return ast.Assign(targets=[node.target], value=node.value, lineno=0)


def scope_of(function: types.FunctionType) -> dict[str, Any]:
    """The values of the names that a function reads from outside: globals and its closure."""
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # not assigned yet
            scope[name] = cell.cell_contents
    return scope


# --- values ---------------------------------------------------------------------------------------


def tensor_source(tensor: torch.Tensor, *, exact: bool) -> str:
    """Python source of a tensor: exact for small integers, noise for floating-point numbers."""
    shape, dtype, count = tuple(tensor.shape), tensor.dtype, tensor.numel()
    named = "" if dtype in (torch.float32, torch.int64) else f", dtype={dtype}"
    size = repr(shape) if len(shape) != 1 else str(shape[0])
    if tensor.is_floating_point() or tensor.is_complex():
        if count > 1 and bool((tensor == 0).all()):
            return f"torch.zeros({size}{named})"
        small = named and dtype.itemsize == 1
        return f"torch.ones({shape}, dtype={dtype})" if small else f"torch.randn({size}{named})"
    if count <= LITERAL_ELEMENTS or (exact and count <= MOST_ELEMENTS):
        return f"torch.tensor({tensor.tolist()}{named.removesuffix(', dtype=torch.bool')})"
    first = tensor.flatten()[0]
    zeros = bool((tensor == first).all()) and int(first.item()) == 0
    return f"torch.{'zeros' if zeros else 'ones'}({size}, dtype={dtype})"


def plain_source(value: Any) -> str | None:
    """Python source of a value of Python itself or of torch; None for another one."""
    if type(value) is float and not math.isfinite(value):
        return f"float({str(value)!r})"
    if value is None or value is Ellipsis or type(value) in (bool, int, float, str, bytes, complex):
        return repr(value)
    if isinstance(value, enum.Enum):
        plain = isinstance(value, str | int) and path_of(type(value)) is None
        return repr(value.value) if plain else None
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    if isinstance(value, slice):
        bounds = (value.start, value.stop, value.step)
        return repr(value) if all(type(b) in (int, type(None)) for b in bounds) else None
    return repr(value) if isinstance(value, range) else None


def known_object(value: Any) -> str | None:
    """An expression of an object of the standard library; it begins with its module."""
    if isinstance(value, logging.Logger):
        return f"logging.getLogger({value.name!r})"
    if isinstance(value, re.Pattern):
        return f"re.compile({value.pattern!r}, {value.flags})"
    if isinstance(value, contextvars.ContextVar):
        return f"contextvars.ContextVar({value.name!r}, default=None)"
    return _OBJECTS.get(type(value))


def is_plain_module(name: str) -> bool:
    """Whether a reproducer may import a module."""
    root = name.partition(".")[0]
    return root in ("torch", "numpy") or root in sys.stdlib_module_names


def path_of(value: Any) -> tuple[str, str] | None:
    """The module and the name under which torch or the standard library has an object."""
    own = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str) or "<" in name:
        return None
    usual = ("torch.nn.functional", "torch._C._nn", "torch.linalg", "builtins")
    for module in ("torch", "torch.nn", own, *usual):
        if not isinstance(module, str) or not is_plain_module(module):
            continue
        candidate: Any = sys.modules.get(module)
        for part in name.split("."):
            candidate = getattr(candidate, part, None)
        if candidate is value:
            return module, name
    return None


def owner_of(kind: type, name: str) -> type | None:
    """The class that defines an attribute of a class."""
    return next((owner for owner in kind.__mro__ if name in vars(owner)), None)


_NAMES: dict[type, frozenset[str]] = {}


def present(value: Any, names: set[str]) -> set[str]:
    """Those names that may be attributes of an object; a module is asked for what it has."""
    if not isinstance(value, nn.Module):
        return {name for name in names if not name.endswith("()")}
    if type(value) not in _NAMES:  # `dir` takes long for a class of models
        _NAMES[type(value)] = frozenset(dir(type(value)))
    own = vars(value)  # an uninitialized module has no tables
    tables = (own, *(own.get(table, {}) for table in ("_modules", "_parameters", "_buffers")))
    return names.intersection(_NAMES[type(value)].union(*tables))


class Writer:
    """Collects definitions. `expression` returns the source of a value that may need some.

    `attributes` are the names of attributes that the written code reads; it grows while code is
    written, so that what is written first may lack some: who calls it writes again until it stays.
    `reached` are the code objects that ran when the graph break occurred; properties among them are
    written as code, and others as their values.
    """

    def __init__(
        self, attributes: set[str], reached: frozenset[Any], *, exact: bool, decorators: bool
    ) -> None:
        self.attributes = attributes
        self._reached, self._exact, self._decorators = reached, exact, decorators
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
        if (plain := plain_source(value)) is not None:
            return plain
        if isinstance(value, torch.Tensor):
            return tensor_source(value.detach(), exact=self._exact)
        if isinstance(value, types.ModuleType):
            if is_plain_module(value.__name__):
                return self._imported(value.__name__, value.__name__)
            return self._namespace(value, hint)
        if (source := known_object(value)) is not None:
            return self._known(value, hint, source)
        if (collection := self._collection(value, hint)) is not None:
            return collection
        path = path_of(value) if isinstance(value, type) or callable(value) else None
        if path is not None:
            module, name = path
            return name if module == "builtins" else self._imported(module, f"{module}.{name}")
        if len(self._names) + self._functions > MOST_DEFINITIONS:
            return "None"
        return self._defined(value, hint)

    def _defined(self, value: Any, hint: str) -> str:
        if isinstance(value, types.MethodType):
            owner = self.expression(value.__self__, hint + "_self")
            self.attributes.add(value.__name__)
            return f"{owner}.{value.__name__}"
        if isinstance(value, functools.partial):
            self._imported("functools")
            parts = [self.expression(part, hint) for part in (value.func, *value.args)]
            parts += [f"{k}={self.expression(v, k)}" for k, v in value.keywords.items()]
            return f"functools.partial({', '.join(parts)})"
        if isinstance(value, types.FunctionType):
            return self._function(value, hint)
        if hasattr(value, "__wrapped__") and callable(value):  # functools.lru_cache
            return self.expression(value.__wrapped__, hint)
        if isinstance(value, type):
            called = not self.attributes.isdisjoint({f"{hint}()", f"{value.__name__}()"})
            return self._class(value, instantiated=called, called=called)
        if isinstance(value, inspect.Signature):
            self._imported("inspect")
            parameters = ", ".join(map(self._parameter, value.parameters.values()))
            return f"inspect.Signature([{parameters}])"
        return self._object(value, hint)

    def _parameter(self, one: inspect.Parameter) -> str:
        default = ""
        if one.default is not one.empty:
            default = f", default={self.expression(one.default, one.name)}"
        return f"inspect.Parameter({one.name!r}, inspect.Parameter.{one.kind.name}{default})"

    def _imported(self, module: str, source: str = "") -> str:
        if module.partition(".")[0] != "torch":  # `import torch` imports what is in use
            self._imports.setdefault(f"import {module}")
        return source

    def _known(self, value: Any, hint: str, source: str) -> str:
        """An object of the standard library under a name, with methods that a library added."""
        self._imported(source.partition(".")[0])
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
        kind = type(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._namespace(value, hint)
        if kind in (dict, OrderedDict, defaultdict):
            pairs = list(value.items())[:MOST_ITEMS]
            written = (f"{self.expression(k, hint)}: {self.expression(v, hint)}" for k, v in pairs)
            return "{" + ", ".join(written) + "}"
        if kind not in (list, tuple, set, frozenset, torch.Size, deque):
            return None
        items = [self.expression(item, hint) for item in list(value)[:MOST_ITEMS]]
        inner = ", ".join(items)
        if isinstance(value, tuple):
            return f"({inner}{',' * (len(items) == 1)})"
        if kind is list:
            return f"[{inner}]"
        return f"{kind.__name__}([{inner}])" if items else "set()"

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

    def code(self, node: ast.AST, name: str, scope: dict[str, Any]) -> str:
        """The source of a function under a new name, after what it reads has been defined."""
        self._functions += 1
        self.attributes |= attributes_read(node)
        plain = ast.fix_missing_locations(Plain(decorators=self._decorators).visit(node))
        renamed(plain, self.defined_names(names_read(plain), scope))
        if isinstance(plain, ast.Lambda):
            return f"{name} = {ast.unparse(plain)}"
        plain.name = name
        return ast.unparse(plain)

    def defined_names(self, names: Iterable[str], scope: dict[str, Any]) -> dict[str, str]:
        """Define the values of names; return the other names under which some were defined."""
        others: dict[str, str] = {}
        for name in names:
            if (value := scope.get(name, _MISSING)) is _MISSING:
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
                others[name] = written
        return others

    def _class(self, kind: type, *, instantiated: bool, called: bool) -> str:
        """A stand-in of a class with what the code reads.

        `instantiated` means that code calls the class, `called` that it calls an object of it.
        """
        base = next((c for c in kind.__mro__[1:-1] if path_of(c) is not None), None)
        if base is not None and (base.__name__ in _ABSTRACT or inspect.isabstract(base)):
            base = nn.Module if issubclass(kind, nn.Module) else None
        name = self._new_name(kind, kind.__name__)
        inherited = f"({self.expression(base, base.__name__)})" if base is not None else ""
        is_data = dataclasses.is_dataclass(kind)
        names = [*sorted(self.attributes), *(() if is_data else _IMPLICIT)]
        names += ["forward"] * called + ["__init__"] * instantiated
        body: list[str] = []
        for attribute in dict.fromkeys(names):
            owner = owner_of(kind, attribute)
            if owner is not None and path_of(owner) is None:
                body += self._member(attribute, vars(owner)[attribute])
        head = f"class {name}{inherited}:"
        if is_data:
            self._imported("dataclasses")
            head = f"@dataclasses.dataclass\n{head}"
            fields = [field.name for field in dataclasses.fields(kind)]
            read = [f for f in fields if "fields" in self.attributes or f in self.attributes]
            body = [statement for statement in body if not statement.startswith("def __init__")]
            body = [*(f"{field}: object = None" for field in read), *body]
        lines = (line for statement in body or ["pass"] for line in statement.splitlines())
        self._definitions.append("\n".join([head, *(f"    {line}" for line in lines)]))
        return name

    def _member(self, name: str, member: Any) -> list[str]:
        """The statements of a class that define an attribute of it."""
        if isinstance(member, property | functools.cached_property) and not self._is_reached(
            member
        ):
            return []  # its value is an attribute of the object
        decorator = ""
        if isinstance(member, staticmethod | classmethod):
            decorator, member = f"@{type(member).__name__}\n", member.__func__
        elif isinstance(member, property):
            decorator, member = "@property\n", member.fget
        elif isinstance(member, functools.cached_property):
            decorator, member = "@functools.cached_property\n", member.func
            self._imported("functools")
        if isinstance(member, types.FunctionType):
            original = member if self._decorators else inspect.unwrap(member)
            node = function_of(original.__code__)
            if self._functions > MOST_DEFINITIONS or not isinstance(node, ast.FunctionDef):
                return []
            return [decorator + self.code(node, name, scope_of(original))]
        if decorator or callable(member) or name.startswith("__"):
            return []
        return [f"{name} = {self.expression(member, name)}"]

    def _object(self, value: Any, hint: str) -> str:
        kind, is_module = type(value), isinstance(value, nn.Module)
        if path_of(kind) is not None or not hasattr(value, "__dict__"):
            return self._torch_module(value, hint) if is_module else "None"
        if not is_module and not self._has_methods(kind):
            return self._namespace(value, hint)
        called = f"{hint}()" in self.attributes or hint.startswith(_ELEMENT)
        known = self._names.get(id(kind))
        class_name = known or self._class(kind, instantiated=False, called=called)
        name = self._new_name(value, hint)
        self._objects.append(f"{name} = {class_name}.__new__({class_name})")
        if is_module:
            self._objects.append(f"torch.nn.Module.__init__({name})")
        self._set_attributes(name, value)
        return name

    def _has_methods(self, kind: type) -> bool:
        if dataclasses.is_dataclass(kind):
            return True
        return any(
            isinstance(vars(owner)[name], types.FunctionType | classmethod | staticmethod)
            or self._is_reached(vars(owner)[name])
            for owner in kind.__mro__
            if path_of(owner) is None
            for name in self.attributes.union(_IMPLICIT)
            if name in vars(owner)
        )

    def _namespace(self, value: Any, hint: str) -> str:
        self._imports.setdefault("from types import SimpleNamespace")
        name = self._new_name(value, hint)
        self._objects.append(f"{name} = SimpleNamespace()")
        self._set_attributes(name, value)
        return name

    def _set_attributes(self, written: str, value: Any) -> None:
        """Set the attributes of an object that code reads; methods are left out."""
        settings = []
        for name in sorted(present(value, self.attributes)):
            static = inspect.getattr_static(type(value), name, None)
            if (
                name.startswith("__")
                or name in _OF_EACH_MODULE
                or isinstance(static, types.FunctionType | classmethod | staticmethod)
                or self._is_reached(static)
                or (name not in vars(value) and path_of(static) is not None)
            ):
                continue
            try:
                attribute = getattr(value, name)
            except Exception:  # noqa: BLE001  (properties of the library)
                continue
            if isinstance(attribute, types.MethodType | types.BuiltinMethodType):
                continue
            if isinstance(static, property) and isinstance(value, nn.Module):
                owner = owner_of(type(value), name)
                if owner is not None and path_of(owner) is not None:
                    continue
            settings.append(f"{written}.{name} = {self.expression(attribute, name)}")
        self._settings += settings

    def _is_reached(self, member: Any) -> bool:
        function = getattr(member, "fget", None) or getattr(member, "func", None)
        return getattr(function, "__code__", None) in self._reached

    def _torch_module(self, value: nn.Module, hint: str) -> str:
        """A module of torch, made by its constructor from the attributes of the same names."""
        children = [self.expression(child, f"{_ELEMENT}{hint}") for child in value.children()]
        module, kind = path_of(type(value)) or ("", "")
        inner = ", ".join(children)
        if isinstance(value, nn.ModuleList):
            inner = f"[{inner}]"
        elif isinstance(value, nn.ModuleDict):
            pairs = zip(value.keys(), children, strict=True)
            inner = f"{{{', '.join(f'{k!r}: {v}' for k, v in pairs)}}}"
        elif not isinstance(value, nn.Sequential):
            inner = ", ".join(self._constructor_arguments(value))
        module = "torch.nn" if getattr(nn, kind, None) is type(value) else module
        in_mode = any(isinstance(part, _OF_MODE) for part in value.modules())
        mode = ".eval()" if in_mode and not value.training else ""
        name = self._new_name(value, hint)
        self._objects.append(f"{name} = {module}.{kind}({inner}){mode}")
        return name

    def _constructor_arguments(self, value: nn.Module) -> list[str]:
        kinds = (kind for kind in type(value).__mro__ if "__init__" in vars(kind))
        signatures = (inspect.signature(vars(kind)["__init__"]).parameters for kind in kinds)
        usual = (s for s in signatures if "args" not in s)  # LSTM passes them on
        arguments = []
        for name, parameter in (next(usual, None) or {}).items():
            attribute = getattr(value, name, _MISSING)
            if attribute is _MISSING or name in ("self", "device", "dtype", "mode"):
                continue
            if isinstance(attribute, torch.Tensor) or (attribute is None and name == "bias"):
                attribute = attribute is not None
            if attribute is not parameter.default and attribute != parameter.default:
                arguments.append(f"{name}={self.expression(attribute, name)}")
        return arguments
