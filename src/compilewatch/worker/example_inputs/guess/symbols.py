"""The sizes that a model names: in its attributes, in docstrings, and as names of dimensions."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from compilewatch.worker.example_inputs.guess.uses import words
from compilewatch.worker.example_inputs.guess.values import Guess

SIDES = (64, 224)
"""Height and width of an image whose size nothing names: a small one, and the usual one."""

FRAMES = 16

SECOND = 16000
"""Samples of a second of sound, if the model does not name its rate."""

SPEECH_FRAMES = 100
"""Frames of features in a second of speech."""

RATES = ("sample_rate", "samplerate", "sampling_rate")

SOUND = re.compile(
    r"(?<![a-zA-Z])(wavs?|waveforms?|audios?|speech|sounds?|mix|mixtures?|music|noisy)(?![a-zA-Z])",
    re.I,
)
"""A word in the name of an argument or the documentation of a module that takes sound."""

NODES, EDGES = 16, 32
"""Sizes of a graph."""

_BATCH = words("b n bs bsz batch batch_size batchsize nbatch num_batches bb bsize _n")
_CHANNELS = words("c ch cin c_in channel channels in_channels n_channels num_channels in_chans cc")
_SPATIAL = words("h w height width hh ww ht wd side img_size image_size h_ w_ img_h img_w")
_FRAMES = frozenset(["f", "t", "frames", "num_frames", "n_frames", "frame"])
_WIDTH = words(
    "d e dim dims f feat feats features d_model embed_dim hidden hidden_size emb emb_dim "
    "embedding c_in input_dim in_dim in_features n_features num_features n_feats nvars "
    "n_vars n_feat"
)

IMAGE_SIZES = ("input_size", "image_size", "img_size", "sample_size", "input_resolution", "img_dim")
CHANNELS = (
    "audio_channels",
    "nb_channels",
    "in_channels",
    "in_chans",
    "num_channels",
    "channels",
    "input_channels",
    "n_channels",
    "in_ch",
    "nc_in",
)
CONFIGURATIONS = ("default_cfg", "pretrained_cfg", "config", "hparams", "cfg", "args")
WIDTHS = (
    "d_model",
    "input_dim",
    "in_dim",
    "in_features",
    "input_size",
    "embed_dim",
    "dim",
    "hidden_size",
    "n_features",
)


@dataclass(frozen=True)
class Sizes:
    """The sizes of one model; `dims` of the same name are always equal.

    `rate` is the number of samples in a second of sound, None for a model that takes no sound.
    """

    module: nn.Module
    batch: int = 2
    sequence: int = 32
    nodes: int = NODES
    rate: int | None = None

    @property
    def image(self) -> tuple[int, ...] | None:
        """Channels, height and width that the model or its configuration names; or the last two."""
        for name in IMAGE_SIZES:
            for value in self.named(name):
                sizes = _numbers(value)
                if len(sizes) == 1 and sizes[0] >= 8 and name != "input_size":
                    return (sizes[0], sizes[0])
                if len(sizes) > 1 and all(size > 0 for size in sizes):
                    return sizes
        return None

    @property
    def channels(self) -> int:
        image = self.image
        if image is not None and len(image) == 3 and image[0] < 32:
            return image[0]
        for name in CHANNELS:
            for value in self.named(name):
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return 3

    @property
    def width(self) -> int | None:
        for name in WIDTHS:
            for value in self.named(name, depth=0):
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return None

    def number(self, *names: str) -> int | None:
        """Return an integer that the model itself names so, or in other letters (`D` for `d`)."""
        for spelling in (*names, *(name.lower() for name in names)):
            for value in self.named(spelling, depth=0):
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return None

    def signal(self, channels: int) -> Iterator[tuple[int, ...]]:
        """Yield lengths of a signal: at least a second of sound or of features of speech."""
        if self.rate is not None:
            yield (self.rate if channels <= 2 else SPEECH_FRAMES,)
        yield from ((64,), (1024,), (SECOND,))

    def spatial(self, rank: int) -> Iterator[tuple[int, ...]]:
        """Yield sizes of an image, volume or video, those that the model names first."""
        image = self.image
        if image is not None:
            known = image[-rank:] if len(image) >= rank else (image[-1],) * rank
            yield known if rank == 2 or len(image) >= rank else (FRAMES, *image[-2:])
            if rank == 3:
                yield (image[-1],) * 3
        if rank == 3:
            yield from (
                (8, 64, 64),
                (32, 32, 32),
                (64, 64, 64),
                (FRAMES, 112, 112),
                (FRAMES, 224, 224),
            )
        else:
            yield from ((side, side) for side in SIDES)

    def of_dims(self, dims: tuple[str, ...], width: int | None = None) -> Iterator[Guess]:
        """Yield tensors with dimensions of these names; `width` is what a layer takes of each."""
        sides: tuple[int | None, ...] = (None, *SIDES)
        seen: set[tuple[int, ...]] = set()
        for side in sides:
            shape = tuple(self._dim(dim, i, len(dims), side, width) for i, dim in enumerate(dims))
            if self.rate is not None and (len(shape) == 2 or (len(shape) == 3 and shape[1] <= 2)):
                shape = (*shape[:-1], self.rate)
            if shape not in seen:
                seen.add(shape)
                yield Guess(shape=shape)

    def _dim(self, dim: str, index: int, rank: int, side: int | None, width: int | None) -> int:
        factors = [f.strip() for f in re.split(r"[*x×]", dim) if f.strip()] if "*" in dim else [dim]
        if len(factors) > 1:
            return self._product(factors, side)
        word = dim.strip("`'\" _").lower()
        if word.isdigit():
            return int(word)
        if word in _BATCH and (index == 0 or word != "n"):
            return self.batch
        if word in _SPATIAL or (word == "d" and rank == 5):
            return self._side(side)
        if word in _CHANNELS:
            return width if width is not None and rank == 3 else self.channels
        if word in _FRAMES and rank == 5:
            return self.number("frames", "num_frames") or 8
        named = self.number(dim.strip("`'\" "))
        if named is not None:
            return named
        if index == 0:
            return self.batch
        if word in _WIDTH or index == rank - 1:
            return width or self.width or (self.sequence if rank == 2 else 64)
        return self.number("seq_len") or self.sequence

    def _product(self, factors: list[str], side: int | None) -> int:
        """A size such as `h*16`: a multiple of 16 near the side of the image."""
        known = 1
        names = []
        for factor in factors:
            if factor.isdigit():
                known *= int(factor)
            else:
                names.append(factor.lower())
        if any(name in _BATCH for name in names):
            return self.batch * known
        length = not any(name in _SPATIAL for name in names)
        length_or_side = (
            self._side(side) if not length else (self.number("seq_len") or self.sequence)
        )
        if any(name in _FRAMES for name in names):
            length_or_side = 8
        return max(known, length_or_side // known * known)

    def _side(self, side: int | None) -> int:
        image = self.image
        return side or (image[-1] if image is not None else SIDES[0])

    def named(self, name: str, depth: int = 2) -> Iterator[Any]:
        """Yield the values of an attribute, of the module first, then of those that it contains."""
        for module in _near(self.module, depth):
            for holder in (module, *_configurations(module)):
                value = holder.get(name) if isinstance(holder, Mapping) else _own(holder, name)
                if value is not None:
                    yield value


def rate_of(module: nn.Module, arguments: Iterable[str]) -> int | None:
    """Return the samples in a second if a module takes sound, by its own words; otherwise None."""
    rates = [rate for name in RATES for rate in Sizes(module=module).named(name)]
    texts = (*arguments, inspect.getdoc(type(module)), inspect.getdoc(module.forward))
    if not rates and not any(SOUND.search((text or "").replace("_", " ")) for text in texts):
        return None
    return next((rate for rate in rates if isinstance(rate, int) and rate > 0), SECOND)


def _own(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  (whatever a property of the module raises)
        return None


def _configurations(module: nn.Module) -> Iterator[Any]:
    for name in CONFIGURATIONS:
        configuration = _own(module, name)
        if isinstance(configuration, Mapping) or hasattr(configuration, "__dict__"):
            yield configuration


def _near(module: nn.Module, depth: int) -> Iterator[nn.Module]:
    """Yield a module and those below it, level by level."""
    queue = deque([(module, 0)])
    while queue:
        current, level = queue.popleft()
        yield current
        if level < depth:
            queue.extend((child, level + 1) for child in current.children())


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    sequence = isinstance(value, list | tuple) and 0 < len(value) <= 3
    if sequence and all(
        isinstance(number, int) and not isinstance(number, bool) for number in value
    ):
        return tuple(value)
    return ()
