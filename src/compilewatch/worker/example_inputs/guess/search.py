"""Tries guesses until a call passes."""

from __future__ import annotations

import heapq
import inspect
import itertools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from compilewatch.worker.example_inputs.context import Context, dynamic_shapes
from compilewatch.worker.example_inputs.guess.arguments import Argument
from compilewatch.worker.example_inputs.guess.corrections import FailedCall, corrections
from compilewatch.worker.example_inputs.guess.layers import is_known
from compilewatch.worker.example_inputs.guess.names import LENGTHS, MEDIA
from compilewatch.worker.example_inputs.guess.reading import Reading
from compilewatch.worker.example_inputs.guess.symbols import SPEECH_FRAMES, Sizes, rate_of
from compilewatch.worker.example_inputs.guess.trial import Trial, tried
from compilewatch.worker.example_inputs.guess.values import Call, described, tensors
from compilewatch.worker.subject import ExampleInputs

TRIALS = 60
"""How many calls are tried."""

SECONDS = 45.0
"""How long they may take, which is less than the deadline of the phase."""

FIRST_AGAIN = 4
"""Every so many trials, a call that nothing has been tried of comes before a correction."""

EXAMPLES = ("example_input_array", "dummy_inputs", "example_inputs", "dummy_input")
"""Attributes with which a model brings inputs of its own."""

_GRAPH = frozenset({"edge_index", "edge_attr", "edge_weight", "adj_t"})
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class FoundInputs:
    """The best call: one that passed, or the failure that came furthest.

    `lacking` are required arguments without any value.
    """

    inputs: ExampleInputs
    trial: Trial
    trials: int
    lacking: tuple[str, ...] = ()


@dataclass
class _Search:
    ctx: Context
    mode: Any
    arguments: dict[str, Argument]
    fixed: dict[str, Any]
    positional: frozenset[str] = frozenset()
    seen: set[str] = field(default_factory=set)

    def inputs(self, call: Call) -> ExampleInputs:
        values = {n: tensors(self.ctx, n, v) for n, v in call.items() if v is not None}
        args = tuple(v for n, v in values.items() if n in self.positional)
        kwargs = {n: v for n, v in values.items() if n not in self.positional}
        return ExampleInputs(
            strategy="guess",
            args=args,
            kwargs=kwargs,
            # The rows of a graph are its nodes and edges, and two rows of indices are no batch.
            dynamic_shapes={} if _GRAPH & set(call) else dynamic_shapes(kwargs, self.ctx.batch),
            guessed=described(call),
        )

    def run(self, first: Iterable[Call]) -> FoundInputs:
        began = time.monotonic()
        waiting, order = deque(first), itertools.count()
        better: list[tuple[int, int, Call]] = []
        best: FoundInputs | None = None
        for number in range(1, TRIALS + 1):
            call = self._next(waiting, better, number)
            if call is None or time.monotonic() - began > SECONDS:
                break
            inputs = self.inputs(call)
            trial = tried(self.ctx.module, inputs, self.mode)
            if best is None or trial.calls > best.trial.calls:
                best = FoundInputs(inputs=inputs, trial=trial, trials=number)
            # A call without a tensor that passes says nothing.
            passed = trial.passed and bool(inputs.guessed)
            if (
                passed
                or trial.code == "missing_package"
                or (self.mode is not None and _only_fake(trial))
            ):
                return FoundInputs(inputs=inputs, trial=trial, trials=number)
            failed = FailedCall(
                call=call, trial=trial, module=self.ctx.module, arguments=self.arguments
            )
            for new in corrections(failed):
                heapq.heappush(better, (-trial.calls, next(order), new))
        if best is None:
            return FoundInputs(inputs=self.inputs({}), trial=Trial(), trials=0)
        return best

    def _next(
        self, waiting: deque[Call], better: list[tuple[int, int, Call]], number: int
    ) -> Call | None:
        """The next call that was not tried: a correction, or now and then a first one."""
        while waiting or better:
            fresh = waiting and (not better or number % FIRST_AGAIN == 0)
            call = waiting.popleft() if fresh else heapq.heappop(better)[2]
            key = repr(call)
            if key not in self.seen:
                self.seen.add(key)
                return call
        return None


def _only_fake(trial: Trial) -> bool:
    """Whether only real tensors can show more: the call read a value."""
    return trial.code in _VALUES or any(
        "Fake" in name or "DataDependent" in name for name in trial.names
    )


_VALUES = frozenset({"data_dependent", "dynamic_output_shape", "unsupported_operator"})


