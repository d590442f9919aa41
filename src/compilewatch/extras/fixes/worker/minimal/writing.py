"""Writes one file of plain PyTorch that defines what a piece of a library's code needs.

Functions of the library are written as they are, without annotations and docstrings. Objects become
stand-ins with only the attributes and methods that the written code reads by name. What cannot be
written becomes None: a candidate that needs it fails its check.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from compilewatch.extras.fixes.worker.minimal.code import (
    Plain,
    attributes_read,
    function_of,
    names_called,
    names_read,
    scope_of,
    without_annotations,
)
from compilewatch.extras.fixes.worker.minimal.torch_modules import torch_module_source
from compilewatch.extras.fixes.worker.minimal.values import (
    is_plain_module,
    known_object,
    path_of,
    path_of_owner,
    plain_source,
    present,
    tensor_source,
)

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
        known = known_object(value)
        if known is not None:
            self._import(known[0])
            return self._named(value, hint, known[1])
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
            given = [value.func, *value.args]
            parts = [self.expression(each, hint) for each in given]
            parts += [f"{k}={self.expression(v, k)}" for k, v in value.keywords.items()]
            return f"functools.partial({', '.join(parts)})"
        if isinstance(value, types.FunctionType):
            return self._function(value, hint)
        if hasattr(value, "__wrapped__") and callable(value):  # functools.lru_cache
            return self.expression(value.__wrapped__, hint)
        if isinstance(value, type):
            made = not self.attributes.isdisjoint({f"{hint}()", f"{value.__name__}()"})
            return self._class(value, instantiated=made, called=made)
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
        bases = [each for each in kind.__mro__[1:] if path_of(each) is not None]
        base = next((each for each in bases if each is not object), None)
        if base is not None and (base.__name__ in _ABSTRACT or inspect.isabstract(base)):
            base = nn.Module if issubclass(kind, nn.Module) else None
        name = self._new_name(kind, kind.__name__)
        inherited = ""
        if base is not None:
            inherited = f"({self.expression(base, base.__name__)})"
        body: list[str] = []
        implicit = () if dataclasses.is_dataclass(kind) else _IMPLICIT
        wanted = [*sorted(self.attributes), *implicit]
        if called:
            wanted.append("forward")
        if instantiated:
            wanted.append("__init__")
        for attribute in dict.fromkeys(wanted):
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
            read = [each for each in named if all_read or each in self.attributes]
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
        wanted = self.attributes | set(_IMPLICIT)
        members = ((name, vars(c)[name]) for c in own for name in wanted if name in vars(c))
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
        found = []
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
            found.append((name, self.expression(attribute, name)))
        return found

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
