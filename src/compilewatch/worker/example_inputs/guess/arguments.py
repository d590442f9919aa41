"""What one argument may be, from everything that the model says about it, the best first.

`SOURCES` is the table: each row yields values from one kind of evidence. A value is a `Guess`, a
container of them, or something that is not a tensor.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from compilewatch.worker.example_inputs.context import Context
from compilewatch.worker.example_inputs.guess.documents import documented_dims
from compilewatch.worker.example_inputs.guess.layers import taken_by
from compilewatch.worker.example_inputs.guess.names import named
from compilewatch.worker.example_inputs.guess.symbols import Sizes
from compilewatch.worker.example_inputs.guess.uses import Path, Uses, paths_below
from compilewatch.worker.example_inputs.guess.values import Attributes, Guess

SEQUENCES = re.compile(r"(\w*_)?(hidden_states|context|embeds|memory|sequence)")
"""Features of tokens: their axis is in the tensor although a linear layer needs none."""

MOST = 8
"""How many values of one argument are tried."""

IMAGES = 2
"""How many images a list of images has."""


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of a forward, or a part of one (`batch["image"]`): then it has no parameter."""

    path: Path
    uses: dict[Path, Uses]
    sizes: Sizes
    ctx: Context
    parameter: inspect.Parameter | None = None
    graph: bool = False

    @property
    def word(self) -> str:
        """Its own name: `image` of `batch["image"]`."""
        return self.path[-1].strip("[].<>*")

    @property
    def own(self) -> Uses:
        return self.uses.get(self.path, Uses())

    @property
    def annotation(self) -> str:
        annotation = self.parameter.annotation if self.parameter is not None else None
        if annotation is None or annotation is inspect.Parameter.empty:
            return ""
        return (
            annotation
            if isinstance(annotation, str)
            else getattr(annotation, "__name__", "") + str(annotation)
        )

    def of_layers(self) -> Iterator[Guess]:
        """Yield what the layers take that get this argument, the first layer first."""
        for layer, position, changes in self.own.layers[:3]:
            for guess in taken_by(layer, position, changes, self.sizes):
                kind = layer[0] if isinstance(layer, tuple) else type(layer).__name__
                yield replace(guess, why=f"the layer {kind}")

    def part(self, path: Path) -> Argument:
        return replace(self, path=path, parameter=None)

    def values(self) -> list[Any]:
        """The values to try, without repetitions."""
        values: list[Any] = []
        for source in SOURCES:
            for value in islice(source(self), MOST):
                if value not in values:
                    values.append(value)
        return values[:MOST]


def _of_parts(arg: Argument) -> Iterator[Any]:
    """A dictionary of the keys that are read, an object with attributes, or a list."""
    below = list(paths_below(arg.uses, arg.path))
    kinds = {path[-1][0] for path, _ in below}
    if "[" in kinds:
        optional = arg.own.optional_parts
        keys = [p for p, _ in below if p[-1][0] == "[" and p[-1] not in optional]
        entries = {path[-1][1:-1]: _first(arg.part(path)) for path in keys}
        if not entries:
            yield {}  # what it needs is known once the forward misses it
        if entries:
            yield entries
            # Parts that are only handed on, or that the forward checks, may be None.
            used = {p[-1][1:-1] for p in keys if _is_used(arg.uses.get(p, Uses()))}
            if used and used != set(entries):
                yield {name: value if name in used else None for name, value in entries.items()}
    elif "." in kinds:
        names = [path for path, _ in below if path[-1][0] == "."]
        graph = any(path[-1] == ".edge_index" for path in names)
        inner = replace(arg, graph=arg.graph or graph)
        yield Attributes({path[-1][1:]: _first(inner.part(path)) for path in names})
    elif any(path[-1] == "<*>" for path, _ in below) and not arg.own.dims:
        item = arg.part((*arg.path, "<*>"))
        if _is_list(arg) or "<*>" in "".join(item.path[-1:]):
            yield from _lists(arg, item)
    elif "<" in kinds:
        places = [path for path, _ in below if path[-1][0] == "<"]
        yield tuple(_first(arg.part(path)) for path in places)


def _is_used(uses: Uses) -> bool:
    return bool(uses.layers or uses.dims or uses.used) and not uses.checked


def _lists(arg: Argument, item: Argument) -> Iterator[Any]:
    for value in islice(item.values(), 2):
        if isinstance(value, Guess) and len(value.shape) == 4:
            value = value.resized(*value.shape[1:])  # an image of the list, without a batch
        yield [value] * IMAGES
    for side in arg.sizes.spatial(2):
        yield [Guess(shape=(arg.sizes.channels, *side), why="a list of images")] * IMAGES


def _is_list(arg: Argument) -> bool:
    return re.search(r"(?i:list|sequence)\[", arg.annotation) is not None


