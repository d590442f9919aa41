"""The fake tensors of the fake tier: weights have no values, inputs do.

Many models read their inputs: how many patches each image has, which positions are padding. Such
values do not depend on weights, so the fake tier need not give up on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

KNOWN_ELEMENTS = 2**22
"""Of a constructed tensor whose value is kept."""

_aten = torch.ops.aten
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
    {
        _aten.empty_like.default,
        _aten.new_empty.default,
        _aten.new_empty_strided.default,
    }
)
"""Kernels of fake tensors allocate with these; what is in the memory is no value."""

_ASSERTED = "_compilewatch_asserted"


class InputAwareFakeMode(FakeTensorMode):  # type: ignore[misc]
    """A fake mode that computes what follows from known values alone.

    torch keeps the value of a fake constant of one element (`CONSTANT_NUMEL_LIMIT`) and folds what
    is computed from such constants. This mode keeps larger ones, and those that constructors make:
    with inputs made by `known`, whatever is derived from inputs and not from weights can be read.
    What meets a weight has no value, as ever.

    Assertions hold: `torch._check_tensor_all` reads a value that decides nothing but whether to
    raise. Where that value is not known it is taken to be true.

    Dynamo traces with a fake mode of its own; see `values_shown` for what it makes of known values.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def known(self, value: Tensor) -> FakeTensor:
        """A real tensor as a fake one whose value is kept; the value is the caller's no more."""
        if isinstance(value, FakeTensor) or not self.may_turn_const(value):
            return self.from_tensor(value)
        return self.fake_tensor_converter.from_real_tensor(self, value, make_constant=True)

    def may_turn_const(self, t: Tensor) -> bool:
        return (
            t.numel() <= KNOWN_ELEMENTS
            and t.layout is torch.strided
            and t.device.type == "cpu"
            and not isinstance(t, FakeTensor | torch.nn.Parameter)
        )

    # torch 2.9 would compile this very function, which is called between two graphs.
    @torch._disable_dynamo  # type: ignore[untyped-decorator]
    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if TracingContext.try_get() is not None:
            # Dynamo evaluates constants underneath its own mode: as it would without this one.
            leaves = tree_leaves((args, kwargs))
            if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
                return _real(func, args, kwargs)
            return super().dispatch(func, types, args, kwargs)
        if func in _CONSTRUCTORS:
            return self._constructed(func, types, args, kwargs)
        return self._faked(func, types, args, kwargs)

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

    def _constructed(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        made = super().dispatch(func, types, args, kwargs)
        if made.numel() > KNOWN_ELEMENTS or made.device.type != "cpu":
            return made
        return self.known(_real(func, args, kwargs))

    def _positions(self, indices: Sequence[Any]) -> list[Any]:
        """Known masks as the positions they select: the size of what they select follows."""
        found: list[Any] = []
        for index in indices:
            value = index.constant if isinstance(index, FakeTensor) else None
            if value is None or value.dtype is not torch.bool:
                found.append(index)
                continue
            with no_dispatch():
                positions = value.nonzero(as_tuple=True)
            found += [self.known(position) for position in positions]
        return found


def _real(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with no_dispatch():
        return func(*args, **kwargs)


@contextmanager
def values_shown() -> Iterator[None]:
    """Have Dynamo see known values as the real tensors they stand for.

    It makes its own fake tensors of a frame's inputs, and keeps the value of a whole number that is
    a real tensor (`FakeTensorConverter.from_real_tensor`, torch 2.13 to 2.15): such a one can be a
    size. A frame's input has a source; AOTAutograd, which converts without one, wants the fake
    tensor.
    """
    convert = FakeTensorConverter.from_real_tensor

    def shown(self: Any, fake_mode: Any, t: Tensor, *args: Any, **kwargs: Any) -> Any:
        foreign = isinstance(t, FakeTensor) and t.fake_mode is not fake_mode
        value = t.constant if foreign and kwargs.get("source") is not None else None
        return convert(self, fake_mode, t if value is None else value, *args, **kwargs)

    FakeTensorConverter.from_real_tensor = shown
    try:
        yield
    finally:
        FakeTensorConverter.from_real_tensor = convert
