"""What one argument may be, from what the model says about it: its layers, attributes and names.

`SOURCES` is the table of kinds of evidence, `_shapes` says what a layer takes, and the tables of
names are the vocabulary: what arguments and attributes of common names are. Another kind of
evidence, layer or name is one more row.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.files import attributes_object
from compilewatch.worker.example_inputs.guess.reading import Path, Uses

# --- values: what is guessed for a call -----------------------------------------------------------

Where = tuple[Any, ...]
"""Where a tensor is in a call: the argument, then keys, positions or attributes."""

Call = Mapping[str, Any]
"""An argument -> its `Guess`, a container of them, a ready tensor, or another value."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """One tensor: `normal`, `integers` in [0, high), `true` (a mask), or `segments` (sorted ids).

    `lengths` are those of a full row and of a padded one, up to `high`. `why` says what it was
    derived from, for a person who reads the error of a wrong guess.
    """

    shape: tuple[int, ...]
    fill: str = "normal"
    high: int = 2
    why: str = ""

    def resized(self, *shape: int) -> Guess:
        return replace(self, shape=shape)


class Attributes(dict[str, Any]):
    """The attributes of an object, such as a graph of PyTorch Geometric."""


def leaves(value: Any, where: Where = ()) -> Iterator[tuple[Where, Guess]]:
    """Yield the tensors of a nested value with their places."""
    if isinstance(value, Guess):
        yield where, value
    elif isinstance(value, Mapping | list | tuple):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in entries:
            yield from leaves(inner, (*where, key))


def changed(value: Any, where: Where, new: Any) -> Any:
    """Return a nested value with another value in one place, which may be a new key."""
    if not where:
        return new
    first, *below = where
    if isinstance(value, Mapping):
        kind = Attributes if isinstance(value, Attributes) else dict
        return kind({**value, first: changed(value.get(first), tuple(below), new)})
    return type(value)(
        changed(v, tuple(below), new) if i == first else v for i, v in enumerate(value)
    )


def tensors(ctx: Context, name: str, value: Any) -> Any:
    """Return a nested value with real tensors, drawn with the seeds of their places."""
    if isinstance(value, Guess):
        return _tensor(ctx, name, value)
    if isinstance(value, Mapping):
        values = {k: tensors(ctx, f"{name}.{k}", v) for k, v in value.items()}
        return attributes_object(values) if isinstance(value, Attributes) else values
    if isinstance(value, list | tuple):
        return type(value)(tensors(ctx, f"{name}[{i}]", v) for i, v in enumerate(value))
    return value


def _tensor(ctx: Context, name: str, guess: Guess) -> torch.Tensor:
    shape, high = guess.shape, guess.high
    match guess.fill:
        case "integers":
            return ctx.integers(name, 0, high, *shape)
        case "true":
            return torch.ones(shape, dtype=torch.bool)
        case "ones":
            return torch.ones(shape, dtype=ctx.dtype)
        case "lengths":
            return torch.linspace(high, high // 2, shape[0]).long()
        case "segments":
            return torch.arange(shape[0]) * high // max(shape[0], 1)
    return ctx.normal(name, *shape)


def described(call: Call) -> tuple[str, ...]:
    """Say what was guessed, a line for each tensor; nothing for a call without one."""
    types = {"normal": "float", "ones": "float", "true": "bool"}
    guessed = [
        f"{where[0]}{''.join(f'[{step!r}]' for step in where[1:])} {list(guess.shape)} "
        f"{types.get(guess.fill, 'int64')}" + (f" ({guess.why})" if guess.why else "")
        for where, guess in leaves(call)
    ]
    ready = [
        f"{name} {list(tensor.shape)} (a tensor of the model, or of a rule for its name)"
        for name, value in call.items()
        for tensor in tree_leaves(value)
        if isinstance(tensor, torch.Tensor)
    ]
    return (*guessed, *ready)


# --- sizes: what the attributes of a model say ----------------------------------------------------

SIDES = (64, 224)
"""Height and width of an image whose size nothing names: a small one, and the usual one."""

VOLUMES = ((8, 64, 64), (32, 32, 32), (64, 64, 64), (16, 112, 112), (16, 224, 224))
"""Sizes of volumes and videos whose size nothing names."""

FRAMES = 16

SECOND = 16000
"""Samples of a second of sound, if the model does not name its rate."""

SPEECH_FRAMES = 100
"""Frames of features in a second of speech."""

NODES, EDGES = 16, 32
"""Sizes of a graph."""

IMAGE_SIZES = ("input_size", "image_size", "img_size", "sample_size", "input_resolution", "img_dim")
CHANNELS = (
    *("audio_channels", "nb_channels", "in_channels", "in_chans", "num_channels", "channels"),
    *("input_channels", "n_channels", "in_ch", "nc_in"),
)
RATES = ("sample_rate", "samplerate", "sampling_rate")
CONFIGURATIONS = ("default_cfg", "pretrained_cfg", "config", "hparams", "cfg", "args")
"""Names of attributes with the sizes of what a model takes, and of objects that have them."""

SOUND = re.compile(
    r"(?<![a-zA-Z])(wavs?|waveforms?|audios?|speech|sounds?|mix|mixtures?|music|noisy)(?![a-zA-Z])",
    re.I,
)
"""A word in the name of an argument or the documentation of a module that takes sound."""


class Model:
    """What a model says: the sizes that it names, and what its forward does with its arguments.

    A text has `length` tokens, or as many as a second of speech has frames, or else `tokens`.
    """

    def __init__(
        self,
        module: nn.Module,
        arguments: Iterable[str] = (),
        uses: Mapping[Path, Uses] | None = None,
        *,
        batch: int = 2,
        length: int | None = None,
        tokens: int = 32,
    ) -> None:
        self.module = module
        self.arguments = frozenset(arguments)
        self.uses = uses or {}
        self.batch = batch
        self._length = length
        self._tokens = tokens

    @property
    def is_graph(self) -> bool:
        """Whether the arguments are nodes and edges."""
        return bool(GRAPH & self.arguments) or {"z", "pos"} <= self.arguments

    @cached_property
    def rate(self) -> int | None:
        """Samples in a second if the model takes sound, by its own words; otherwise None."""
        rates = [rate for name in RATES for rate in self.named(name)]
        module = self.module
        texts = (*self.arguments, inspect.getdoc(type(module)), inspect.getdoc(module.forward))
        if not rates and not any(SOUND.search((text or "").replace("_", " ")) for text in texts):
            return None
        return next(filter(_is_size, rates), SECOND)

    @cached_property
    def sequence(self) -> int:
        if self._length is not None:
            return self._length
        spoken = self.rate is not None or any(re.fullmatch(LENGTHS, n) for n in self.arguments)
        return SPEECH_FRAMES if spoken else self._tokens

    @property
    def image(self) -> tuple[int, ...] | None:
        """Channels, height and width that the model or its configuration names; or the last two."""
        for name in IMAGE_SIZES:
            for value in self.named(name):
                sizes = tuple(value) if isinstance(value, list | tuple) else (value,)
                if not 0 < len(sizes) <= 3 or not all(map(_is_size, sizes)):
                    continue
                if len(sizes) > 1:
                    return sizes
                if sizes[0] >= 8 and name != "input_size":
                    return (sizes[0], sizes[0])
        return None

    @property
    def channels(self) -> int:
        image = self.image
        if image is not None and len(image) == 3 and image[0] < 32:
            return image[0]
        return self.number(*CHANNELS, depth=2) or 3

    def number(self, *names: str, depth: int = 0) -> int | None:
        """Return the first size that the model, or a module within `depth`, names so."""
        values = (value for name in names for value in self.named(name, depth))
        return next(filter(_is_size, values), None)

    def spatial(self, rank: int, channels: int = 3) -> Iterator[tuple[int, ...]]:
        """Yield sizes of a signal, an image, or a volume or video: first those the model names.

        A signal has at least a second of sound (of up to two channels) or of features of speech.
        """
        if rank == 1:
            if self.rate is not None:
                yield (self.rate if channels <= 2 else SPEECH_FRAMES,)
            yield from ((64,), (1024,), (SECOND,))
            return
        if (image := self.image) is not None:
            known = image[-rank:] if len(image) >= rank else (image[-1],) * rank
            yield known if rank == 2 or len(image) >= rank else (FRAMES, *image[-2:])
            if rank == 3:
                yield (image[-1],) * 3
        yield from VOLUMES if rank == 3 else ((side, side) for side in SIDES)

    def named(self, name: str, depth: int = 2) -> Iterator[Any]:
        """Yield the values of an attribute, of the module first, then of those that it contains."""
        queue = deque([(self.module, 0)])
        while queue:
            module, level = queue.popleft()
            for holder in (module, *(_attribute(module, of) for of in CONFIGURATIONS)):
                is_table = isinstance(holder, Mapping)
                value = holder.get(name) if is_table else _attribute(holder, name)
                if value is not None:
                    yield value
            if level < depth:
                queue.extend((child, level + 1) for child in module.children())


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  (whatever a property of the module raises)
        return None


# --- layers: the tensors that a layer takes, by its class -----------------------------------------

_ODD = (AttributeError, TypeError, IndexError, ValueError, StopIteration)
"""Of a class of another library with a familiar base and attributes of its own."""


def _shapes(layer: Any, position: int, model: Model) -> Iterable[tuple[int, ...]] | None:
    """The shapes of the argument in a position of a layer, None for an unknown one."""
    batch, tokens = model.batch, model.sequence
    match layer:
        case nn.Embedding() | nn.EmbeddingBag():
            return (batch, tokens), (batch,)
        case nn.Conv1d() | nn.ConvTranspose1d():
            return _spatial(1, layer.in_channels, model)
        case nn.Conv2d() | nn.ConvTranspose2d():
            return _spatial(2, layer.in_channels, model)
        case nn.Conv3d() | nn.ConvTranspose3d():
            return _spatial(3, layer.in_channels, model)
        case nn.MultiheadAttention():
            widths = (layer.embed_dim, layer.kdim, layer.vdim, layer.embed_dim)
            return ((batch, tokens, widths[min(position, 3)]),)
        case (
            nn.TransformerEncoderLayer()
            | nn.TransformerDecoderLayer()
            | nn.TransformerEncoder()
            | nn.TransformerDecoder()
            | nn.Transformer()
        ):
            attention = next(m for m in layer.modules() if isinstance(m, nn.MultiheadAttention))
            return ((batch, tokens, attention.embed_dim),)
        case nn.RNNBase():
            return ((batch, tokens, layer.input_size),)
        case nn.RNNCellBase():
            return ((batch, layer.hidden_size if position else layer.input_size),)
        case nn.Bilinear():
            return ((batch, layer.in2_features if position % 2 else layer.in1_features),)
        case nn.BatchNorm1d() | nn.InstanceNorm1d():
            return (batch, layer.num_features), *_spatial(1, layer.num_features, model)
        case nn.BatchNorm2d() | nn.InstanceNorm2d():
            return _spatial(2, layer.num_features, model)
        case nn.GroupNorm():
            return _spatial(2, layer.num_channels, model)
        case nn.BatchNorm3d() | nn.InstanceNorm3d():
            return _spatial(3, layer.num_features, model)
        case nn.LayerNorm() | nn.RMSNorm():
            shape = layer.normalized_shape
            own = (batch, *shape)
            return ((batch, tokens, shape[0]), own) if len(shape) == 1 else (own,)
        case nn.Linear():
            width = layer.in_features or tokens  # 0: a lazy layer
            return (batch, width), (batch, tokens, width)
    return None


def _spatial(rank: int, channels: int, model: Model) -> Iterator[tuple[int, ...]]:
    channels = channels or model.channels  # 0: a lazy layer
    for spatial in model.spatial(rank, channels):
        yield (model.batch, channels, *spatial)


def is_known(layer: Any) -> bool:
    """Whether it is known what a layer takes."""
    try:
        return _shapes(layer, 0, Model(layer, length=1)) is not None
    except _ODD:
        return True


def taken_by(
    layer: Any, position: int, model: Model, changes: frozenset[str] = frozenset()
) -> Iterator[Guess]:
    """Yield what a layer may get as its argument, before the `changes` that the forward makes."""
    try:
        for shape in list(_shapes(layer, position, model) or ()):
            if "transposed" in changes and len(shape) == 3:
                shape = (shape[0], shape[2], shape[1])
            if "unsqueezed" in changes and len(shape) > 2:
                shape = (shape[0], *shape[2:])
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
                yield _ids(layer.num_embeddings, *shape)
            else:
                yield Guess(shape=shape)
    except _ODD:
        return


# --- names: what arguments of common names are, where nothing else says it ------------------------

LENGTHS = r"(\w*_)?(lengths|lens)"
"""An argument that says how much of each row of a batch is no padding."""

GRAPH = frozenset({"edge_index", "edge_attr", "edge_weight", "adj_t"})
"""Arguments of a graph: its rows are nodes and edges."""

MEDIA = re.compile(
    r"(input_|text_)?(ids|tokens)|texts?|captions?|(\w*_)?(images?|imgs?|pixel_values|videos?)"
    r"|audios?|wavs?|waveforms?|speech|input_(features|values)|mels?|spectrograms?",
    re.IGNORECASE,
)
"""An argument that a user gives although a forward runs without it."""

FEATURE_SEQUENCES = re.compile(r"(\w*_)?(hidden_states|context|embeds|memory|sequence)")
"""Features of tokens: their axis is in the tensor although a linear layer needs none."""


def _ids(high: int, *shape: int) -> Guess:
    return Guess(shape=shape, fill="integers", high=high)


def _nodes(arg: Argument) -> Iterator[Guess]:
    for guess in arg.of_layers():
        yield guess.resized(NODES, *guess.shape[-1:])
    yield Guess(shape=(NODES, arg.model.number("in_channels", "in_feats") or 16))
    yield _ids(10, NODES)


def _edge_features(arg: Argument) -> Iterator[Guess]:
    for guess in arg.of_layers():
        yield guess.resized(EDGES, *guess.shape[1:])
    yield Guess(shape=(EDGES, arg.model.number("edge_dim", "edge_channels") or 8))
    yield Guess(shape=(EDGES,))


def _lengths(arg: Argument) -> list[Guess]:
    full = Guess(shape=(arg.model.batch,), fill="lengths", high=arg.model.sequence)
    return [full, _ids(8, arg.model.batch)]


def _token_ids(arg: Argument) -> list[Guess]:
    batch, tokens = arg.model.batch, arg.model.sequence
    ids = _ids(arg.model.number("num_tokens", "vocab_size") or 10, batch, tokens)
    return [ids, Guess(shape=(batch, tokens, 64))]


def _images(arg: Argument) -> Iterator[Guess]:
    return (Guess(shape=shape) for shape in _spatial(2, arg.model.channels, arg.model))


def _videos(arg: Argument) -> Iterator[Guess]:
    batch, channels, volumes = arg.model.batch, arg.model.channels, [*arg.model.spatial(3)]
    yield from (Guess(shape=(batch, channels, *volume)) for volume in volumes)
    yield from (Guess(shape=(batch, frames, channels, *side)) for frames, *side in volumes)


def _waveforms(arg: Argument) -> list[Guess]:
    samples = arg.model.rate or SECOND
    return [Guess(shape=(arg.model.batch, *channels, samples)) for channels in ((), (1,), (2,))]


Names = dict[str, Callable[["Argument"], Iterable[Any]]]
"""Patterns of the name of an argument -> what it may be. The first that fits counts."""

STRONG_NAMES: Names = {
    r"(\w+_)?edge_index|edges|adj_t": lambda _: [_ids(NODES, 2, EDGES)],
    r"edge_types?|rel_types?": lambda _: [_ids(2, EDGES)],
    r"num_nodes": lambda _: [NODES],
    LENGTHS: _lengths,
}
"""Names that say more than the layers that take the argument."""

GRAPH_NAMES: Names = {
    r"edge_(attr|feat\w*|features)": _edge_features,
    r"edge_weights?": lambda _: [Guess(shape=(EDGES,), fill="ones")],
    r"batch(_index)?": lambda arg: [Guess(shape=(NODES,), fill="segments", high=arg.model.batch)],
    r"pos|coords?": lambda _: [Guess(shape=(NODES, 3))],
    r"z|atomic_numbers?": lambda _: [_ids(10, NODES)],
    r"x|h|node_feat\w*|feats?|features": _nodes,
}
"""Names that do so beside edges only."""

NAMES: Names = {
    r"(\w*_)?masks?": lambda arg: [Guess(shape=(arg.model.batch, arg.model.sequence), fill="true")],
    r"t|ts|times?|time_?steps?|steps?|sigmas?|noise_levels?|noise_labels": lambda arg: [
        _ids(10, arg.model.batch),
        Guess(shape=(arg.model.batch,)),
    ],
    r"(\w*_)?(length|len)": _lengths,
    r"(class_)?labels?|classes|y|target_classes|class_ids": lambda arg: [_ids(2, arg.model.batch)],
    r"(\w*_)?(ids|idx|tokens?|texts?|captions?)|toks|indices|items?": _token_ids,
    r"(\w*_)?(images?|imgs?|pixel_values|pictures?|pixels)\d?|im\d?": _images,
    r"(\w*_)?(videos?|clips?|frames)|vid": _videos,
    r"(\w*_)?(wavs?|waveforms?|audios?|speech|signal|mix\w*)": _waveforms,
    r"src|tgt|source|trg|query|key|value|queries|keys|values|q|k|v|context|memory": lambda arg: (
        _token_ids(arg)[::-1]
    ),
}


def _named(arg: Argument, names: Names) -> Iterable[Any]:
    fits = (v for pattern, v in names.items() if re.fullmatch(pattern, arg.word, re.IGNORECASE))
    values = next(fits, None)
    return values(arg) if values is not None else ()


# --- arguments: all evidence together -------------------------------------------------------------

MOST = 8
"""How many values of one argument are tried."""

IMAGES = 2
"""How many images a list of images has."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of a forward, or a part of one (`batch["image"]`): then it has no parameter."""

    path: Path
    model: Model
    parameter: inspect.Parameter | None = None

    @property
    def word(self) -> str:
        """Its own name: `image` of `batch["image"]`."""
        return self.path[-1].strip("[].<>*")

    @property
    def own(self) -> Uses:
        return self.model.uses.get(self.path, Uses())

    @property
    def required(self) -> bool:
        return self.parameter is not None and self.parameter.default is self.parameter.empty

    @property
    def annotation(self) -> str:
        annotation = self.parameter.annotation if self.parameter is not None else None
        if annotation is None or annotation is inspect.Parameter.empty:
            return ""
        if isinstance(annotation, str):
            return annotation
        return getattr(annotation, "__name__", "") + str(annotation)

    def of_layers(self) -> Iterator[Guess]:
        """Yield what the layers take that get this argument, the first layer first."""
        for layer, position, changes in self.own.layers[:3]:
            for guess in taken_by(layer, position, self.model, changes):
                yield replace(guess, why=f"the layer {type(layer).__name__}")

    def part(self, part: str) -> Argument:
        return replace(self, path=(*self.path, part), parameter=None)

    def values(self) -> list[Any]:
        """The values to try, without repetitions; those of a rank that the forward shows first."""
        values: list[Any] = []
        for source in SOURCES:
            for value in islice(source(self), MOST):
                if value not in values:
                    values.append(value)
        ranks = self.own.ranks
        if ranks:
            values.sort(key=lambda v: isinstance(v, Guess) and len(v.shape) not in ranks)
        return values[:MOST]

    def first(self) -> Any:
        """The most likely value, None if there is none."""
        return next(iter(self.values()), None)


