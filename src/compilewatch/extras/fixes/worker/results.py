"""What a model computes with a fix, compared with eager mode: the fifth part of the text."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map_only

from compilewatch.extras.fixes.worker.capturing import counted
from compilewatch.extras.fixes.worker.comparing import (
    CAPTURE_TOLERANCE,
    INDUCTOR_TOLERANCE,
    MEMORY,
    Outcome,
    difference,
    restored_globals,
    unequal_integers,
)
from compilewatch.extras.fixes.worker.forks import DIED, untouched, words_of
from compilewatch.extras.fixes.worker.script_calls import (
    CALLS,
    SHAPES,
    ScriptCall,
    ScriptSubject,
    Step,
    arguments,
)

UNUSUAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda x: torch.full_like(x, float("nan")),
    "infinity": lambda x: torch.full_like(x, float("inf")),
    "zeros": torch.zeros_like,
    "negative numbers": lambda x: -x.abs() - 1,
    "large numbers": lambda x: x * 1000 + 1000,
    "integers that are all zero": torch.zeros_like,
    "integers whose last are zero": lambda x: without_last(x),
}
"""Values for which a model may take another branch or raise an error.

They are those of the inputs; if no input has floating-point numbers, of the parameters.
"""

WITHOUT = "without the fix, too"
"""What a verification says of a failure that is not the fix's: no other fix would do better."""

INTEGERS = ("integers that are all zero", "integers whose last are zero")
"""The kinds that replace integers and booleans, such as those of a mask."""


def without_last(values: torch.Tensor) -> torch.Tensor:
    """Return integers with zeros at the end of each row, as a mask of padded texts has them."""
    if not values.dim():
        return values
    last = torch.arange(values.shape[-1]) == values.shape[-1] - 1
    return values.masked_fill(last, 0)


def captured_with_results(subject: ScriptSubject) -> dict[str, Any]:
    """Return what Dynamo captures with the fix, and whether the graphs compute what eager does."""
    found, got = counted(subject, subject.compilable)
    try:
        expected = ScriptCall(subject, subject.build(0), subject.unchanged).all()
        results = compared(subject, 0, "eager", expected, got)
    except Exception as error:  # noqa: BLE001  (eager mode may raise what the graph does not)
        results = False, words_of(error)
    return {**found, "results": results}


def equal_calls(
    subject: ScriptSubject, seed: int, backend: str | None = None, *, whole: bool = True
) -> Step:
    """Whether a model with the fix, compiled once, does in all calls what eager mode does.

    With `whole`, it is compiled with `fullgraph=True`. Without a backend it is not compiled.
    """
    # One model at a time: each may take gigabytes.
    expected = ScriptCall(subject, subject.build(seed), subject.unchanged).all()
    got = all_compiled(
        ScriptCall(subject, subject.build(seed), subject.compilable, backend, whole=whole)
    )
    return compared(subject, seed, backend, expected, got)


def all_compiled(fixed: ScriptCall) -> list[Outcome]:
    """Make all calls of a model. Raises RuntimeError if it was to be compiled and nothing was."""
    counters.clear()
    got = fixed.all()
    if fixed.backend is not None and not counters["stats"]["unique_graphs"]:
        raise RuntimeError("nothing is captured")
    return got


def equal_with_inductor(
    subject: ScriptSubject, *, whole: bool, threads: int = 1, backend: str = "inductor"
) -> Step:
    """Whether Inductor computes what eager mode does, and raises an error where that raises one.

    Each kernel is a file that the C++ compiler takes a second for: `threads` at a time.
    """
    os.environ["TORCH_WARM_POOL"] = "0"  # no processes that compile for a GPU
    from torch._inductor import config

    with config.patch(compile_threads=threads, fallback_random=True):
        try:
            plain = ScriptCall(subject, subject.build(0), subject.unchanged)
            fixed = ScriptCall(subject, subject.build(0), subject.compilable, backend, whole=whole)
            found = compared(subject, 0, backend, plain.all(), all_compiled(fixed))
        except Exception as error:  # noqa: BLE001  (of the compiler and of what it has compiled)
            return False, f"{words_of(error)}{_fails_as_it_is(subject, backend, error)}"
    for kind in UNUSUAL if found[0] else ():
        with config.patch(compile_threads=1, fallback_random=True):  # a fork has no such threads
            # Where eager mode ends the process, nothing is known.
            raises = untouched(partial(hides_error, plain, kind)) is False
            if raises and untouched(partial(hides_error, fixed, kind)) is True:
                return False, f"no error for {kind}, for which eager mode raises one"
    return found


def _fails_as_it_is(subject: ScriptSubject, backend: str, error: Exception) -> str:
    """Say whether the model without the fix raises the same error when it is compiled."""
    torch._dynamo.reset()
    try:
        ScriptCall(subject, subject.build(0), subject.unchanged, backend).all()
    except Exception as other:  # noqa: BLE001  (of the compiler and of what it has compiled)
        return f" ({WITHOUT})" if words_of(other) == words_of(error) else ""
    return ""


