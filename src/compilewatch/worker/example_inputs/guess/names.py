"""What arguments of common names are, where nothing else says it. One row a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compilewatch.worker.example_inputs.guess.symbols import (
    EDGES,
    SECOND,
    SPEECH_FRAMES,
    Sizes,
)
from compilewatch.worker.example_inputs.guess.values import Guess

if TYPE_CHECKING:
    from compilewatch.worker.example_inputs.guess.arguments import Argument

CLASSES = 2
"""Labels are below this number, which every classifier has."""

STEPS = 10
"""Steps of a diffusion are below this number."""

NUMBERS = 10
"""Ids of tokens, atoms and relations are below this number if no embedding says more."""


LENGTHS = r"(\w*_)?(lengths|lens)"
"""An argument that says how much of each row of a batch is no padding."""

MEDIA = re.compile(
    r"(input_|text_)?(ids|tokens)|texts?|captions?|(\w*_)?(images?|imgs?|pixel_values|videos?)"
    r"|audios?|wavs?|waveforms?|speech|input_(features|values)|mels?|spectrograms?",
    re.IGNORECASE,
)
"""An argument that a user gives although a forward runs without it."""


@dataclass(frozen=True, kw_only=True)
class Name:
    """`strong`: the name says more than the layers that take the argument. `graph`: only beside
    edges."""

    pattern: str
    makes: Callable[[Argument], Iterator[Any]]
    strong: bool = False
    graph: bool = False


def _edges(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(2, EDGES), fill="integers", high=arg.sizes.nodes)


def _edge_features(arg: Argument) -> Iterator[Any]:
    width = arg.sizes.number("edge_dim", "edge_channels")
    for guess in arg.of_layers():
        yield guess.resized(EDGES, *guess.shape[1:])
    yield Guess(shape=(EDGES, width or 8))
    yield Guess(shape=(EDGES,))


def _edge_values(_: Argument) -> Iterator[Any]:
    yield Guess(shape=(EDGES,), fill="ones")


def _edge_types(arg: Argument) -> Iterator[Any]:
    high = arg.sizes.number("num_relations") or 2
    yield Guess(shape=(EDGES,), fill="integers", high=high)


def _segments(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.nodes,), fill="segments", high=arg.sizes.batch)


def _positions(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.nodes, 3))


def _atoms(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.nodes,), fill="integers", high=NUMBERS)


def _nodes(arg: Argument) -> Iterator[Any]:
    width = arg.sizes.number("in_channels", "in_feats")
    for guess in arg.of_layers():
        yield guess.resized(arg.sizes.nodes, *guess.shape[-1:])
    yield Guess(shape=(arg.sizes.nodes, width or 16))
    yield from _atoms(arg)


def _count(value: Callable[[Sizes], int]) -> Callable[[Argument], Iterator[Any]]:
    return lambda arg: iter((value(arg.sizes),))


def _mask(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.batch, arg.sizes.sequence), fill="true")


def _steps(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.batch,), fill="integers", high=STEPS)
    yield Guess(shape=(arg.sizes.batch,))


def _noise(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.batch,))


def _lengths(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.batch,), fill="lengths", high=arg.sizes.sequence)
    yield Guess(shape=(arg.sizes.batch,), fill="integers", high=8)
    yield Guess(shape=(arg.sizes.batch,), fill="ones")


def _labels(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.batch,), fill="integers", high=CLASSES)


def _ids(arg: Argument) -> Iterator[Any]:
    high = arg.sizes.number("num_tokens", "vocab_size")
    yield Guess(shape=(arg.sizes.batch, arg.sizes.sequence), fill="integers", high=high or NUMBERS)
    yield Guess(shape=(arg.sizes.batch, arg.sizes.sequence, arg.sizes.width or 64))


def _image(arg: Argument) -> Iterator[Any]:
    for side in arg.sizes.spatial(2):
        yield Guess(shape=(arg.sizes.batch, arg.sizes.channels, *side))


def _video(arg: Argument) -> Iterator[Any]:
    for spatial in arg.sizes.spatial(3):
        yield Guess(shape=(arg.sizes.batch, arg.sizes.channels, *spatial))
    for spatial in arg.sizes.spatial(3):
        yield Guess(shape=(arg.sizes.batch, spatial[0], arg.sizes.channels, *spatial[1:]))


def _waveform(arg: Argument) -> Iterator[Any]:
    samples = arg.sizes.rate or SECOND
    yield Guess(shape=(arg.sizes.batch, samples))
    for channels in (1, 2):
        yield Guess(shape=(arg.sizes.batch, channels, samples))


def _spectrogram(arg: Argument) -> Iterator[Any]:
    mels = arg.sizes.number("n_mels", "n_feats", "input_size") or 80
    yield Guess(shape=(arg.sizes.batch, mels, SPEECH_FRAMES))
    yield Guess(shape=(arg.sizes.batch, SPEECH_FRAMES, mels))


def _series(arg: Argument) -> Iterator[Any]:
    length = arg.sizes.number("input_size", "seq_len") or arg.sizes.sequence
    count = arg.sizes.number("n_series", "enc_in") or 1
    yield Guess(shape=(arg.sizes.batch, length, count))
    yield Guess(shape=(arg.sizes.batch, length))


def _columns(arg: Argument) -> Iterator[Any]:
    count = arg.sizes.number("num_continuous", "n_num_features", "num_numerical", "n_cont_features")
    if count is not None:
        yield Guess(shape=(arg.sizes.batch, count))


def _sequence(arg: Argument) -> Iterator[Any]:
    yield Guess(shape=(arg.sizes.batch, arg.sizes.sequence, arg.sizes.width or 64))
    yield from _ids(arg)


NAMES: tuple[Name, ...] = (
    Name(
        pattern=r"(train_pos_|pos_|message_|label_)?edge_index|edges|adj_t",
        makes=_edges,
        strong=True,
    ),
    Name(pattern=r"edge_(attr|feat\w*|features)", makes=_edge_features, strong=True, graph=True),
    Name(pattern=r"edge_weights?", makes=_edge_values, strong=True, graph=True),
    Name(pattern=r"edge_types?|rel_types?", makes=_edge_types, strong=True),
    Name(pattern=r"batch(_index)?", makes=_segments, strong=True, graph=True),
    Name(pattern=r"pos|coords?", makes=_positions, strong=True, graph=True),
    Name(pattern=r"z|atomic_numbers?", makes=_atoms, strong=True, graph=True),
    Name(pattern=r"x|h|node_feat\w*|feat|feats|features", makes=_nodes, strong=True, graph=True),
    Name(pattern=r"num_nodes", makes=_count(lambda s: s.nodes), strong=True),
    Name(pattern=r"batch_size|bs", makes=_count(lambda s: s.batch), strong=True),
    Name(pattern=r"seq_len|length|max_len", makes=_count(lambda s: s.sequence)),
    Name(pattern=r"num_(frames|steps|iters)|iters", makes=_count(lambda _: 2)),
    Name(pattern=r"(\w*_)?(mask|masks|padding_mask)", makes=_mask),
    Name(pattern=r"t|ts|times?|time_?steps?|steps?|noise_level_step", makes=_steps),
    Name(pattern=r"sigmas?|noise_levels?|c_noise|noise_labels", makes=_noise),
    Name(pattern=LENGTHS, makes=_lengths, strong=True),
    Name(pattern=r"(\w*_)?(length|len)", makes=_lengths),
    Name(pattern=r"(class_)?labels?|classes|y|target_classes|class_ids", makes=_labels),
    Name(
        pattern=r"(\w*_)?(input_ids|ids|idx|tokens?|texts?|captions?|token_ids)|toks|indices|items?",
        makes=_ids,
    ),
    Name(pattern=r"src|tgt|source|trg", makes=_sequence),
    Name(pattern=r"(\w*_)?(images?|imgs?|pixel_values|pictures?|pixels)\d?|im\d?", makes=_image),
    Name(pattern=r"(\w*_)?(videos?|clips?|frames)|vid", makes=_video),
    Name(pattern=r"(\w*_)?(wavs?|waveforms?|audios?|speech|signal|mix\w*)", makes=_waveform),
    Name(pattern=r"(\w*_)?(mels?|spectrograms?|specs?|fbanks?)", makes=_spectrogram),
    Name(pattern=r"x_(num|cont)\w*|(continuous|numerical)\w*", makes=_columns, strong=True),
    Name(pattern=r"insample_y|x_enc|past_values|x_dec|series|time_series", makes=_series),
    Name(pattern=r"query|key|value|queries|keys|values|q|k|v|context|memory", makes=_sequence),
)


def named(arg: Argument, *, strong: bool) -> Iterator[Any]:
    """Yield what an argument of this name usually is."""
    for row in NAMES:
        meant = row.strong is strong and (arg.graph or not row.graph)
        if meant and re.fullmatch(row.pattern, arg.word, re.IGNORECASE):
            yield from row.makes(arg)
            return
