"""Reads from the source of a forward how it uses its arguments, without calling anything.

Statements are followed in their order, through calls of submodules and methods, as long as a
variable still holds the argument itself or a part of it (`batch["image"]`, `data.x`). A call that
changes the shape ends that, since nothing is known about what it returns.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from compilewatch.worker.example_inputs.guess.uses import (
    Held,
    KnownObject,
    Path,
    Uses,
    bound_arguments,
    definition,
    dotted,
    first_of,
    indexed_rank,
    is_torchs,
    iterating,
    keeps_shape,
    only_normalises,
    pattern_dims,
    words,
)

DEPTH = 12
"""How many calls inside calls are followed."""

SAME_SHAPE = words(
    "float half double to type contiguous clone detach cuda cpu type_as bool long int"
)
"""Methods of tensors that keep the shape."""

TENSOR_ATTRIBUTES = words(
    "shape ndim dtype device T mT requires_grad is_cuda grad data real imag names layout "
    "is_nested is_sparse is_quantized training"
)
NO_TENSOR_METHODS = words("keys items values get pop update setdefault copy")
"""Methods of dictionaries."""

CHECKS = words("exists default is_none isinstance hasattr callable")
"""Functions whose argument may be None."""


_RANK = re.compile(r"\bndim\b|\.dim\(\)|len\(\w+\.(shape|size)")
_TENSOR = nn.Parameter
_FUNCTIONAL = frozenset({"linear", "conv1d", "conv2d", "conv3d", "embedding"})
_CHANGES = {
    "transpose": "transposed",
    "permute": "transposed",
    "flatten": "flattened",
    "view": "flattened",
    "reshape": "flattened",
    "unsqueeze": "unsqueezed",
}


_USUAL = {1: ("b",), 2: ("b", "d"), 3: ("b", "t", "d"), 4: ("b", "c", "h", "w")}
"""Names of the dimensions of a tensor of which only the rank is known."""


class Reading:
    """Follows one forward; `uses` is what was found."""

    def __init__(self, leaf: Callable[[Any], bool]) -> None:
        self.uses: dict[Path, Uses] = {}
        self.passing_by = 0
        self._leaf = leaf
        self._depth = 0

    def read(self, module: nn.Module, names: list[str], required: list[str]) -> dict[Path, Uses]:
        variables = {name: Held((name,)) for name in names}
        if self._leaf(module):
            self._call_module(module, [variables[name] for name in required], {})
        else:
            self._enter(module.forward, variables, module)
        return self.uses

    def dims(self, path: Path, names: tuple[str, ...]) -> None:
        """Note names for the dimensions of an argument."""
        if not self.passing_by:
            self.of(path).dims.append(names)

    def of(self, path: Path) -> Uses:
        return self.uses.setdefault(path, Uses())

    # --- functions -------------------------------------------------------------------------------

    def _enter(self, function: Any, bound: dict[str, Any], owner: Any = None) -> Any:
        function = inspect.unwrap(function)
        node = definition(getattr(function, "__func__", function))
        if node is None or self._depth >= DEPTH:
            return None
        owner = getattr(function, "__self__", owner)
        scope = dict(bound)
        first = node.args.args[0].arg if node.args.args else ""
        if owner is not None and first not in scope:
            scope[first] = KnownObject(owner)
        self._depth += 1
        try:
            return _Body(self, scope, getattr(function, "__globals__", {})).run(node.body)
        finally:
            self._depth -= 1

    def call(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a call returns: the argument itself if the shape stays the same, else None."""
        passed = [v for v in (*args, *kwargs.values()) if isinstance(v, Held)]
        if not passed:
            return None
        for variable in passed:
            self.of(variable.path).used = True
        if isinstance(target, nn.Module):
            return self._call_module(target, args, kwargs)
        if inspect.ismethod(target) or (inspect.isfunction(target) and not is_torchs(target)):
            bound = bound_arguments(target, args, kwargs)
            return self._enter(target, bound) if bound else None
        return None

    def _call_module(self, module: nn.Module, args: list[Any], kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if keeps_shape(module):
            return first
        if self._leaf(module):
            for position, value in enumerate([*args, *kwargs.values()]):
                if isinstance(value, Held):
                    self.of(value.path).layers.append((module, position, value.changes))
            return first if only_normalises(module) else None
        if isinstance(module, nn.Sequential):
            current: Any = first
            for child in module:
                current = self.call(child, [current], {})
                if not isinstance(current, Held):
                    return None
            return current
        bound = bound_arguments(module.forward, args, kwargs)
        return self._enter(module.forward, bound, module) if bound else None


class _Body:
    """The statements of one function, with what its variables hold."""

    def __init__(self, reading: Reading, scope: dict[str, Any], names: dict[str, Any]) -> None:
        self.reading, self.scope, self.names = reading, scope, names
        self.returned: Any = None

    def run(self, statements: list[ast.stmt]) -> Any:
        for statement in statements:
            self._statement(statement)
        return self.returned

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            value = self._value(node.value)
            for target in node.targets:
                self._assign(target, value, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self._value(node.value), node.value)
        elif isinstance(node, ast.AugAssign):
            self._value(node.value)
        elif isinstance(node, ast.If):
            self._if(node)
        elif isinstance(node, ast.For):
            self._for(node.target, self._value(node.iter))
            self.run(node.body)
        elif isinstance(node, ast.While):
            self._value(node.test)
            self.run(node.body)
        elif isinstance(node, ast.With):
            for item in node.items:
                self._value(item.context_expr)
            self.run(node.body)
        elif isinstance(node, ast.Try):
            self.run([*node.body, *node.orelse, *node.finalbody])
        elif isinstance(node, ast.Return):
            self.returned = self._value(node.value) if node.value is not None else None
        elif isinstance(node, ast.Expr):
            self._value(node.value)
        elif isinstance(node, ast.Assert):
            self._test(node.test)

    def _if(self, node: ast.If) -> None:
        known = self._test(node.test)
        before = dict(self.scope)
        # What happens to tensors of one rank only says nothing about the usual one.
        of_rank = known is None and _RANK.search(ast.unparse(node.test)) is not None
        self.reading.passing_by += of_rank
        if known is not False:
            self.run(node.body)
        after = dict(self.scope)
        if known is not True:
            self.scope = before
            self.run(node.orelse)
            if known is None:
                self.scope = {n: v for n, v in after.items() if v is not None} | {
                    n: v for n, v in self.scope.items() if v is not None or n not in after
                }
        self.reading.passing_by -= of_rank

    def _test(self, node: ast.expr) -> bool | None:
        """Note which arguments a condition checks; return its value if the module decides it."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Compare) and isinstance(inner.left, ast.Constant):
                container = self._value(inner.comparators[0])
                if ast.unparse(inner).find(" in ") > 0 and isinstance(container, Held):
                    self.reading.of(container.path).optional_parts.add(f"[{inner.left.value!s}]")
            if isinstance(inner, ast.Name | ast.Attribute | ast.Subscript | ast.NamedExpr):
                variable = self._value(inner)
                if isinstance(variable, Held):
                    self.reading.of(variable.path).checked = True
        value = self._value(node)
        if isinstance(value, KnownObject) and isinstance(value.value, bool):
            return value.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner_value = self._test(node.operand)
            return None if inner_value is None else not inner_value
        return None

    def _assign(self, target: ast.expr, value: Any, source: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.scope[target.id] = value
            return
        if not isinstance(target, ast.Tuple | ast.List):
            return
        shaped = self._shape_of(source)
        names = tuple(e.id if isinstance(e, ast.Name) else "*" for e in target.elts)
        starred = any(isinstance(e, ast.Starred) for e in target.elts)
        if shaped is not None and not starred:
            if not shaped.changes:
                self.reading.dims(shaped.path, names)
        elif isinstance(source, ast.Tuple) and len(source.elts) == len(target.elts):
            for element, part in zip(target.elts, source.elts, strict=True):
                self._assign(element, self._value(part), part)
            return
        elif isinstance(value, Held) and not starred:
            for i, element in enumerate(target.elts):
                self._assign(element, self._part(value, f"<{i}>"), element)
            return
        for element in target.elts:
            self._assign(element, None, element)

    def _shape_of(self, node: ast.expr) -> Held | None:
        """The argument whose shape an expression is: `x.shape` or `x.size()`."""
        if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
            node = node.func
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "size"):
            variable = self._value(node.value)
            return variable if isinstance(variable, Held) else None
        return None

    def _for(self, target: ast.expr, iterated: Any) -> None:
        first: Any = None
        if isinstance(iterated, Held):
            first = self._part(iterated, "<*>")
        elif isinstance(iterated, KnownObject):
            first = first_of(iterated.value)
        if isinstance(first, tuple) and isinstance(target, ast.Tuple):
            for element, value in zip(target.elts, first, strict=False):
                self._assign(element, value, element)
            return
        self._assign(target, first, target)

    def _part(self, variable: Held, part: str) -> Held:
        uses = self.reading.of(variable.path)
        uses.used = True
        if part not in uses.parts:
            uses.parts.append(part)
        return Held((*variable.path, part))

    # --- expressions -----------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Any:
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child)
            elif isinstance(child, ast.comprehension):
                self._for(child.target, self._value(child.iter))
        return None

    def _comprehension(self, node: Any) -> Any:
        for generator in node.generators:
            self._for(generator.target, self._value(generator.iter))
        self._value(node.elt)

    _listcomp = _generatorexp = _setcomp = _comprehension

    def _name(self, node: ast.Name) -> Any:
        if node.id in self.scope:
            return self.scope[node.id]
        return KnownObject(self.names[node.id]) if node.id in self.names else None

    def _constant(self, node: ast.Constant) -> Any:
        return KnownObject(node.value)

    def _namedexpr(self, node: ast.NamedExpr) -> Any:
        value = self._value(node.value)
        self._assign(node.target, value, node.value)
        return value

    def _ifexp(self, node: ast.IfExp) -> Any:
        known = self._test(node.test)
        values = [self._value(node.body), self._value(node.orelse)]
        if known is not None:
            return values[0 if known else 1]
        return next((v for v in values if isinstance(v, Held)), None)

    def _boolop(self, node: ast.BoolOp) -> Any:
        values = [self._value(operand) for operand in node.values]
        for value in values[:-1]:
            if isinstance(value, Held):
                self.reading.of(value.path).checked = True
        return next((v for v in values if isinstance(v, Held)), None)

    def _binop(self, node: ast.BinOp) -> Any:
        values = [self._value(node.left), self._value(node.right)]
        operands = [v for v in values if isinstance(v, Held)]
        for variable in operands:
            self.reading.of(variable.path).used = True
        if isinstance(node.op, ast.MatMult):
            weight = values[1]
            if (
                operands
                and isinstance(weight, KnownObject)
                and isinstance(weight.value, nn.Parameter)
            ):
                self.reading.of(operands[0].path).layers.append(
                    (weight.value, 0, operands[0].changes)
                )
            return None
        return operands[0] if len(operands) == 1 else None

    def _attribute(self, node: ast.Attribute) -> Any:
        base = self._value(node.value)
        if isinstance(base, KnownObject):
            try:
                return (
                    KnownObject(inspect.getattr_static(base.value, node.attr))
                    if isinstance(base.value, type)
                    else KnownObject(getattr(base.value, node.attr))
                )
            except Exception:  # noqa: BLE001  (whatever a property of the module raises)
                return None
        if isinstance(base, Held):
            self.reading.of(base.path).used = True
            if node.attr in TENSOR_ATTRIBUTES or hasattr(_TENSOR, node.attr):
                return None
            return self._part(base, f".{node.attr}")
        return None

    def _subscript(self, node: ast.Subscript) -> Any:
        base, index = self._value(node.value), self._value(node.slice)
        if isinstance(base, KnownObject) and isinstance(index, KnownObject):
            try:
                return KnownObject(base.value[index.value])
            except Exception:  # noqa: BLE001  (whatever a container of the module raises)
                return None
        if not isinstance(base, Held):
            return None
        self.reading.of(base.path).used = True
        key = index.value if isinstance(index, KnownObject) else None
        if isinstance(key, str):
            self.reading.of(base.path).is_dict = True
            return self._part(base, f"[{key}]")
        rank = indexed_rank(node.slice)
        if rank in _USUAL and not base.changes:
            self.reading.dims(base.path, _USUAL[rank])
        return None

    def _call(self, node: ast.Call) -> Any:
        args = [self._value(argument) for argument in node.args]
        kwargs = {k.arg: self._value(k.value) for k in node.keywords if k.arg is not None}
        if isinstance(node.func, ast.Attribute):
            base = self._value(node.func.value)
            if isinstance(base, Held):
                return self._method(base, node, args)
        target = self._value(node.func)
        value = target.value if isinstance(target, KnownObject) else None
        name = getattr(value, "__name__", "") or dotted(node.func)
        if name in CHECKS:
            for argument in args:
                if isinstance(argument, Held):
                    self.reading.of(argument.path).checked = True
            return args[0] if name == "default" and args else None
        if name in ("enumerate", "zip", "reversed", "list", "tuple", "checkpoint"):
            return iterating(name, args)
        if name in ("rearrange", "reduce", "repeat", "parse_shape", "einsum"):
            self._pattern(name, args, kwargs)
        if name in _FUNCTIONAL and len(args) > 1 and isinstance(args[0], Held):
            weight = args[1].value if isinstance(args[1], KnownObject) else None
            if isinstance(weight, nn.Parameter):
                layers = self.reading.of(args[0].path).layers
                layers.append(((name, weight), 0, args[0].changes))
                return None
        return self.reading.call(value, args, kwargs)

    def _method(self, base: Held, node: ast.Call, args: list[Any]) -> Any:
        assert isinstance(node.func, ast.Attribute)
        name = node.func.attr
        uses = self.reading.of(base.path)
        uses.used = True
        if name in NO_TENSOR_METHODS:
            uses.is_dict = True
            key = args[0].value if args and isinstance(args[0], KnownObject) else None
            if name in ("get", "pop") and isinstance(key, str):
                part = self._part(base, f"[{key}]")
                if name == "get" or len(args) > 1:
                    uses.optional_parts.add(f"[{key}]")
                return part
            return None
        if name in SAME_SHAPE:
            return base
        changed = _CHANGES.get(name)
        if changed is None or changed in base.changes:
            return None
        return Held(base.path, base.changes | {changed})

    def _pattern(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
        known = [a.value for a in args if isinstance(a, KnownObject) and isinstance(a.value, str)]
        tensors = [a for a in args if isinstance(a, Held) and not a.changes]
        if not known or not tensors:
            return
        sizes = {k: v.value for k, v in kwargs.items() if isinstance(v, KnownObject)}
        for tensor, side in zip(tensors, known[0].partition("->")[0].split(","), strict=False):
            dims = pattern_dims(side, sizes)
            if name == "einsum":
                dims = tuple(side.replace("...", "").strip()) if " " not in side.strip() else dims
            if dims and "..." not in dims:
                self.reading.dims(tensor.path, dims)