def compared(
    subject: ScriptSubject,
    seed: int,
    backend: str | None,
    expected: list[Outcome],
    got: list[Outcome],
) -> Step:
    """Whether the calls of a model with the fix did what eager mode does without it."""
    tolerance = INDUCTOR_TOLERANCE if backend == "inductor" else CAPTURE_TOLERANCE
    for number, (shape, of_inputs) in enumerate(CALLS):
        ours, theirs = expected[number], got[number]
        found = difference(ours, theirs, tolerance, dropped=subject.drops)
        if found:
            exact = in_float64(subject, seed, number)
            found = difference(ours, theirs, tolerance, exact, subject.drops)
        if found:
            usual = as_it_is(subject, seed, backend, tolerance, expected)
            return False, f"{shape}, inputs of seed {of_inputs}: {found}{usual}"
    if backend == "inductor":
        return equal_integers(subject, seed, expected, got)
    return True, f"{len(CALLS)} calls"


def as_it_is(
    subject: ScriptSubject,
    seed: int,
    backend: str | None,
    tolerance: float,
    expected: list[Outcome],
) -> str:
    """Say whether the compiled model differs from eager mode without the fix, too."""
    if backend is None:
        return ""
    torch._dynamo.reset()
    with contextlib.suppress(Exception):
        plain = ScriptCall(subject, subject.build(seed), subject.unchanged, backend).all()
        pairs = zip(expected, plain, strict=True)
        if any(difference(*pair, tolerance) for pair in pairs):
            return f" (the compiled model differs from eager mode {WITHOUT})"
    return ""


def in_float64(subject: ScriptSubject, seed: int, number: int) -> Outcome | None:
    """Return a call of the model in float64, None if it cannot be called so."""

    def doubled(value: torch.Tensor) -> torch.Tensor:
        return value.double() if value.is_floating_point() else value

    with contextlib.suppress(Exception):
        args, kwargs = tree_map_only(torch.Tensor, doubled, arguments(subject, *CALLS[number]))
        precise = ScriptCall(subject, subject.build(seed).double(), subject.unchanged)
        with restored_globals(precise.model):
            return precise(args, kwargs, seed=number)
    return None


def equal_integers(
    subject: ScriptSubject, seed: int, expected: list[Outcome], got: list[Outcome]
) -> Step:
    """Whether Inductor's integers are those of eager mode.

    The index of the largest of equal values depends on the last bit: where some differ, as many
    must differ in the model as it is.
    """
    pairs = list(zip(expected, got, strict=True))
    if not any(unequal_integers(*pair, subject.drops) for pair in pairs):
        return True, f"{len(CALLS)} calls"
    torch._dynamo.reset()
    as_it_is = ScriptCall(subject, subject.build(seed), subject.unchanged, "inductor").all()
    for (ours, theirs), plain in zip(pairs, as_it_is, strict=True):
        usual = unequal_integers(ours, plain, subject.drops)
        for name, count in unequal_integers(ours, theirs, subject.drops).items():
            if count > usual.get(name, 0):
                return False, f"{name} differs in {count} elements"
    return True, f"{len(CALLS)} calls; integers differ without the fix, too"


def unusual(
    subject: ScriptSubject, kind: str, models: Iterable[torch.nn.Module]
) -> tuple[Any, Any]:
    """Return unusual arguments, or usual ones for which the models get unusual parameters."""
    args, kwargs = arguments(subject, SHAPES[0], 0)
    change, floating = UNUSUAL[kind], kind not in INTEGERS
    given = [value for value in tree_leaves((args, kwargs)) if torch.is_tensor(value)]
    if floating and not any(value.is_floating_point() for value in given):
        with torch.no_grad():
            for value in (each for model in models for each in model.parameters()):
                value.copy_(change(value))
        return args, kwargs

    def changed(value: torch.Tensor) -> torch.Tensor:
        return change(value) if value.is_floating_point() == floating else value

    return tree_map_only(torch.Tensor, changed, (args, kwargs))  # type: ignore[no-any-return]


def for_unusual(subject: ScriptSubject, *, whole: bool) -> list[tuple[str, bool, str]]:
    """Whether the graph does what the model does for unusual values, errors included.

    The model is compiled for usual inputs, and called with unusual ones after that, for each kind
    in a fork. Returns of each kind its name and a step.
    """
    plain = ScriptCall(subject, subject.build(0), subject.unchanged)
    fixed = ScriptCall(subject, subject.build(0), subject.compilable, "eager", whole=whole)
    for each in (plain, fixed):
        with restored_globals(each.model):
            each(*arguments(subject, SHAPES[0], 0), seed=0)

    def outcome(kind: str) -> Step:
        values = unusual(subject, kind, (plain.model, fixed.model))
        try:
            with restored_globals(plain.model):
                expected = plain(*values, seed=1)
        except Exception as error:  # noqa: BLE001  (the model's own check)
            raised = words_of(error)
            if hides_error(fixed, kind):
                return False, f"eager mode raises an error that the fix hides ({raised})"
            return True, f"an error as in eager mode ({raised})"
        got = fixed(*unusual(subject, kind, ()), seed=1)
        # Where a branch became a selection, a copy is returned instead of the input itself.
        found = difference(
            expected, got, CAPTURE_TOLERANCE, dropped=subject.drops, ignored=(MEMORY,)
        )
        return not found, found

    found = []
    for kind in UNUSUAL:
        said = untouched(partial(outcome, kind))
        if said == DIED and untouched(partial(hides_error, plain, kind)) == DIED:
            said = (True, "eager mode ends the process")
        found.append((kind, *((False, said["raised"]) if "raised" in said else said)))
    return found


def hides_error(calling: ScriptCall, kind: str) -> bool:
    """Whether a model, compiled or not, raises no error for unusual values."""
    values = unusual(calling.subject, kind, (calling.model,))
    try:
        calling(*values, seed=1)
    except Exception:  # noqa: BLE001  (whatever it raises)
        return False
    return True
