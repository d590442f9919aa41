"""The fake mode of the fake tier: weights have no values, but inputs do.

Many models read their inputs: how many patches each image has, which positions are padding. These
values do not depend on weights, so such models can be evaluated in the fake tier.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo.guards
from torch import Tensor
from torch import _TorchCompileInductorWrapper as Inductor
from torch._guards import TracingContext
from torch._higher_order_ops.utils import registered_hop_fake_fns
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx import GraphModule, Interpreter
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from compilewatch.worker.model import replaced

CPU = torch.device("cpu")

KNOWN_ELEMENTS = 2**22
"""Maximum number of elements of a constructed tensor whose value is kept."""

_NOT_FOLDED = object()

_aten = torch.ops.aten

_ACROSS_DEVICES = frozenset({_aten.copy_.default, _aten._to_copy.default})
"""Operators whose tensors may be on different devices, apart from tensors without dimensions."""

_NUMBERS = frozenset({_aten._local_scalar_dense.default, _aten.equal.default})


_CONSTRUCTORS = frozenset(
    {
        _aten.arange.default,
        _aten.arange.start,
        _aten.arange.start_step,
        _aten.full.default,
        _aten.linspace.default,
        _aten.ones.default,
        _aten.scalar_tensor.default,
        _aten.zeros.default,
    }
)
_UNINITIALISED = frozenset(
    {_aten.empty_like.default, _aten.new_empty.default, _aten.new_empty_strided.default}
)
"""Operators by which kernels of fake tensors allocate memory, whose content is not a value."""

_OF_ONE_TYPE = {
    _aten.addmm.default: (1, 2),
    _aten.baddbmm.default: (1, 2),
    _aten.bmm.default: (0, 1),
    _aten.convolution.default: (0, 1),
    _aten.mm.default: (0, 1),
}
"""Operators whose kernels reject two tensors of different types, which fake tensors let pass."""

_ASSERTED = "_compilewatch_asserted"


class InputAwareFakeMode(FakeTensorMode):  # type: ignore[misc]
    """A fake mode that computes everything that only depends on known values.

    PyTorch keeps the value of a fake constant with one element (`CONSTANT_NUMEL_LIMIT`) and folds
    operations on such constants. This mode also keeps larger constants and those that constructors
    make: if the inputs come from `known`, whatever is computed from inputs, but not from weights,
    can be read. The result of an operation with a weight has no value, as usual.

    Assertions are assumed to hold: `torch._check_tensor_all` only reads a value to decide whether
    to raise, so an unknown value counts as true.

    `device` is where `known` puts tensors. On another device than the CPU, values are kept and
    computed on the CPU, since the device need not exist. PyTorch folds operations on fake constants
    too, but on the device of the constant, so that the result would be on the wrong device:
    `constant` of a tensor on another device is only read and written here, and by `item()`.

    A product of tensors of different types is rejected, as real ones are.

    Where a model has compiled a function of its own, no kernel that Inductor generates gets fake
    tensors, which have no memory: while the mode is active, such a graph runs node by node.

    Dynamo traces with its own fake mode; `values_shown` describes how it treats known values.
    """

    supports_higher_order_operators = True
    """They look for a rule by the exact class of a mode; `__torch_dispatch__` finds it."""

    def __init__(self, device: torch.device = CPU) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.device = device
        self._compilers: list[Any] = []

    def __enter__(self) -> InputAwareFakeMode:
        self._compilers.append(Inductor.__call__)
        Inductor.__call__ = _interpreted
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        Inductor.__call__ = self._compilers.pop()

    def known(self, value: Tensor, device: torch.device | None = None) -> FakeTensor:
        """Make a real tensor fake, on a device (by default that of this mode), and keep its value.

        The caller may no longer use the value.
        """
        device = device or self.device
        if isinstance(value, FakeTensor):
            return value if value.fake_mode is self else self.from_tensor(value)
        keep = self.may_turn_const(value)
        if keep and value._is_view():
            value = value.clone()  # Dynamo would describe the base with the sizes of the view
        if device.type != "cpu":
            shape, stride, dtype = value.size(), value.stride(), value.dtype
            with no_dispatch():
                meta = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
                fake = FakeTensor(self, meta, device, constant=value if keep else None)
            if keep:
                self.fake_tensor_converter.add_constant_storage_mapping(fake)
            return fake
        if not keep:
            return self.from_tensor(value)
        return self.fake_tensor_converter.from_real_tensor(self, value, make_constant=True)

    def may_turn_const(self, t: Tensor) -> bool:
        return (
            t.numel() <= KNOWN_ELEMENTS
            and t.layout is torch.strided
            and t.device.type == "cpu"
            and not isinstance(t, FakeTensor | torch.nn.Parameter)
        )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # The others are registered with a rule that calls this function.
        if isinstance(func, HigherOrderOperator) and func not in registered_hop_fake_fns:
            rule = func.python_key_table.get(FakeTensorMode)
            if rule is None:
                raise NotImplementedError(f"torch has no rule for {func} on fake tensors")
            return rule(self, *args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs or {})

    # torch 2.9 would compile this function, which is called between two graphs.
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return super().dispatch(func, types, args, kwargs)
        if TracingContext.try_get() is not None:
            # Dynamo evaluates constants below its own mode, where this mode must change nothing.
            leaves = tree_leaves((args, kwargs))
            if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
                return _real(func, args, kwargs)
            return super().dispatch(func, types, args, kwargs)
        _check_types(func, args)
        if func in _CONSTRUCTORS:
            tensor = super().dispatch(func, types, args, kwargs)
            if tensor.numel() > KNOWN_ELEMENTS:
                return tensor
            if tensor.device.type not in ("cpu", self.device.type):
                return tensor
            return self.known(_real(func, args, kwargs), tensor.device)
        if self.device.type == "cpu":
            return self._faked(func, types, args, kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)]
        onto = torch.device(kwargs.get("device") or "cpu")
        if onto.type in ("cpu", "meta") and all(t.device.type == "cpu" for t in tensors):
            return self._faked(func, types, args, kwargs)
        folded = self._folded(func, args, kwargs, tensors)
        if folded is not _NOT_FOLDED:
            return folded
        with self._values_hidden(func, tensors, args, kwargs):
            return self._faked(func, types, args, kwargs)

    def _folded(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tensors: Sequence[FakeTensor],
    ) -> Any:
        """Return the result of an operator on known values, or _NOT_FOLDED.

        The result is on the device that the operator names, otherwise on the common device of its
        tensors. An operator that would fail because its tensors are on different devices is not
        folded, nor one that draws random numbers. Operators of the namespace `prim` read properties
        of the fake tensor, such as its device.
        """
        if not isinstance(func, torch._ops.OpOverload) or func in _UNINITIALISED or not tensors:
            return _NOT_FOLDED
        makes_view = torch.Tag.inplace_view in func.tags and func is not _aten.detach_.default
        if makes_view or torch.Tag.nondeterministic_seeded in func.tags or func.namespace == "prim":
            return _NOT_FOLDED
        leaves = tree_leaves((args, kwargs))
        values = [leaf for leaf in leaves if isinstance(leaf, Tensor | torch.SymInt)]
        if any(getattr(value, "constant", None) is None for value in values):
            return _NOT_FOLDED
        known = tree_map_only(FakeTensor, lambda t: t.constant, (tuple(args), dict(kwargs)))
        try:
            if kwargs.get("device") is not None:
                device = FakeTensor._normalize_fake_device(torch.device(kwargs["device"]))
            elif func in _ACROSS_DEVICES:
                device = args[0].device
            else:
                device, _ = FakeTensor._find_common_device(func, leaves)
            folded = _real(func, *known)
        except Exception:  # noqa: BLE001  (the fake kernel runs next, and its error counts)
            return _NOT_FOLDED
        if func._schema.is_mutable:
            return args[0] if folded is known[0][0] else _NOT_FOLDED
        results = [leaf for leaf in tree_leaves(folded) if isinstance(leaf, Tensor)]
        if not all(self.may_turn_const(result) for result in results):
            return _NOT_FOLDED
        return tree_map_only(Tensor, lambda leaf: self.known(leaf, device), folded)

    @contextmanager
    def _values_hidden(
        self,
        func: Any,
        tensors: Sequence[FakeTensor],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Iterator[None]:
        """Let PyTorch see no values of tensors on other devices, which it would fold on the CPU.

        What the operator writes to loses its value. One that returns a number still reads it.
        """
        if func in _NUMBERS:
            yield
            return
        if isinstance(func, torch._ops.OpOverload):
            self.invalidate_written_to_constants(func, tensors, args, kwargs)
        hidden = [(t, t.constant) for t in tensors if t.device.type != "cpu"]
        for tensor, _ in hidden:
            tensor.constant = None
        try:
            yield
        finally:
            for tensor, value in hidden:
                tensor.constant = value

    def _faked(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if func is _aten.index.Tensor:
            args = (args[0], self._positions(args[1]))
        elif func is _aten._local_scalar_dense.default and hasattr(args[0], _ASSERTED):
            return True
        result = super().dispatch(func, types, args, kwargs)
        if func in _UNINITIALISED:
            result.constant = None
        elif func is _aten._is_all_true.default and result.constant is None:
            setattr(result, _ASSERTED, True)
        return result

    def _positions(self, indices: Sequence[Any]) -> list[Any]:
        """Replace known masks by the positions that they select, so that sizes are known."""
        indices_by_position: list[Any] = []
        for index in indices:
            value = index.constant if isinstance(index, FakeTensor) else None
            if value is None or value.dtype is not torch.bool:
                indices_by_position.append(index)
                continue
            with no_dispatch():
                positions = value.nonzero(as_tuple=True)
            indices_by_position += [self.known(position, index.device) for position in positions]
        return indices_by_position


def _interpreted(_: Inductor, graph: GraphModule, _inputs: list[Any], **_settings: Any) -> Any:
    interpreter = Interpreter(graph)
    return lambda *args: interpreter.run(*args, enable_io_processing=False)


def _check_types(func: Any, args: Sequence[Any]) -> None:
    """Raise RuntimeError where real tensors cannot be multiplied."""
    if func not in _OF_ONE_TYPE:
        return
    left, right = (args[index].dtype for index in _OF_ONE_TYPE[func])
    if left is not right:
        raise RuntimeError(
            f"expected both operands of {func} to have the same dtype, but got {left} and {right}"
        )


def _real(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run an operator on real tensors, on the CPU whatever device it names."""
    args, kwargs = on_cpu(args, kwargs)
    with no_dispatch():
        return func(*args, **kwargs)