def _of_type(arg: Argument) -> Iterator[Any]:
    """A value of the annotated type, if that is no tensor."""
    text = arg.annotation.lower()
    if re.match(r"(optional\[)?dict|mapping", text):
        yield {}  # its keys are known once the forward misses them
        return
    if not text or "tensor" in text or "tuple" in text:
        if re.search(r"list\[.*tensor|sequence\[.*tensor", text):
            yield from _lists(arg, arg.part((*arg.path, "<*>")))
        return
    for kind, value in (("bool", False), ("int", arg.sizes.batch), ("float", 1.0)):
        if re.match(rf"(optional\[)?{kind}\b", text):
            yield from (v for v in named(arg, strong=False) if isinstance(v, int))
            yield value


def _of_strong_name(arg: Argument) -> Iterator[Any]:
    yield from named(arg, strong=True)


def _of_name(arg: Argument) -> Iterator[Any]:
    for value in named(arg, strong=False):
        yield replace(value, why="its name") if isinstance(value, Guess) else value


def _of_text(arg: Argument) -> Iterator[Any]:
    """A tensor of the dimensions in the model's own documentation."""
    width = _width(arg)
    for dims in islice(_documented(arg), 2):
        for guess in arg.sizes.of_dims(dims, width):
            yield replace(_like_layer(arg, guess), why=f"documented as ({', '.join(dims)})")


def _documented(arg: Argument) -> Iterator[tuple[str, ...]]:
    if len(arg.path) < 3:
        yield from documented_dims(arg.sizes.module, arg.word, arg.annotation)


def _of_layers(arg: Argument) -> Iterator[Any]:
    """What the first layers take; ranks that the forward unpacks or documents come first."""
    ranks = [len(dims) for dims in arg.own.dims or islice(_documented(arg), 1)]
    if not ranks and SEQUENCES.fullmatch(arg.word):
        ranks = [3]
    guesses = list(arg.of_layers())
    guesses.sort(key=lambda guess: bool(ranks) and len(guess.shape) not in ranks)
    matching = [g for g in guesses if not ranks or len(g.shape) in ranks]
    yield from matching
    for dims in arg.own.dims[:2]:
        for guess in arg.sizes.of_dims(dims, _width(arg)):
            yield replace(_like_layer(arg, guess), why=f"read as ({', '.join(dims)})")
    yield from guesses


def _of_first_layer(arg: Argument) -> Iterator[Any]:
    """What the first layer of the module takes, if the source does not say where arguments go."""
    if arg.own.layers:
        return
    for layer in arg.sizes.module.modules():
        guesses = list(taken_by(layer, 0, frozenset(), arg.sizes))
        if guesses:
            why = f"the first layer {type(layer).__name__}"
            yield from (replace(guess, why=why) for guess in guesses)
            return


def _of_image_size(arg: Argument) -> Iterator[Any]:
    """An image of the size that the model names."""
    image = arg.sizes.image
    if image is not None and len(image) >= 2 and len(arg.path) == 1:
        yield Guess(shape=(arg.sizes.batch, arg.sizes.channels, *image[-2:]), why="its image size")


def _plain(arg: Argument) -> Iterator[Any]:
    """Tensors of usual shapes, for an argument about which nothing is known."""
    batch, sequence, width = arg.sizes.batch, arg.sizes.sequence, arg.sizes.width
    if width is not None:
        yield Guess(shape=(batch, sequence, width), why="a width of the model")
        yield Guess(shape=(batch, width), why="a width of the model")
    yield Guess(shape=(batch, sequence), why="a plain tensor")
    yield Guess(shape=(batch, arg.sizes.channels, 64, 64), why="a plain image")
    yield Guess(shape=(batch, sequence), fill="integers", high=10, why="plain ids")
    yield Guess(shape=(batch, sequence, 64), why="a plain sequence")


def _width(arg: Argument) -> int | None:
    """The features or channels that the first layer takes."""
    for guess in arg.of_layers():
        if guess.fill == "normal" and len(guess.shape) > 1:
            layer = arg.own.layers[0][0]
            is_convolution = "Conv" in type(layer).__name__
            return guess.shape[1] if is_convolution else guess.shape[-1]
    return None


def _like_layer(arg: Argument, guess: Guess) -> Guess:
    """The same sizes, but ids if the first layer is an embedding."""
    first = next(arg.of_layers(), None)
    if first is not None and first.fill != "normal":
        return replace(guess, fill=first.fill, high=first.high)
    typed = re.search(r"LongTensor|IntTensor|Int\w*\[", arg.annotation)
    return replace(guess, fill="integers", high=10) if typed else guess


def _first(arg: Argument) -> Any:
    values = arg.values()
    return values[0] if values else None


Source = Callable[[Argument], Iterator[Any]]

SOURCES: tuple[Source, ...] = (
    _of_strong_name,
    _of_parts,
    _of_type,
    _of_layers,
    _of_text,
    _of_name,
    _of_first_layer,
    _of_image_size,
    _plain,
)
"""In the order in which they are believed."""