def guessed_inputs(ctx: Context, mode: Any) -> FoundInputs:
    """Return inputs that a call with tensors of `mode` accepts, or the failure that came furthest.

    Values that `ctx` has already, from overrides, are kept.
    """
    fixed = dict(ctx.values)
    parameters = inspect.signature(ctx.module.forward).parameters
    named = {n: p for n, p in parameters.items() if p.kind not in _VARIABLE}
    positional = {n for n, p in named.items() if p.kind is p.POSITIONAL_ONLY}
    if len(named) < len(parameters) and not named:
        named = _passed_on(ctx.module)
        if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
            positional = {n for n, p in named.items() if p.default is p.empty}
    graph = bool(_GRAPH & set(named)) or {"z", "pos"} <= set(named)
    required = [name for name, p in named.items() if p.default is p.empty]
    uses = Reading(is_known).read(ctx.module, list(named), required)
    rate = rate_of(ctx.module, named)
    spoken = rate is not None or any(re.fullmatch(LENGTHS, name) for name in named)
    sequence = ctx.length or (SPEECH_FRAMES if spoken else ctx.sequence)
    sizes = Sizes(module=ctx.module, batch=ctx.batch, sequence=sequence, rate=rate)
    arguments = {
        name: Argument(
            path=(name,), uses=uses, sizes=sizes, ctx=ctx, parameter=parameter, graph=graph
        )
        for name, parameter in named.items()
        if name not in ctx.dropped
    }
    search = _Search(ctx, mode, arguments, fixed, frozenset(positional))
    return search.run(_first_calls(ctx, arguments, fixed))


def _passed_on(module: nn.Module) -> dict[str, inspect.Parameter]:
    """The arguments of the only module inside one whose forward takes `*args, **kwargs`."""
    for child in module.children():
        parameters = inspect.signature(child.forward).parameters
        return {n: p for n, p in parameters.items() if p.kind not in _VARIABLE}
    return {}


def _first_calls(
    ctx: Context, arguments: dict[str, Argument], fixed: dict[str, Any]
) -> Iterator[Call]:
    """Yield what to try before anything has failed: the model's own example, then the evidence."""
    for name in EXAMPLES:
        example = _example(ctx.module, name, list(arguments))
        if example:
            yield {**example, **fixed}
    free = {n: a for n, a in arguments.items() if n not in fixed}
    media = {n for n, a in free.items() if MEDIA.fullmatch(n) and _may_be_tensor(a)}
    plain = {n: a for n, a in free.items() if _required(a) or n in media}
    needed = {n: a for n, a in free.items() if _is_needed(a) or n in media}
    if not needed and not fixed:
        needed = {n: a for n, a in arguments.items() if _may_be_tensor(a)}
    # None stays None where the model runs without a tensor there, but for another medium.
    for chosen in (plain, {n: a for n, a in plain.items() if n not in media}):
        if chosen or fixed:
            yield {**{n: _first(ctx, a) for n, a in chosen.items()}, **fixed}
    ruled = {n: v for n in arguments if n not in fixed and (v := _of_rule(ctx, n)) is not None}
    values = {name: argument.values() or [None] for name, argument in needed.items()}
    first = {name: candidates[0] for name, candidates in values.items()}
    if ruled:
        yield {**first, **ruled, **fixed}
    yield {**first, **fixed}
    if len(values) > 1:
        yield from _with_one_other(first, values, fixed, range(1, 2))
    for i in range(1, max(map(len, values.values()), default=0)):
        yield {
            **{n: candidates[min(i, len(candidates) - 1)] for n, candidates in values.items()},
            **fixed,
        }
    if len(values) > 1:
        yield from _with_one_other(first, values, fixed, range(2, 4))
        for name in values:
            if not _required(arguments[name]):
                yield {**first, name: None, **fixed}


def _first(ctx: Context, argument: Argument) -> Any:
    ruled = _of_rule(ctx, argument.word)
    return ruled if ruled is not None else next(iter(argument.values()), None)


def _with_one_other(
    first: Call, values: Mapping[str, list[Any]], fixed: Call, indices: range
) -> Iterator[Call]:
    for name, candidates in values.items():
        for value in candidates[indices.start : indices.stop]:
            yield {**first, name: value, **fixed}


def _required(argument: Argument) -> bool:
    parameter = argument.parameter
    return parameter is not None and parameter.default is parameter.empty


def _is_needed(argument: Argument) -> bool:
    """Whether the forward needs an argument: it has no default, or None is used without a check."""
    if _required(argument):
        return True
    parameter = argument.parameter
    if parameter is None or parameter.default is not None:
        return False
    own = argument.own
    return not own.checked and bool(own.layers or own.dims or own.is_dict)


def _may_be_tensor(argument: Argument) -> bool:
    parameter = argument.parameter
    if parameter is None or parameter.default is not None:
        return False
    return "Tensor" in argument.annotation or not argument.annotation or argument.own.used


def _of_rule(ctx: Context, name: str) -> Any:
    """The value of the rule for arguments of this name in Transformers, if it can make one."""
    ctx.fallback = None
    value = ctx.value(name)
    return value if value is not None and name in ctx.rules else None


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
