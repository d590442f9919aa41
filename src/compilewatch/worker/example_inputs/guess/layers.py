"""The tensors that a layer takes, by its class. One row a kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from compilewatch.worker.example_inputs.guess.symbols import Sizes
from compilewatch.worker.example_inputs.guess.uses import pattern_dims
from compilewatch.worker.example_inputs.guess.values import Guess

Shapes = Iterator[Guess]


@dataclass(frozen=True, kw_only=True)
class LayerRow:
    """`takes(layer, position, sizes)` yields what a layer may get as its argument there."""

    kinds: tuple[type, ...] = ()
    names: tuple[str, ...] = ()
    takes: Callable[[Any, int, Sizes], Shapes]


def _ids(layer: Any, _: int, sizes: Sizes) -> Shapes:
    count = int(layer.num_embeddings)
    yield Guess(shape=(sizes.batch, sizes.sequence), fill="integers", high=count)
    yield Guess(shape=(sizes.batch,), fill="integers", high=count)


def _convolution(rank: int) -> Callable[[Any, int, Sizes], Shapes]:
    def takes(layer: Any, _: int, sizes: Sizes) -> Shapes:
        channels = int(layer.in_channels) or sizes.channels  # 0: a lazy layer
        for spatial in sizes.signal(channels) if rank == 1 else sizes.spatial(rank):
            yield Guess(shape=(sizes.batch, channels, *spatial))

    return takes


def features(count: int, sizes: Sizes) -> Shapes:
    """A vector of features for each row, or for each element of a sequence."""
    yield Guess(shape=(sizes.batch, count))
    yield Guess(shape=(sizes.batch, sizes.sequence, count))


def _sequence(count: int, sizes: Sizes) -> Shapes:
    yield Guess(shape=(sizes.batch, sizes.sequence, count))


def _linear(layer: Any, _: int, sizes: Sizes) -> Shapes:
    yield from features(int(layer.in_features) or sizes.sequence, sizes)


def _attention(layer: Any, position: int, sizes: Sizes) -> Shapes:
    width = (layer.embed_dim, layer.kdim, layer.vdim)[position] if position < 3 else layer.embed_dim
    yield from _sequence(int(width), sizes)


def _norm(layer: Any, _: int, sizes: Sizes) -> Shapes:
    shape = getattr(layer, "normalized_shape", None) or tuple(layer.weight.shape)
    if len(shape) == 1:
        yield from _sequence(int(shape[0]), sizes)
    yield Guess(shape=(sizes.batch, *shape))


def _channel_norm(rank: int) -> Callable[[Any, int, Sizes], Shapes]:
    def takes(layer: Any, _: int, sizes: Sizes) -> Shapes:
        channels = int(getattr(layer, "num_features", 0) or getattr(layer, "num_channels", 0))
        if rank == 1:
            yield Guess(shape=(sizes.batch, channels))
        for spatial in sizes.signal(channels) if rank == 1 else sizes.spatial(rank):
            yield Guess(shape=(sizes.batch, channels, *spatial))

    return takes


def _encoder(layer: Any, _: int, sizes: Sizes) -> Shapes:
    attention = next(m for m in layer.modules() if isinstance(m, nn.MultiheadAttention))
    yield from _sequence(int(attention.embed_dim), sizes)


def _recurrent(layer: Any, _: int, sizes: Sizes) -> Shapes:
    yield from _sequence(int(layer.input_size), sizes)


def _cell(layer: Any, position: int, sizes: Sizes) -> Shapes:
    yield Guess(shape=(sizes.batch, int(layer.input_size if not position else layer.hidden_size)))


def _bilinear(layer: Any, position: int, sizes: Sizes) -> Shapes:
    yield Guess(shape=(sizes.batch, int((layer.in1_features, layer.in2_features)[position % 2])))


def _rearranged(layer: Any, _: int, sizes: Sizes) -> Shapes:
    dims = pattern_dims(str(layer.pattern).partition("->")[0], dict(layer.axes_lengths))
    if "..." not in dims:
        yield from sizes.of_dims(dims)


def _message(layer: Any, position: int, sizes: Sizes) -> Shapes:
    """A layer of a graph network: nodes with features, then edges."""
    width = layer.in_channels[0] if isinstance(layer.in_channels, tuple) else layer.in_channels
    if position == 0:
        yield Guess(shape=(sizes.nodes, int(width) if int(width) > 0 else sizes.sequence))


ROWS: tuple[LayerRow, ...] = (
    LayerRow(kinds=(nn.Embedding, nn.EmbeddingBag), takes=_ids),
    LayerRow(kinds=(nn.Conv1d, nn.ConvTranspose1d), takes=_convolution(1)),
    LayerRow(kinds=(nn.Conv2d, nn.ConvTranspose2d), takes=_convolution(2)),
    LayerRow(kinds=(nn.Conv3d, nn.ConvTranspose3d), takes=_convolution(3)),
    LayerRow(kinds=(nn.MultiheadAttention,), takes=_attention),
    LayerRow(
        kinds=(
            nn.TransformerEncoderLayer,
            nn.TransformerDecoderLayer,
            nn.TransformerEncoder,
            nn.TransformerDecoder,
            nn.Transformer,
        ),
        takes=_encoder,
    ),
    LayerRow(kinds=(nn.RNNBase,), takes=_recurrent),
    LayerRow(kinds=(nn.RNNCellBase,), takes=_cell),
    LayerRow(kinds=(nn.Bilinear,), takes=_bilinear),
    LayerRow(kinds=(nn.BatchNorm1d, nn.InstanceNorm1d), takes=_channel_norm(1)),
    LayerRow(kinds=(nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm), takes=_channel_norm(2)),
    LayerRow(kinds=(nn.BatchNorm3d, nn.InstanceNorm3d), takes=_channel_norm(3)),
    LayerRow(kinds=(nn.LayerNorm, nn.RMSNorm), takes=_norm),
    LayerRow(kinds=(nn.Linear,), takes=_linear),
    LayerRow(names=("Rearrange", "Reduce"), takes=_rearranged),
    LayerRow(names=("MessagePassing",), takes=_message),
)
"""In this order, because a layer may be a kind of another one."""


def row_of(layer: Any) -> LayerRow | None:
    """Return the row of a layer, by its class or the name of one of its bases."""
    names = {base.__name__ for base in type(layer).__mro__}
    return next((r for r in ROWS if isinstance(layer, r.kinds) or names & set(r.names)), None)


def is_known(layer: Any) -> bool:
    return row_of(layer) is not None


def taken_by(layer: Any, position: int, changes: frozenset[str], sizes: Sizes) -> Shapes:
    """Yield what an argument may be that a layer, a weight or a functional gets."""
    for guess in _taken(layer, position, sizes):
        shape = guess.shape
        if "transposed" in changes and len(shape) == 3:
            shape = (shape[0], shape[2], shape[1])
        if "unsqueezed" in changes and len(shape) > 2:
            shape = (shape[0], *shape[2:])
        yield guess.resized(*shape)


def _taken(layer: Any, position: int, sizes: Sizes) -> Shapes:
    if isinstance(layer, nn.Parameter):  # x @ weight
        yield from features(layer.shape[0], sizes)
    elif isinstance(layer, tuple):
        name, weight = layer
        if name == "embedding":
            yield Guess(
                shape=(sizes.batch, sizes.sequence), fill="integers", high=int(weight.shape[0])
            )
        elif name == "linear":
            yield from features(weight.shape[1], sizes)
        else:
            rank, channels = weight.dim() - 2, int(weight.shape[1])
            for spatial in sizes.signal(channels) if rank == 1 else sizes.spatial(rank):
                yield Guess(shape=(sizes.batch, channels, *spatial))
    else:
        row = row_of(layer)
        try:
            yield from list(row.takes(layer, position, sizes)) if row is not None else []
        except (AttributeError, TypeError, IndexError, ValueError, KeyError):
            return  # a class of another library with a familiar base and attributes of its own
