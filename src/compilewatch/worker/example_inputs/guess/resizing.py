"""Changes of sizes: what must a tensor be, so that a number that is derived from it is another?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from compilewatch.worker.example_inputs.guess.values import Call, Guess, changed, leaves

LARGEST = 2**24
"""Elements of the largest tensor that is tried."""

TOKENS = (0, 1, 2)
"""How many tokens a model adds to those of an image (a class token, one for distillation)."""


def with_all(call: Call, change: Callable[[Guess], Guess]) -> Call:
    """Return a call with each tensor changed."""
    for where, guess in list(leaves(call)):
        call = changed(call, where, change(guess))
    return call


def resized(call: Call, have: int, want: int, multiple: bool = False) -> Iterator[Call]:
    """Yield calls in which a size `have`, or one that led to it, becomes `want`."""
    for changed_call in _resized(call, have, want, multiple):
        if all(0 < _elements(guess) <= LARGEST for _, guess in leaves(changed_call)):
            yield changed_call


def _resized(call: Call, have: int, want: int, multiple: bool) -> Iterator[Call]:
    if want <= 0:
        return
    if multiple:
        yield from _rounded(call, have, want)
        return
    there = any(have in guess.shape[1:] for _, guess in leaves(call))
    if there:
        yield with_all(call, lambda g: _replaced(g, have, want))
        for where, guess in leaves(call):
            yield changed(call, where, _replaced(guess, have, want))
        yield from _one_by_one(call, have, want)
    if have > 0:
        yield from _scaled(call, have, want)
        yield from _derived(call, have, want)


def _replaced(guess: Guess, have: int, want: int) -> Guess:
    rest = (want if size == have else size for size in guess.shape[1:])
    return guess.resized(*guess.shape[:1], *rest)


def _one_by_one(call: Call, have: int, want: int) -> Iterator[Call]:
    for where, guess in leaves(call):
        for i, size in enumerate(guess.shape):
            if size == have:
                shape = (*guess.shape[:i], want, *guess.shape[i + 1 :])
                yield changed(call, where, guess.resized(*shape))


def _rounded(call: Call, have: int, step: int) -> Iterator[Call]:
    def up(size: int) -> int:
        return max(step, -(-size // step) * step)

    def rounded(guess: Guess, few: bool) -> Guess:
        if len(guess.shape) < 3:
            return guess
        start = 2 if len(guess.shape) > 3 else 1
        rest = (
            up(size) * (1 if few else 2) if have in (0, size) else size
            for size in guess.shape[start:]
        )
        return guess.resized(*guess.shape[:start], *rest)

    yield with_all(call, lambda g: rounded(g, few=True))
    yield with_all(call, lambda g: rounded(g, few=False))
    if have:
        yield with_all(
            call,
            lambda g: g.resized(*g.shape[:1], *(up(s) if s == have else s for s in g.shape[1:])),
        )


def _scaled(call: Call, have: int, want: int) -> Iterator[Call]:
    """Yield images and signals whose area or length grows as the number of their elements must."""
    for extra in TOKENS:
        if have <= extra or want <= extra:
            continue
        ratio = (want - extra) / (have - extra)
        for count in (2, 1, 3):
            factor = ratio ** (1 / count)
            scaled_call = with_all(call, lambda g, f=factor, c=count: _by(g, f, c))  # type: ignore[misc]
            if scaled_call != call:
                yield scaled_call


def _by(guess: Guess, factor: float, count: int) -> Guess:
    if guess.fill != "normal" or len(guess.shape) < 2 + count:
        return guess
    sizes = [size * factor for size in guess.shape[-count:]]
    if any(size > 4096 * 16 or abs(size - round(size)) > 0.02 * max(size, 1) for size in sizes):
        return guess
    return guess.resized(*guess.shape[:-count], *(max(1, round(size)) for size in sizes))


def _derived(call: Call, have: int, want: int) -> Iterator[Call]:
    """Yield sizes of which `have` is a multiple, the sum of two, or a few more."""
    places = list(leaves(call))
    for where, guess in places:
        for i, size in enumerate(guess.shape[1:], start=1):
            new = 0
            if size > 1 and have % size == 0 and want % (have // size) == 0:
                new = want // (have // size)
            elif 0 < have - size <= 4 and want > have - size:
                new = want - (have - size)
            if new:
                shape = (*guess.shape[:i], new, *guess.shape[i + 1 :])
                yield changed(call, where, guess.resized(*shape))
    last = [(where, guess) for where, guess in places if guess.shape and guess.fill == "normal"]
    if len(last) > 1 and sum(g.shape[-1] for _, g in last) == have and want % len(last) == 0:
        changed_call = call
        for where, guess in last:
            changed_call = changed(
                changed_call, where, guess.resized(*guess.shape[:-1], want // len(last))
            )
        yield changed_call


def with_rank(
    call: Call, have: int | None, want: int, arguments: Mapping[str, Any]
) -> Iterator[Call]:
    """Yield calls in which tensors of rank `have` (None: of any other) have rank `want`."""
    places = [
        (where, guess)
        for where, guess in leaves(call)
        if len(guess.shape) == have or (have is None and len(guess.shape) != want)
    ]
    for where, guess in places:
        known = []
        if len(where) == 1 and where[0] in arguments:
            known = [v for v in arguments[where[0]].values() if isinstance(v, Guess)]
        for value in known:
            if len(value.shape) == want:
                yield changed(call, where, value)
        for shape in _shapes(guess, want):
            yield changed(call, where, replace(guess, shape=shape))
    if len(places) > 1:
        changed_call = call
        for where, guess in places:
            changed_call = changed(
                changed_call, where, replace(guess, shape=_shapes(guess, want)[0])
            )
        yield changed_call


def _shapes(guess: Guess, rank: int) -> list[tuple[int, ...]]:
    batch, last = guess.shape[0] if guess.shape else 2, guess.shape[-1] if guess.shape else 32
    few = len(guess.shape) <= rank
    if rank == 1:
        return [(batch,)]
    if rank == 2:
        return [(batch, last), (batch, guess.shape[1] if len(guess.shape) > 1 else last)]
    if rank == 3:
        if not few and len(guess.shape) == 4:
            return [guess.shape[1:], (batch, 32, last)]
        return [(batch, 32, last), (batch, last, 64), (batch, 1, max(last, 64)), (batch, 3, 64)]
    if rank == 4:
        channels = guess.shape[1] if len(guess.shape) == 5 else 3
        return [
            (batch, channels, 64, 64),
            (batch, 1, 64, 64),
            (batch, 8, 32, last),
            (batch, last, 8, 8),
        ]
    return [
        (batch, 3, 16, 64, 64),
        (batch, 8, 3, 64, 64),
        (batch, 1, 32, 32, 32),
        (batch, 1, 8, 8, last),
    ]


def _elements(guess: Guess) -> int:
    product = 1
    for size in guess.shape:
        product *= size
    return product
