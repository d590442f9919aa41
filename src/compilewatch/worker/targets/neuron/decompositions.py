"""The operators that TorchNeuron replaces before its compiler sees a graph.

`data/neuron_decompositions.toml` lists them with their sources. Torch has a decomposition for one
part, and what is needed of the other part is here, written anew: where a forecast has none, the
operator stays, and a graph that fails for it is lowered again without it (`lowering`).
"""

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._ops import OpOverload
from torch.fx import Node

from compilewatch import data, files

Decomposition = Callable[..., Any]
aten = torch.ops.aten


class Replaced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    torch: dict[str, int]
    own: dict[str, int]
    passes: dict[str, str]
    kernels: dict[str, str]


@functools.cache
def _replaced() -> Replaced:
    return files.read_toml(data.NEURON_DECOMPOSITIONS, Replaced)


def handled_by(node: Node) -> str:
    """Return the source that says that TorchNeuron replaces an operator itself; "" if none does.

    Its decomposition of `index_put` raises an error for what is left here with boolean indices.
    """
    target, rows = node.target, _replaced()
    if getattr(target, "namespace", "higher_order") not in ("aten", "higher_order"):
        return ""
    name = getattr(target, "_opname", None) or getattr(target, "__name__", str(target))
    if name in rows.passes:
        return f"{rows.source}, {rows.passes[name]}"
    if name == "index_put" and any(
        index is not None and index.meta["val"].dtype is torch.bool for index in node.args[1]
    ):
        return ""
    if name not in rows.own:
        return ""
    return f"{rows.source}, neuron_dynamo_backend/decompositions.py:{rows.own[name]}"


@functools.cache
def table() -> dict[OpOverload, Decomposition]:
    """Return the decompositions for AOTAutograd."""
    names = (*_replaced().torch, *_replaced().kernels)
    named = (functools.reduce(getattr, name.split("."), aten) for name in names)
    by_torch: dict[OpOverload, Decomposition] = get_decompositions(
        [*named, aten.linalg_vector_norm]
    )
    return by_torch | _OWN


def scalar_tensor(value: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """By `full`: torch-mlir has no lowering for a literal in float64."""
    return torch.full((), value, dtype=dtype, device=device)


def sigmoid_backward(gradient: Tensor, output: Tensor) -> Tensor:
    return gradient * output * (1 - output)


def silu_backward(gradient: Tensor, value: Tensor) -> Tensor:
    sigmoid = value.sigmoid()
    return gradient * sigmoid * (1 + value * (1 - sigmoid))


def embedding_dense_backward(
    gradient: Tensor, indices: Tensor, rows: int, padding: int, by_frequency: bool
) -> Tensor:
    """As a product with one-hot rows, which needs no scatter with repeated indices."""
    flat = indices.reshape(-1, 1)
    hot = (flat == torch.arange(rows, device=indices.device)) & (flat != padding)
    one_hot = hot.to(gradient.dtype)
    if by_frequency:
        one_hot = one_hot / one_hot.sum(0).clamp(min=1)
    return one_hot.t() @ gradient.reshape(flat.shape[0], -1)


def histc(value: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """By comparing each value's bin with all bins. Equal limits are data-dependent: no rule."""
    if min == max:
        return NotImplemented
    flat = value.reshape(-1, 1)
    places = ((flat - min) * (bins / (max - min))).floor().clamp(0, bins - 1)
    inside = (flat >= min) & (flat <= max)
    hit = (places == torch.arange(bins, device=value.device)) & inside
    return hit.sum(0).to(value.dtype)


def index_copy(value: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if value.dim() == 0:
        return source.reshape(())
    shape = [1] * value.dim()
    shape[dim] = -1
    return value.scatter(dim, index.reshape(shape).expand(source.shape), source)


def index_put(
    value: Tensor, indices: list[Tensor | None], put: Tensor, accumulate: bool = False
) -> Tensor:
    """A single mask of booleans and a single value: `where`. Others stay for the compiler."""
    masks = [index for index in indices if index is not None]
    before = indices.index(masks[0]) if len(masks) == 1 else 0  # only None
    if len(masks) != 1 or masks[0].dtype is not torch.bool or put.numel() != 1 or accumulate:
        return NotImplemented
    after = value.dim() - before - masks[0].dim()
    mask = masks[0].reshape(masks[0].shape + (1,) * after)
    return torch.where(mask, put.reshape(()).to(value.dtype), value)


def topk(
    value: Tensor,
    k: int,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> tuple[Tensor, Tensor]:
    """Of another dimension, of the least, or in any order: by the form that torch-mlir has."""
    if largest and sorted and dim in (-1, value.dim() - 1):
        return NotImplemented  # type: ignore[no-any-return]
    moved = value.movedim(dim, -1)
    values, places = torch.topk(moved if largest else -moved, k)
    return (values if largest else -values).movedim(-1, dim), places.movedim(-1, dim)


_OWN: dict[OpOverload, Decomposition] = {
    aten.embedding_dense_backward.default: embedding_dense_backward,
    aten.histc.default: histc,
    aten.index_copy.default: index_copy,
    aten.index_put.default: index_put,
    aten.scalar_tensor.default: scalar_tensor,
    aten.sigmoid_backward.default: sigmoid_backward,
    aten.silu_backward.default: silu_backward,
    aten.topk.default: topk,
}