def _of_strong_name(arg: Argument) -> Iterable[Any]:
    owners = (arg.model.uses.get(arg.path[:i], Uses()) for i in range(1, len(arg.path)))
    graph = arg.model.is_graph or any(".edge_index" in owner.parts for owner in owners)
    return _named(arg, STRONG_NAMES | GRAPH_NAMES if graph else STRONG_NAMES)


def _of_parts(arg: Argument) -> Iterator[Any]:
    """A dictionary of the keys that are read, an object with attributes, or a list."""
    parts = arg.own.parts
    kinds = {part[0] for part in parts}
    if "[" in kinds:
        keys = [p for p in parts if p[0] == "[" and p not in arg.own.optional_parts]
        entries = {part[1:-1]: arg.part(part).first() for part in keys}
        yield entries  # without keys: what it needs is known once the forward misses it
        # Parts that are only handed on, or that the forward checks, may be None.
        used = {part[1:-1] for part in keys if arg.part(part).own.is_used}
        if used and used != set(entries):
            yield {name: value if name in used else None for name, value in entries.items()}
    elif "." in kinds:
        yield Attributes({part[1:]: arg.part(part).first() for part in parts if part[0] == "."})
    elif "<" in kinds:
        yield from _lists(arg)


def _lists(arg: Argument) -> Iterator[Any]:
    for value in islice(arg.part("<*>").values(), 2):
        if isinstance(value, Guess) and len(value.shape) == 4:
            value = value.resized(*value.shape[1:])  # an image of the list, without a batch
        yield [value] * IMAGES
    for side in arg.model.spatial(2):
        yield [Guess(shape=(arg.model.channels, *side), why="a list of images")] * IMAGES


