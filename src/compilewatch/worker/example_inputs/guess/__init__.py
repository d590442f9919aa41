"""Example inputs for a module that is not of Transformers: guessed, and tried before believed.

What the model's source, layers, attributes and names say about each argument gives the first calls
(`evidence.SOURCES`); the message of a call that fails gives the next. Each call is
tried in a fork of this process, so that the model remains one that nothing has called. If none
passes, the guess was wrong, which is no error of the model.
"""

import heapq
import inspect
import itertools
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, dynamic_shapes
from compilewatch.worker.example_inputs.guess import evidence
from compilewatch.worker.example_inputs.guess.evidence import Argument, Call, Guess, leaves
from compilewatch.worker.example_inputs.guess.reading import read_uses
from compilewatch.worker.example_inputs.guess.trial import Trial, tried
from compilewatch.worker.example_inputs.rules import REQUIRED_RULES
from compilewatch.worker.subject import ExampleInputs

TRIALS = 60
"""How many calls are tried."""

SECONDS = 45.0
"""How long they may take, which is less than the deadline of the phase."""

FIRST_AGAIN = 4
"""Every so many trials, a call that nothing has been tried of comes before a correction."""

MOST = 14
"""How many corrections of one failure are tried."""

LARGEST = 2**24
"""Elements of the largest tensor that is tried."""

EXAMPLES = ("example_input_array", "dummy_inputs", "example_inputs", "dummy_input")
"""Attributes with which a model brings inputs of its own."""

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NEEDS_REAL = frozenset({"data_dependent", "dynamic_output_shape", "unsupported_operator"})


def guessed_inputs(ctx: Context, mode: Any) -> tuple[ExampleInputs, Trial]:
    """Return inputs that a call with tensors of `mode` accepts, or the failure that came furthest.

    Calls are tried until one passes: the first ones, and corrections of the one that came furthest.
    Values that `ctx` has already, from overrides, are kept.
    """
    fixed = dict(ctx.values)
    parameters = inspect.signature(ctx.module.forward).parameters
    named = {n: p for n, p in parameters.items() if p.kind not in _VARIABLE}
    positional = {n for n, p in named.items() if p.kind is p.POSITIONAL_ONLY}
    if len(named) < len(parameters) and not named:
        # The arguments of the only module inside one whose forward takes `*args, **kwargs`.
        for child in islice(ctx.module.children(), 1):
            inner = inspect.signature(child.forward).parameters
            named = {n: p for n, p in inner.items() if p.kind not in _VARIABLE}
        if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            positional = {n for n, p in named.items() if p.default is p.empty}
    required = [name for name, p in named.items() if p.default is p.empty]
    uses = read_uses(ctx.module, list(named), required, evidence.is_known)
    model = evidence.Model(
        ctx.module, named, uses, batch=ctx.batch, length=ctx.length, tokens=ctx.sequence
    )
    arguments = {
        name: Argument(path=(name,), model=model, parameter=parameter)
        for name, parameter in named.items()
        if name not in ctx.dropped
    }

    def inputs_of(call: Call) -> ExampleInputs:
        values = {n: evidence.tensors(ctx, n, v) for n, v in call.items() if v is not None}
        kwargs = {n: v for n, v in values.items() if n not in positional}
        return ExampleInputs(
            strategy="guess",
            args=tuple(v for n, v in values.items() if n in positional),
            kwargs=kwargs,
            # The rows of a graph are its nodes and edges, and two rows of indices are no batch.
            dynamic_shapes={} if evidence.GRAPH & set(call) else dynamic_shapes(kwargs, ctx.batch),
            guessed=evidence.described(call),
        )

    deadline = time.monotonic() + SECONDS
    waiting, order = deque(_first_calls(ctx, arguments, fixed)), itertools.count()
    corrected: list[tuple[int, int, Call]] = []
    seen: set[str] = set()
    best: tuple[ExampleInputs, Trial] | None = None
    number = 0
    while (waiting or corrected) and number < TRIALS and time.monotonic() < deadline:
        fresh = waiting and (not corrected or (number + 1) % FIRST_AGAIN == 0)
        call = waiting.popleft() if fresh else heapq.heappop(corrected)[2]
        if repr(call) in seen:
            continue
        seen.add(repr(call))
        number += 1
        inputs = inputs_of(call)
        trial = tried(ctx.module, inputs, mode)
        if best is None or trial.calls > best[1].calls:
            best = inputs, trial
        # A call without a tensor that passes says nothing.
        passed = trial.passed and bool(inputs.guessed)
        # Only real tensors can show more where the call read a value.
        fake = any("Fake" in name or "DataDependent" in name for name in trial.names)
        needs_real = mode is not None and (trial.code in _NEEDS_REAL or fake)
        if passed or needs_real or trial.code == "missing_package":
            return inputs, trial
        for correction in _corrections(call, trial, arguments):
            heapq.heappush(corrected, (-trial.calls, next(order), correction))
    return best or (inputs_of({}), Trial())


# --- first calls ----------------------------------------------------------------------------------