@contextmanager
def values_shown() -> Iterator[None]:
    """Show known values to Dynamo as real tensors.

    Dynamo makes its own fake tensors from the inputs of a frame, and keeps the value of an integer
    that is a real tensor (`FakeTensorConverter.from_real_tensor`, torch 2.13 to 2.15), because it
    can be a size. Inputs of a frame have a source; AOTAutograd converts without one and needs the
    fake tensor.

    A number of NumPy, which Dynamo's guards compare as a tensor, becomes a real one, as it does
    where no mode is active: a fake one would not be what the frame was compiled for.
    """
    convert, from_numpy = FakeTensorConverter.from_real_tensor, torch._dynamo.guards.from_numpy

    def shown(self: Any, fake_mode: Any, t: Tensor, *args: Any, **kwargs: Any) -> Any:
        foreign = isinstance(t, FakeTensor) and t.fake_mode is not fake_mode
        foreign = foreign and t.device.type == "cpu"  # a value is on the CPU, its tensor may not be
        value = t.constant if foreign and kwargs.get("source") is not None else None
        return convert(self, fake_mode, t if value is None else value, *args, **kwargs)

    def real(value: Any) -> Any:
        with unset_fake_temporarily():
            return from_numpy(value)

    with (
        replaced(FakeTensorConverter, "from_real_tensor", shown),
        replaced(torch._dynamo.guards, "from_numpy", real),
    ):
        yield


def on_cpu(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return arguments of an operator with the CPU in place of every other device."""

    def moved(leaf: Any) -> Any:
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    changed: tuple[Any, Any] = tree_map(moved, (tuple(args), dict(kwargs)))
    return changed