def _of_type(arg: Argument) -> Iterator[Any]:
    """A value of the annotated type, if that is no tensor."""
    text = arg.annotation.lower()
    if re.match(r"(optional\[)?dict|mapping", text):
        yield {}  # its keys are known once the forward misses them
    elif re.search(r"(list|sequence)\[.*tensor", text):
        yield from _lists(arg)
    elif "tensor" not in text and "tuple" not in text:
        for kind, value in (("bool", False), ("int", arg.model.batch), ("float", 1.0)):
            if re.match(rf"(optional\[)?{kind}\b", text):
                yield value


def _of_layers(arg: Argument) -> list[Guess]:
    """What the first layers take; of features of tokens, those with an axis of tokens first."""
    tokens = FEATURE_SEQUENCES.fullmatch(arg.word) is not None
    return sorted(arg.of_layers(), key=lambda guess: tokens and len(guess.shape) != 3)


def _of_name(arg: Argument) -> Iterator[Any]:
    return (replace(guess, why="its name") for guess in _named(arg, NAMES))


def _of_sound(arg: Argument) -> Iterator[Any]:
    """A second of sound, of as many channels as the model names."""
    channels = arg.model.number("audio_channels", "nb_channels")
    if arg.model.rate is not None and channels is not None and not arg.own.layers:
        shape = (arg.model.batch, channels, arg.model.rate)
        yield Guess(shape=shape, why="its channels of sound")


