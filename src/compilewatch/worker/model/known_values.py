"""Known values of fake tensors on a device that need not exist: kept and computed on the CPU.

PyTorch folds operations on fake constants too, but on the device of the constant, which is the CPU
here, so that the result would be on the wrong device. `constant` of a fake tensor on another device
is therefore only read and written by this module, and by `item()` of PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

if TYPE_CHECKING:
    from compilewatch.worker.model.fake_mode import InputAwareFakeMode

NOT_FOLDED = object()

_aten = torch.ops.aten

_ACROSS_DEVICES = frozenset({_aten.copy_.default, _aten._to_copy.default})
"""Operators whose tensors may be on different devices, apart from tensors without dimensions."""

_NUMBERS = frozenset({_aten._local_scalar_dense.default, _aten.equal.default})


def placed(
    mode: InputAwareFakeMode, value: Tensor, device: torch.device, *, keep_value: bool
) -> FakeTensor:
    """Return a fake tensor on a device, like a real one on the CPU, with its value if wanted."""
    with no_dispatch():
        meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
        fake = FakeTensor(mode, meta, device, constant=value if keep_value else None)
    if keep_value:
        mode.fake_tensor_converter.add_constant_storage_mapping(fake)
    return fake


def involves_other_device(tensors: Sequence[FakeTensor], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator takes a tensor that is not on the CPU, or a device to put one on."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type not in ("cpu", "meta"):
        return True
    return any(tensor.device.type != "cpu" for tensor in tensors)


def on_cpu(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return arguments of an operator with the CPU in place of every other device."""

    def moved(leaf: Any) -> Any:
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    changed: tuple[Any, Any] = tree_map(moved, (tuple(args), dict(kwargs)))
    return changed


def fold(
    mode: InputAwareFakeMode,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[FakeTensor],
) -> Any:
    """Return the result of an operator on known values, or NOT_FOLDED.

    The result is on the device that the operator names, otherwise on the common device of its
    tensors. An operator that would fail because its tensors are on different devices is not folded,
    nor one that draws random numbers. Operators of the namespace `prim` read properties of the fake
    tensor, such as its device.
    """
    if not _foldable(func, args, kwargs, tensors):
        return NOT_FOLDED
    device = _device_of_result(func, args, kwargs)
    if device is None:
        return NOT_FOLDED
    values = tree_map_only(FakeTensor, lambda tensor: tensor.constant, (tuple(args), dict(kwargs)))
    try:
        with no_dispatch():
            folded = func(*on_cpu(*values)[0], **on_cpu(*values)[1])
    except Exception:  # noqa: BLE001  (the fake kernel runs next, and its error counts)
        return NOT_FOLDED
    if func._schema.is_mutable:
        return args[0] if folded is values[0][0] else NOT_FOLDED
    results = [leaf for leaf in tree_leaves(folded) if isinstance(leaf, Tensor)]
    if not all(mode.may_turn_const(result) for result in results):
        return NOT_FOLDED
    return tree_map_only(Tensor, lambda each: mode.known(each, device), folded)


def _foldable(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[FakeTensor]
) -> bool:
    if not isinstance(func, torch._ops.OpOverload) or func.namespace == "prim" or not tensors:
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    if torch.Tag.inplace_view in func.tags and func is not _aten.detach_.default:
        return False
    leaves = tree_leaves((args, kwargs))
    if any(isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor) for leaf in leaves):
        return False
    if any(isinstance(leaf, torch.SymInt) for leaf in leaves):
        return False
    return all(tensor.constant is not None for tensor in tensors)


def _device_of_result(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.device | None:
    """Return None if tensors are on different devices that the operator does not accept."""
    named = kwargs.get("device")
    if named is not None:
        return FakeTensor._normalize_fake_device(torch.device(named))
    if func in _ACROSS_DEVICES:
        device: torch.device = args[0].device
        return device
    try:
        device, _ = FakeTensor._find_common_device(func, tree_leaves((args, kwargs)))
    except Exception:  # noqa: BLE001  (the fake kernel raises it again, or accepts the devices)
        return None
    return device


@contextmanager
def values_hidden(
    mode: InputAwareFakeMode,
    func: Any,
    tensors: Sequence[FakeTensor],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Iterator[None]:
    """Let PyTorch see no values of tensors on other devices, which it would fold on the CPU.

    What the operator writes to loses its value. An operator that returns a number still reads it.
    """
    if func in _NUMBERS:
        yield
        return
    if isinstance(func, torch._ops.OpOverload):
        mode.invalidate_written_to_constants(func, tensors, args, kwargs)
    hidden = [(t, t.constant) for t in tensors if t.device.type != "cpu"]
    for tensor, _ in hidden:
        tensor.constant = None
    try:
        yield
    finally:
        for tensor, value in hidden:
            tensor.constant = value
