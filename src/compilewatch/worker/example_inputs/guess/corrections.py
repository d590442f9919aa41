"""What to change in a call that failed, from its message, the numbers compared and the layer.

`CORRECTIONS` is the table: each row yields calls that may be right where this one was wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from torch import nn

from compilewatch.worker.example_inputs.guess.arguments import Argument
from compilewatch.worker.example_inputs.guess.layers import taken_by
from compilewatch.worker.example_inputs.guess.resizing import resized, with_all, with_rank
from compilewatch.worker.example_inputs.guess.trial import ComparedNumbers, Trial
from compilewatch.worker.example_inputs.guess.values import (
    Attributes,
    Call,
    Guess,
    Where,
    changed,
    leaves,
)

MOST = 14
"""How many corrections of one failure are tried."""


@dataclass(frozen=True, kw_only=True)
class FailedCall:
    """A call that failed; `arguments` are all arguments of the forward, given or not."""

    call: Call
    trial: Trial
    module: nn.Module
    arguments: dict[str, Argument]

    @property
    def layer(self) -> nn.Module | None:
        name = self.trial.layer
        return dict(self.module.named_modules()).get(name) if name is not None else None

    @property
    def argument(self) -> Argument:
        return next(iter(self.arguments.values()))


def corrections(failed: FailedCall) -> Iterator[Call]:
    """Yield calls to try after one that failed, the most likely first."""
    calls: list[Call] = []
    for correct in CORRECTIONS:
        for call in islice(correct(failed), MOST):
            if call not in calls and call != failed.call:
                calls.append(call)
    yield from calls[:MOST]


def _of_missing(failed: FailedCall) -> Iterator[Call]:
    """Give an argument that the forward cannot do without, or a part that it reads."""
    message = failed.trial.message
    absent = [n for n in failed.arguments if failed.call.get(n) is None]
    is_none = "NoneType" in message or "None" in message
    asserted = failed.trial.statement if "None" in failed.trial.statement else ""
    text = f"{message} {asserted}"
    named = [n for n in absent if re.search(rf"\b{re.escape(n)}\b", text)]
    if is_none:
        named += [n for n in failed.trial.missing if n in absent and n not in named]
    for name in named:
        for value in failed.arguments[name].values()[:3]:
            yield {**failed.call, name: value}
    if len(named) > 1:
        yield {**failed.call, **{n: _best(failed.arguments[n]) for n in named}}
    yield from _of_missing_parts(failed)


def _of_missing_parts(failed: FailedCall) -> Iterator[Call]:
    """Add a key or an attribute that the forward misses or that its message names."""
    message = failed.trial.message
    key = re.match(r"KeyError: '(\w+)'", failed.trial.line)
    attribute = re.search(r"has no attribute '(\w+)'", message)
    for name, value in failed.call.items():
        argument = failed.arguments.get(name)
        if argument is None:
            continue
        if isinstance(value, dict):
            known = [p[1:-1] for p in argument.own.parts if p.startswith("[")]
            named = [k for k in known if re.search(rf"\b{re.escape(k)}\b", message)]
            absent = [k for k in dict.fromkeys([key[1]] if key else named) if k not in value]
            parts = {k: argument.part((name, f"[{k}]")) for k in absent}
            for k, part in parts.items():
                for part_value in part.values()[:3]:
                    yield {**failed.call, name: {**value, k: part_value}}
        elif attribute and isinstance(value, Attributes):
            part = argument.part((name, f".{attribute[1]}"))
            yield {**failed.call, name: changed(value, (attribute[1],), _best(part))}


def _best(argument: Argument) -> Any:
    values = argument.values()
    return values[0] if values else None


def _of_layer(failed: FailedCall) -> Iterator[Call]:
    """Give what the layer takes in which the call failed, if it got an argument as it is."""
    layer, shapes = failed.layer, failed.trial.shapes
    if layer is None or not shapes:
        return
    sizes = failed.argument.sizes
    for where, guess in leaves(failed.call):
        if guess.shape != shapes[0]:
            continue
        for taken in islice(taken_by(layer, 0, frozenset(), sizes), 4):
            why = f"the layer {type(layer).__name__}"
            if len(taken.shape) == len(guess.shape) and taken.fill == guess.fill:
                at_feature = 1 if "Conv" in why or "BatchNorm" in why or "GroupNorm" in why else -1
                shape = list(guess.shape)
                shape[at_feature] = taken.shape[at_feature]
                yield _set(failed.call, where, replace(guess, shape=tuple(shape), why=why))
            yield _set(failed.call, where, replace(taken, why=why))


def _of_numbers(failed: FailedCall) -> Iterator[Call]:
    """Change sizes that the model compared with others, or that the message names."""
    for comparison in (*failed.trial.comparisons, *_layer_sizes(failed), *_message_sizes(failed)):
        if comparison.kind == "rank":
            yield from with_rank(failed.call, comparison.have, comparison.want, failed.arguments)
        else:
            yield from resized(
                failed.call, comparison.have, comparison.want, comparison.kind == "multiple"
            )


def _layer_sizes(failed: FailedCall) -> Iterator[ComparedNumbers]:
    layer, shapes = failed.layer, failed.trial.shapes
    if layer is None or not shapes or not shapes[0]:
        return
    shape = shapes[0]
    for name, index in (
        ("in_features", -1),
        ("in_channels", 1),
        ("num_features", 1),
        ("num_channels", 1),
        ("input_size", -1),
        ("embed_dim", -1),
    ):
        want = getattr(layer, name, None)
        there = len(shape) > abs(index) - (index < 0)
        if isinstance(want, int) and want > 0 and there and shape[index] != want:
            yield ComparedNumbers(have=shape[index], want=want)
    normalized = getattr(layer, "normalized_shape", None)
    if normalized and shape[-1] != normalized[-1]:
        yield ComparedNumbers(have=shape[-1], want=int(normalized[-1]))


_PAIRS = (
    r"to have (?P<want>\d+) channels, but got (?P<have>\d+)",
    r"\(\d+x(?P<have>\d+) and (?P<want>\d+)x\d+\)",
    r"same reduction dim, but got \[\d+, (?P<have>\d+)\] X \[(?P<want>\d+), \d+\]",
    r"tensor a \((?P<have>\d+)\) must match the size of tensor b \((?P<want>\d+)\)",
    r"tensor a \((?P<want>\d+)\) must match the size of tensor b \((?P<have>\d+)\)",
    r"[Ee]xpected (?:\w+ )*\(?(?P<want>\d+)\)?,? (?:but )?(?:got|found)\D{0,30}(?P<have>\d+)",
    r"\((?P<have>\d+)\) (?:doesn't|does not) match \w+ \((?P<want>\d+)",
    r"(?i:got) \w*=?\s?(?P<have>\d+),? (?:but )?expected \D{0,20}(?P<want>\d+)",
    r"\[(?:\d+, )*(?P<have>\d+)\]\D{0,40}should be \((?P<want>\d+)",
    r"\[(?P<want>\d+), \d+\],? but should be \((?P<have>\d+)",
    r"contain (?P<want>\d+) elements,? got (?P<have>\d+)",
)
"""Messages with a size that is there and one that is needed."""

_MULTIPLES = re.compile(
    r"(?:divisible by|multiple of|divide axis of length \d+ in chunks of)\D{0,30}(\d+(?:\*\*\d+)?)"
)


def _message_sizes(failed: FailedCall) -> Iterator[ComparedNumbers]:
    message = failed.trial.message
    for pattern in _PAIRS:
        for pair in re.finditer(pattern, message):
            yield ComparedNumbers(have=int(pair["have"]), want=int(pair["want"]))
    for pair in _MULTIPLES.finditer(message):
        base, _, exponent = pair[1].partition("**")
        yield ComparedNumbers(have=0, want=int(base) ** int(exponent or 1), kind="multiple")
    dims = {size for _, guess in leaves(failed.call) for size in guess.shape[1:]}
    numbers = [int(n) for n in re.findall(r"(?<![\w.])\d{1,5}(?![\w.]\d)", message[:400])]
    for have in dict.fromkeys(n for n in numbers if n in dims):
        for want in dict.fromkeys(n for n in numbers if n not in dims and n > 0):
            yield ComparedNumbers(have=have, want=want)


_RANKS: tuple[tuple[str, Callable[[re.Match[str]], tuple[int | None, int]]], ...] = (
    (r"not enough values to unpack \(expected (\d), got (\d)\)", lambda m: (int(m[2]), int(m[1]))),
    (r"too many values to unpack \(expected (\d)\)", lambda m: (None, int(m[1]))),
    (r"\dD \(unbatched\) or (\d)D \(batched\) input", lambda m: (None, int(m[1]))),
    (r"xpected (?:\dD or )?(\d)D input \(got (\d)D input\)", lambda m: (int(m[2]), int(m[1]))),
    (r"expected (\d) dims\. Received (\d)-dim", lambda m: (int(m[2]), int(m[1]))),
    (r"range of \[-(\d), \d\], but got -?\d", lambda m: (int(m[1]), int(m[1]) + 1)),
    (r"too many indices for tensor of dimension (\d)", lambda m: (int(m[1]), int(m[1]) + 1)),
    (r"input\.dim\(\) = (\d) is not equal to len\(dims\) = (\d)", lambda m: (int(m[1]), int(m[2]))),
    (r"(\d)-?[dD](?:imensional)? (?:tensor|input|image)?", lambda m: (None, int(m[1]))),
    (r"(?:ndim|dim\w*|rank)\D{0,12}(\d)", lambda m: (None, int(m[1]))),
)


def _of_ranks(failed: FailedCall) -> Iterator[Call]:
    """Change the number of dimensions that the message is about."""
    for pattern, ranks in _RANKS:
        for sentence in re.finditer(pattern, failed.trial.message):
            have, want = ranks(sentence)
            if 1 <= want <= 5:
                yield from with_rank(failed.call, have, want, failed.arguments)
    of_shape = re.search(r"shape|size", failed.trial.statement)
    if "index out of range" in failed.trial.message and of_shape:
        for _, guess in leaves(failed.call):
            yield from with_rank(
                failed.call, len(guess.shape), len(guess.shape) + 1, failed.arguments
            )


_WANTS_IDS = re.compile(
    r"types: Long, Int|scalar type (Long|Int)|dtype int64|must be long|index tensor"
    r"|Expected dtype int|indices must be|LongTensor|should be of type (long|int)"
    r"|integer(s)? (tensor|type)|one_hot"
)
_WANTS_FLOATS = re.compile(
    r"same dtype|expected m1 and m2|Input type \(|for '(Long|Int|Bool)'"
    r"|could not infer output dtype|expected scalar type (Float|Half)|floating point"
    r"|only Tensors of floating|must be float|result type Float can't be cast"
)
_WANTS_MASKS = re.compile(r"boolean masks?|bool tensors?|type bool|must be bool|dtype bool|Boolean")


def _of_types(failed: FailedCall) -> Iterator[Call]:
    """Change what a tensor contains: ids, numbers or a mask."""
    message = failed.trial.message
    layer = failed.layer
    if _WANTS_IDS.search(message):
        high = int(layer.num_embeddings) if isinstance(layer, nn.Embedding) else 10
        at_layer = failed.trial.shapes[:1]
        floating = [(w, g) for w, g in leaves(failed.call) if g.fill != "integers"]
        floating.sort(key=lambda item: item[1].shape not in at_layer)
        for where, guess in floating:
            yield _set(failed.call, where, replace(guess, fill="integers", high=high))
            if len(guess.shape) > 2:
                shape = guess.shape[:2]
                yield _set(
                    failed.call, where, replace(guess, fill="integers", high=high, shape=shape)
                )
    if _WANTS_FLOATS.search(message):
        yield from _refilled(failed.call, ("integers", "true", "segments"), "normal")
    if _WANTS_MASKS.search(message):
        yield from _refilled(failed.call, ("normal", "integers", "ones"), "true")
    if "index out of range" in message or "out of bounds" in message:
        for high in (2, 1):
            yield with_all(failed.call, partial(_below, high=high))


def _below(guess: Guess, high: int) -> Guess:
    return replace(guess, high=min(guess.high, high))


def _refilled(call: Call, fills: tuple[str, ...], new: str) -> Iterator[Call]:
    for where, guess in leaves(call):
        if guess.fill in fills:
            yield _set(call, where, replace(guess, fill=new))


_SMALL = re.compile(
    r"too small|an't be greater|should be less than|[Ee]xpected more than 1|at least|non-negative"
    r"|must be (greater|larger|positive)|smaller than|negative dimension|numel\(\) == 0"
    r"|negative output|larger than|invalid for input of size|kernel|[Pp]adding|exceed|empty"
)


def _of_small(failed: FailedCall) -> Iterator[Call]:
    """Make images and signals larger."""
    if not _SMALL.search(failed.trial.message):
        return
    for factor in (2, 4, 16):
        yield with_all(failed.call, partial(_larger, factor=factor))
    for side in (64, 96):
        yield with_all(failed.call, partial(_cube, side=side))


def _larger(guess: Guess, factor: int) -> Guess:
    if len(guess.shape) < 3 or guess.fill != "normal":
        return guess
    head = guess.shape[:2]
    return guess.resized(
        *head,
        *(
            min(size * factor, 16384 if len(head) == len(guess.shape) - 1 else 512)
            for size in guess.shape[2:]
        ),
    )


def _cube(guess: Guess, side: int) -> Guess:
    return guess.resized(*guess.shape[:2], side, side, side) if len(guess.shape) == 5 else guess


def _of_containers(failed: FailedCall) -> Iterator[Call]:
    """Give a list where the model iterates, or a tensor where it takes one."""
    message = failed.trial.message
    keys = re.findall(r"\[[\"'](\w+)[\"']\]|[\"'](\w+)[\"'] (?:not )?in ", failed.trial.statement)
    for name, value in failed.call.items():
        if isinstance(value, Guess) and keys:
            yield {**failed.call, name: {}}
        if isinstance(value, Guess) and re.search(r"(?i:list|tuple|sequence)", message):
            inner = value.resized(*value.shape[1:]) if len(value.shape) == 4 else value
            yield {**failed.call, name: [inner, inner]}
            yield {**failed.call, name: [value, value]}
        if isinstance(value, list | tuple) and re.search(
            r"must be Tensor|has no attribute|not list", message
        ):
            first = next(leaves(value), None)
            if first is not None:
                yield {**failed.call, name: first[1]}


def _of_layout(failed: FailedCall) -> Iterator[Call]:
    """Put the features of a sequence before its elements, or after them."""
    sizes = [c.want for c in (*_layer_sizes(failed), *failed.trial.comparisons)]
    for where, guess in leaves(failed.call):
        if len(guess.shape) == 3 and (guess.shape[1] in sizes or guess.shape[2] in sizes):
            yield _set(
                failed.call, where, guess.resized(guess.shape[0], guess.shape[2], guess.shape[1])
            )


def _set(call: Call, where: Where, guess: Guess) -> Call:
    call_changed: Call = changed(call, where, guess)
    return call_changed


Correct = Callable[[FailedCall], Iterator[Call]]

CORRECTIONS: tuple[Correct, ...] = (
    _of_missing,
    _of_layout,
    _of_layer,
    _of_numbers,
    _of_types,
    _of_ranks,
    _of_containers,
    _of_small,
)
"""In the order in which they are tried."""