def _of_first_layer(arg: Argument) -> list[Guess]:
    """What the first layer of the module takes, if the source does not say where arguments go."""
    for layer in arg.model.module.modules() if not arg.own.layers else ():
        if guesses := list(taken_by(layer, 0, arg.model)):
            why = f"the first layer {type(layer).__name__}"
            return [replace(guess, why=why) for guess in guesses]
    return []


def _plain(arg: Argument) -> Iterator[Any]:
    """Tensors of usual shapes, for an argument about which nothing is known."""
    batch, sequence = arg.model.batch, arg.model.sequence
    yield Guess(shape=(batch, sequence), why="a plain tensor")
    for image in _images(arg):
        yield replace(image, why="a plain image")
    if 5 in arg.own.ranks:
        yield Guess(shape=(batch, 8, arg.model.channels, 64, 64), why="a plain video")
    yield replace(_ids(10, batch, sequence), why="plain ids")
    yield Guess(shape=(batch, sequence, 64), why="a plain sequence")


SOURCES: tuple[Callable[[Argument], Iterable[Any]], ...] = (
    _of_strong_name,
    _of_parts,
    _of_type,
    _of_layers,
    _of_name,
    _of_sound,
    _of_first_layer,
    _plain,
)
"""Kinds of evidence, in the order in which they are believed."""