def _first_calls(ctx: Context, arguments: Mapping[str, Argument], fixed: Call) -> Iterator[Call]:
    """Yield what to try before anything has failed: the model's own example, then the evidence."""
    for name in EXAMPLES:
        example = _example(ctx.module, name, list(arguments))
        if example:
            yield {**example, **fixed}
    free = {n: a for n, a in arguments.items() if n not in fixed}
    media = {n for n, a in free.items() if evidence.MEDIA.fullmatch(n) and _may_be_tensor(a)}
    plain = {n: a for n, a in free.items() if a.required or n in media}
    needed = {n: a for n, a in free.items() if _is_needed(a) or n in media}
    if not needed and not fixed:
        needed = {n: a for n, a in arguments.items() if _may_be_tensor(a)}
    # The values of the rules for arguments of these names in Transformers.
    ruled = {n: v for n in free if (v := ctx.value(n)) is not None and n not in REQUIRED_RULES}
    # None stays None where the model runs without a tensor there, but for another medium.
    for chosen in (plain, {n: a for n, a in plain.items() if n not in media}):
        if chosen or fixed:
            yield {**{n: ruled.get(n, a.first()) for n, a in chosen.items()}, **fixed}
    values = {name: argument.values() or [None] for name, argument in needed.items()}
    first = {name: candidates[0] for name, candidates in values.items()}
    if ruled:
        yield {**first, **ruled, **fixed}
    yield {**first, **fixed}
    if len(values) > 1:
        for name, candidates in values.items():
            for value in candidates[1:2]:
                yield {**first, name: value, **fixed}
    for i in range(1, max(map(len, values.values()), default=0)):
        yield {**{n: choices[min(i, len(choices) - 1)] for n, choices in values.items()}, **fixed}


def _is_needed(argument: Argument) -> bool:
    """Whether the forward needs an argument: it has no default, or None is used without a check."""
    parameter, own = argument.parameter, argument.own
    if argument.required or parameter is None or parameter.default is not None:
        return argument.required
    return not own.checked and bool(own.layers or own.ranks or own.parts)


def _may_be_tensor(argument: Argument) -> bool:
    parameter = argument.parameter
    if parameter is None or parameter.default is not None:
        return False
    return "Tensor" in argument.annotation or not argument.annotation or argument.own.used


def _example(module: nn.Module, attribute: str, names: list[str]) -> dict[str, Any]:
    """Inputs that a model has as an attribute: a tensor, a tuple of them, or a dictionary."""
    try:
        example = getattr(module, attribute, None)
    except Exception:  # noqa: BLE001  (whatever a property of the module raises)
        return {}
    if isinstance(example, Mapping):
        return {str(name): value for name, value in example.items() if name in names}
    if isinstance(example, torch.Tensor):
        example = (example,)
    return dict(zip(names, example, strict=False)) if isinstance(example, tuple | list) else {}


# --- corrections ----------------------------------------------------------------------------------


def _corrections(call: Call, trial: Trial, arguments: Mapping[str, Argument]) -> list[Call]:
    """Return calls to try after one that failed, the most likely first."""
    calls: list[Call] = []
    for corrected in (_with_missing(call, trial, arguments), _with_sizes(call, trial)):
        for new in islice(corrected, MOST):
            if new not in calls and new != call:
                calls.append(new)
    return calls[:MOST]


def _with_missing(call: Call, trial: Trial, arguments: Mapping[str, Argument]) -> Iterator[Call]:
    """Give an argument that the forward cannot do without."""
    absent = [n for n in arguments if call.get(n) is None]
    asserted = trial.statement if "None" in trial.statement else ""
    text = f"{trial.message} {asserted}"
    named = [n for n in absent if re.search(rf"\b{re.escape(n)}\b", text)]
    if "None" in trial.message:
        named += [n for n in trial.missing if n in absent and n not in named]
    for name in named:
        for value in arguments[name].values()[:3]:
            yield {**call, name: value}
    if len(named) > 1:
        yield {**call, **{n: arguments[n].first() for n in named}}


def _with_sizes(call: Call, trial: Trial) -> Iterator[Call]:
    """Change sizes to those that the message names."""
    guesses = list(leaves(call))
    sizes = {size for _, guess in guesses for size in guess.shape[1:]}
    numbers = [int(n) for n in re.findall(r"(?<![\w.])\d{1,5}(?![\w.]\d)", trial.message[:400])]
    numbers += [int(n) for pair in re.findall(r"(\d+)x(\d+)", trial.message[:400]) for n in pair]
    pairs = [(h, w) for h in numbers if h in sizes for w in numbers if w not in sizes and w > 0]
    for have, want in dict.fromkeys(pairs):
        together = call
        for where, guess in guesses:
            rest = (want if size == have else size for size in guess.shape[1:])
            together = _set(together, where, guess, (*guess.shape[:1], *rest))
        yield together
        for where, guess in guesses:
            for i, size in enumerate(guess.shape):
                if size == have:
                    yield _set(call, where, guess, (*guess.shape[:i], want, *guess.shape[i + 1 :]))
    # A size of the message may be a multiple of one of the call.
    for where, guess in guesses:
        for i, size in enumerate(guess.shape[1:], start=1):
            for have, want in itertools.permutations(dict.fromkeys(numbers), 2):
                factor = have // size if size > 1 and have % size == 0 else 0
                if factor > 1 and want % factor == 0:
                    shape = (*guess.shape[:i], want // factor, *guess.shape[i + 1 :])
                    yield _set(call, where, guess, shape)
    # Tensors that the forward concatenates have a size together.
    floating = [(w, g) for w, g in guesses if g.shape and g.fill == "normal"]
    total, count = sum(guess.shape[-1] for _, guess in floating), len(floating)
    for want in numbers if count > 1 and total in numbers else ():
        if want != total and want % count == 0:
            together = call
            for where, guess in floating:
                together = _set(together, where, guess, (*guess.shape[:-1], want // count))
            yield together


def _set(call: Call, where: tuple[Any, ...], guess: Guess, shape: tuple[int, ...]) -> Call:
    if torch.Size(shape).numel() > LARGEST:
        return call
    new: Call = evidence.changed(call, where, guess.resized(*shape))
    return new
