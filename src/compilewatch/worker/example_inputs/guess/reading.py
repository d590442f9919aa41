"""Reads from the source of a forward which layers take its arguments, without calling anything.

Statements are followed in their order, through calls of submodules and methods, as long as a
variable still holds the argument itself or a part of it (`batch["image"]`, `data.x`). A call that
changes the shape ends that, since nothing is known about what it returns.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import nn

Path = tuple[str, ...]
"""An argument and what leads to a part of it: `("batch", "[image]")`, `("data", ".x")`."""

DEPTH = 12
"""How many calls inside calls are followed."""

_SAME_SHAPE = re.compile(
    r"float|half|double|to|type|contiguous|clone|detach|cuda|cpu|type_as|bool|long|int"
)
_OF_DICTIONARIES = re.compile(r"keys|items|values|get|pop|update|setdefault|copy")
_SHAPE_CHANGES = {"transpose": "transposed", "permute": "transposed", "unsqueeze": "unsqueezed"}
_CHECKS = re.compile(r"exists|default|is_none|isinstance|hasattr|callable")


@dataclass(kw_only=True)
class Uses:
    """What the forward does with one argument, or with one part of it, in order.

    `layers` are the layers that take it, each with the position of the argument and what was done
    to it before (`transposed`, `unsqueezed`). `ranks` are those of shapes that are unpacked, and of
    tensors that are extended.
    """

    layers: list[tuple[nn.Module, int, frozenset[str]]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    optional_parts: set[str] = field(default_factory=set)
    checked: bool = False
    used: bool = False

    @property
    def is_used(self) -> bool:
        """Whether the forward does something with it, and does not check it for None before."""
        return bool(self.layers or self.ranks or self.used) and not self.checked


@dataclass(frozen=True)
class _Held:
    """What a variable holds: a part of an argument, with what was done to it."""

    path: Path
    changes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Known:
    """What a variable holds: an object of the module, such as a submodule."""

    value: Any


def read_uses(
    module: nn.Module, names: list[str], required: list[str], is_leaf: Callable[[Any], bool]
) -> dict[Path, Uses]:
    """Return how the forward of a module uses the arguments of these names.

    `is_leaf` says of which layers it is known what they take. A module that is one takes the
    `required` arguments.
    """
    reader = _Reader(is_leaf)
    if is_leaf(module):
        reader.call(module, [_Held((name,)) for name in required], {})
    else:
        reader.enter(module.forward, {name: _Held((name,)) for name in names}, module)
    return reader.uses


class _Reader:
    """Follows functions; `scope` is what the variables of the present one hold, by name."""

    def __init__(self, is_leaf: Callable[[Any], bool]) -> None:
        self.uses: dict[Path, Uses] = {}
        self.is_leaf = is_leaf
        self.depth = 0
        self.scope: dict[str, Any] = {}
        self.globals: Mapping[str, Any] = {}
        self.returned: Any = None

    def of(self, variable: _Held) -> Uses:
        return self.uses.setdefault(variable.path, Uses())

    def part(self, variable: _Held, part: str) -> _Held:
        uses = self.of(variable)
        if part not in uses.parts:
            uses.parts.append(part)
        return _Held((*variable.path, part))

    # --- functions and modules --------------------------------------------------------------------

    def enter(self, function: Any, bound: Mapping[str, Any], owner: Any = None) -> Any:
        """Follow the statements of a function; return what it returns, as far as it is known."""
        function = inspect.unwrap(function)
        node = _definition(getattr(function, "__func__", function))
        if node is None or self.depth >= DEPTH:
            return None
        scope = dict(bound)
        owner = getattr(function, "__self__", owner)
        if owner is not None and node.args.args:
            scope.setdefault(node.args.args[0].arg, _Known(owner))
        outer = self.scope, self.globals
        self.scope, self.globals = scope, getattr(function, "__globals__", {})
        self.depth, self.returned = self.depth + 1, None
        try:
            self.run(node.body)
            return self.returned
        finally:
            (self.scope, self.globals), self.returned = outer, None
            self.depth -= 1

    def call(self, target: Any, args: list[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call returns: the argument itself if the shape stays the same, else None."""
        values = [*args, *kwargs.values()]
        tensors = [(i, value) for i, value in enumerate(values) if isinstance(value, _Held)]
        for _, value in tensors:
            self.of(value).used = True
        if not tensors:
            return None
        if not isinstance(target, nn.Module):
            package = str(getattr(target, "__module__", "")).partition(".")[0]
            function = inspect.isfunction(target) and package not in ("torch", "einops")
            bound = _bound_arguments(target, args, kwargs)
            return self.enter(target, bound) if function or inspect.ismethod(target) else None
        if _keeps_shape(target):
            return values[0]
        if self.is_leaf(target):
            for position, value in tensors:
                self.of(value).layers.append((target, position, value.changes))
            return values[0] if "Norm" in type(target).__name__ else None
        if isinstance(target, nn.Sequential):
            first = values[0]
            for child in target:
                first = self.call(child, [first], {})
            return first
        return self.enter(target.forward, _bound_arguments(target.forward, args, kwargs), target)

    # --- statements -------------------------------------------------------------------------------

    def run(self, statements: list[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.Assign):
                self._assign(node.targets[0], node.value)
            elif isinstance(node, ast.AnnAssign) and node.value is not None:
                self._assign(node.target, node.value)
            elif isinstance(node, ast.If):
                self._check(node.test)
                before = dict(self.scope)
                self.run(node.body)
                after, self.scope = self.scope, before
                self.run(node.orelse)
                # What one branch leaves as it was may still hold the argument.
                self.scope = {**after, **{n: v for n, v in self.scope.items() if v is not None}}
            elif isinstance(node, ast.For):
                self._iterate(node.target, node.iter)
                self.run(node.body)
            elif isinstance(node, ast.Return):
                self.returned = self._value(node.value) if node.value is not None else None
            elif isinstance(node, ast.Assert):
                self._check(node.test)
            elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
                for name, child in ast.iter_fields(node):
                    if name in ("body", "orelse", "finalbody"):
                        self.run(child)
                    elif isinstance(child, ast.expr):
                        self._value(child)

    def _check(self, test: ast.expr) -> None:
        """Note which arguments a condition checks."""
        for node in ast.walk(test):
            if isinstance(node, ast.Compare) and " in " in ast.unparse(node):
                container = self._value(node.comparators[0])
                if isinstance(container, _Held) and isinstance(node.left, ast.Constant):
                    self.of(container).optional_parts.add(f"[{node.left.value!s}]")
            elif isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
                variable = self._value(node)
                if isinstance(variable, _Held):
                    self.of(variable).checked = True
        self._value(test)

    def _assign(self, target: ast.expr, source: ast.expr) -> None:
        value = self._value(source)
        if isinstance(target, ast.Name):
            self.scope[target.id] = value
        elif isinstance(target, ast.Tuple):
            if isinstance(source, ast.Tuple) and len(source.elts) == len(target.elts):
                for element, part in zip(target.elts, source.elts, strict=True):
                    self._assign(element, part)
            shape = source.func if isinstance(source, ast.Call) and not source.args else source
            if isinstance(shape, ast.Attribute) and shape.attr in ("shape", "size"):
                tensor = self._value(shape.value)
                if isinstance(tensor, _Held) and not tensor.changes:
                    self.of(tensor).ranks.append(len(target.elts))

    def _iterate(self, target: ast.expr, iterated: ast.expr) -> None:
        """Let the target of a loop hold the first element."""
        container = self._value(iterated)
        if isinstance(target, ast.Name):
            self.scope[target.id] = None
            if isinstance(container, _Held):
                self.scope[target.id] = self.part(container, "<*>")
            elif isinstance(container, _Known) and isinstance(container.value, nn.ModuleList):
                self.scope[target.id] = _Known(next(iter(container.value), None))

    # --- expressions ------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        """What an expression holds: a part of an argument, an object of the module, or None."""
        match node:
            case ast.Name():
                known = _Known(self.globals[node.id]) if node.id in self.globals else None
                return self.scope.get(node.id, known)
            case ast.Constant():
                return _Known(node.value)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._subscript(node)
            case ast.Call():
                return self._call(node)
            case ast.ListComp() | ast.GeneratorExp():
                for generator in node.generators:
                    self._iterate(generator.target, generator.iter)
                self._value(node.elt)
                return None
            case ast.IfExp():
                self._check(node.test)
        values = [self._value(c) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
        tensors = [value for value in values if isinstance(value, _Held)]
        for value in tensors:
            self.of(value).used = True
        if isinstance(node, ast.BoolOp):  # `x or …`
            for value in tensors[:1]:
                self.of(value).checked = True
        chosen = isinstance(node, ast.BoolOp | ast.IfExp) and tensors
        is_sum = isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult)
        return tensors[0] if chosen or (is_sum and len(tensors) == 1) else None

    def _attribute(self, node: ast.Attribute) -> Any:
        base = self._value(node.value)
        if isinstance(base, _Known):
            look_up = inspect.getattr_static if isinstance(base.value, type) else getattr
            try:
                return _Known(look_up(base.value, node.attr))
            except Exception:  # noqa: BLE001  (whatever a property of the module raises)
                return None
        if isinstance(base, _Held):
            self.of(base).used = True
            if not hasattr(nn.Parameter, node.attr):
                return self.part(base, f".{node.attr}")
        return None

    def _subscript(self, node: ast.Subscript) -> Any:
        base, index = self._value(node.value), self._value(node.slice)
        key = index.value if isinstance(index, _Known) else None
        if isinstance(base, _Known) and key is not None:
            try:
                return _Known(base.value[key])
            except Exception:  # noqa: BLE001  (whatever a container of the module raises)
                return None
        if isinstance(base, _Held):
            self.of(base).used = True
            if isinstance(key, str):
                return self.part(base, f"[{key}]")
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
            new = sum(isinstance(i, ast.Constant) and i.value is None for i in indices)
            if new and not base.changes:  # `x[:, :, None]` extends a tensor of rank 2
                self.of(base).ranks.append(len(indices) - new)
        return None

    def _call(self, node: ast.Call) -> Any:
        args = [self._value(argument) for argument in node.args]
        kwargs = {k.arg: self._value(k.value) for k in node.keywords if k.arg is not None}
        if isinstance(node.func, ast.Attribute):
            base = self._value(node.func.value)
            if isinstance(base, _Held):
                return self._method(base, node.func.attr, args)
        target = self._value(node.func)
        value = target.value if isinstance(target, _Known) else None
        name = getattr(value, "__name__", "") or getattr(node.func, "id", "")
        if _CHECKS.fullmatch(name):
            for argument in args:
                if isinstance(argument, _Held):
                    self.of(argument).checked = True
            return args[0] if name == "default" and args else None
        return self.call(value, args, kwargs)

    def _method(self, base: _Held, name: str, args: list[Any]) -> Any:
        self.of(base).used = True
        if _OF_DICTIONARIES.fullmatch(name):
            key = args[0].value if args and isinstance(args[0], _Known) else None
            if name not in ("get", "pop") or not isinstance(key, str):
                return None
            if name == "get" or len(args) > 1:
                self.of(base).optional_parts.add(f"[{key}]")
            return self.part(base, f"[{key}]")
        if _SAME_SHAPE.fullmatch(name):
            return base
        change = _SHAPE_CHANGES.get(name)
        if change is None or change in base.changes:
            return None
        return _Held(base.path, base.changes | {change})


def _keeps_shape(module: nn.Module) -> bool:
    name, defined_in = type(module).__name__, type(module).__module__
    if isinstance(module, nn.Sequential):
        return len(module) == 0
    of_torch = defined_in.startswith(("torch.nn.modules.activation", "torch.nn.modules.dropout"))
    plain = of_torch and not isinstance(module, nn.MultiheadAttention)
    return plain or name in ("Identity", "DropPath", "QuickGELU")


def _bound_arguments(function: Any, args: list[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Which parameters of a function get what; empty if the call does not fit."""
    try:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    return {name: value for name, value in bound.arguments.items() if kinds[name] not in variable}


@lru_cache(maxsize=512)
def _definition(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
