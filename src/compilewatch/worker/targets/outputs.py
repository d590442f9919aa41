"""Results of a call as bytes, by which a fork returns them for comparison.

Only what a comparison looks at is kept: tensors are dense, and an object that is neither a tensor
nor a plain value is its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch

from compilewatch.records import Record

_PLAIN = (str, bool, int, float)
_LARGEST_INT = 2**63


class _Tensor(Record, frozen=True, kw_only=True, tag="tensor"):
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class _Value(Record, frozen=True, kw_only=True, tag="value"):
    value: str | bool | int | float | None


class _Text(Record, frozen=True, kw_only=True, tag="text"):
    text: str


_Results = dict[str, _Tensor | _Value | _Text]


def to_bytes(results: Mapping[str, Any]) -> bytes:
    """Encode results by path; `from_bytes` is the inverse."""
    return msgspec.msgpack.encode({path: _encoded(value) for path, value in results.items()})


def from_bytes(data: bytes) -> dict[str, Any]:
    """Return the results by path, with tensors on the CPU."""
    encoded = msgspec.msgpack.decode(data, type=_Results)
    return {path: _decoded(value) for path, value in encoded.items()}


def _encoded(value: Any) -> _Tensor | _Value | _Text:
    if isinstance(value, torch.Tensor):
        return _encoded_tensor(value)
    is_small = not isinstance(value, int) or -_LARGEST_INT <= value < _LARGEST_INT
    if value is None or (type(value) in _PLAIN and is_small):
        return _Value(value=value)
    return _Text(text=f"{type(value).__qualname__}: {value!r}")


def _encoded_tensor(tensor: torch.Tensor) -> _Tensor:
    dense = tensor.detach().cpu()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    dense = dense.resolve_conj().resolve_neg().contiguous()
    parts = torch.view_as_real(dense) if dense.is_complex() else dense
    return _Tensor(
        dtype=str(dense.dtype).removeprefix("torch."),
        shape=tuple(dense.shape),
        data=parts.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b"",
    )


def _decoded(value: _Tensor | _Value | _Text) -> Any:
    match value:
        case _Tensor(dtype=dtype, shape=shape, data=data):
            kind: torch.dtype = getattr(torch, dtype)
            if not data:
                return torch.empty(shape, dtype=kind)
            return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
        case _Value(value=plain):
            return plain
        case _Text(text=text):
            return text
