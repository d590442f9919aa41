"""Proves a fix in plain PyTorch. The text of this module is part of each script that `fix` writes.

It imports nothing of compilewatch. A script defines `build(seed)`, which returns the model,
`inputs(shape, seed)`, which returns its arguments, and `compilable`, the context manager that is
the fix; `main` calls them. Each requirement is examined in a fork, so that the model of each has
never been called.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters, same
from torch.utils._pytree import tree_leaves, tree_map_only

Step = tuple[bool, str]
"""Whether a requirement is met, and what was found."""

CALLS = (("first shape", 0), ("second shape", 0), ("first shape", 1), ("second shape", 1))
"""The shape and the seed of the inputs of each call, in order."""

UNUSUAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NaN": lambda x: torch.full_like(x, float("nan")) if x.is_floating_point() else x,
    "zeros": lambda x: torch.zeros_like(x) if x.is_floating_point() else x,
    "negative numbers": lambda x: -x.abs() - 1 if x.is_floating_point() else x,
    "integers that are all zero": lambda x: x if x.is_floating_point() else torch.zeros_like(x),
}
"""Inputs for which a model may take another branch or raise an error."""

CAPTURE_TOLERANCE = 1e-6
"""How far a graph that eager mode runs may differ from the model: rounding alone."""

INDUCTOR_TOLERANCE = 1e-4
"""The tolerance of `torch._dynamo.utils.same` in PyTorch's own benchmarks, for float32."""

Model = Callable[..., Any]


class Subject:
    """A model, its inputs, and the fix. `compilable(model, args, kwargs, options)` is the fix."""

    def __init__(
        self,
        build: Callable[[int], torch.nn.Module],
        inputs: Callable[[str, int], tuple[tuple[Any, ...], dict[str, Any]]],
        compilable: Callable[..., contextlib.AbstractContextManager[None]],
        *,
        train: bool = False,
        drops: tuple[str, ...] = (),
    ) -> None:
        self.build, self.inputs, self.compilable = build, inputs, compilable
        self.train, self.drops = train, drops

    def fixed(self, model: Model, args: Any, kwargs: Any, options: dict[str, Any]) -> Any:
        return self.compilable(model, args, kwargs, options)

    def plain(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def untouched(function: Callable[[], Any], otherwise: Any) -> Any:
    """Return what a function returns in a fork; `otherwise` if the process ends before that."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # before threads of autograd race for the pool of a fork
        try:
            said = function()
        except BaseException as error:  # noqa: BLE001  (the parent reports it)
            said = {"raised": words_of(error)}
        with os.fdopen(write, "w") as stream:
            stream.write(json.dumps(said))
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else otherwise


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def words_of(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def seeded(seed: int) -> None:
    random.seed(seed)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(seed)
    torch.manual_seed(seed)


def call(
    subject: Subject,
    model: torch.nn.Module,
    compiled: Model,
    args: Any,
    kwargs: Any,
    given: dict[str, Any] | None = None,
) -> Any:
    """Call a model once and return what can be compared: outputs, arguments, state, gradients.

    `given` are the keyword arguments of the caller, where a fix has changed what is passed on.
    """
    seeded(0)
    model.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(subject.train):
        output = compiled(*args, **kwargs)
    if subject.train:
        loss = getattr(output, "loss", None)
        outputs = [v for v in tree_leaves(output) if torch.is_tensor(v) and v.requires_grad]
        loss = sum(v.float().mean() for v in outputs) if loss is None else loss
        if torch.is_tensor(loss):
            loss.backward()
    found = {f"output{path}": value for path, value in leaves(output)}
    found |= {f"arguments{path}": value for path, value in leaves([list(args), given or kwargs])}
    found |= {f"buffer {name}": value.clone() for name, value in model.named_buffers()}
    for name, value in model.named_parameters():
        if value.grad is not None:
            found[f"gradient of {name}"] = value.grad.clone()
    return found


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield each tensor, number and text of an output with its path, also in objects."""
    if isinstance(value, torch.Tensor):
        yield path, value.detach()
    elif value is None or isinstance(value, bool | int | float | str):
        yield path, value
    elif depth < 8:
        items: Any = ()
        if isinstance(value, Mapping):
            items = value.items()
        elif isinstance(value, list | tuple):
            items = enumerate(value)
        elif hasattr(value, "__dict__") and not callable(value):
            items = vars(value).items()
        for key, each in items:
            yield from leaves(each, f"{path}.{key}", depth + 1)


def difference(
    expected: dict[str, Any],
    got: dict[str, Any],
    tolerance: float,
    exact: dict[str, Any] | None = None,
    dropped: tuple[str, ...] = (),
) -> str:
    """Return the first difference between two calls; empty if there is none.

    `exact` is the same call in float64, for PyTorch's rule that compiled code may differ from it
    a little more than eager mode does. Arguments and outputs whose name is in `dropped` are not
    compared.
    """

    def compared(values: dict[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in values.items()
            if not any(f".{each}" in name for each in dropped)
        }

    expected, got = compared(expected), compared(got)
    for name in [*expected, *got]:
        if name not in got:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} is new"
        ours, theirs = expected[name], got[name]
        reference = (exact or {}).get(name)
        if not isinstance(ours, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            if repr(ours) != repr(theirs):
                return f"{name} is {theirs!r}, not {ours!r}"
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{name} is {theirs.dtype} {tuple(theirs.shape)}, not {tuple(ours.shape)}"
        floating = ours.is_floating_point() or ours.is_complex()
        if not floating and tolerance == INDUCTOR_TOLERANCE:
            continue  # an index of the largest of equal values depends on the last bit
        is_like = isinstance(reference, torch.Tensor) and reference.shape == ours.shape
        if not same(
            ours,
            theirs,
            reference if is_like and floating else None,
            tol=tolerance,
            equal_nan=True,
            log_error=lambda *_: None,
        ):
            return f"{name} differs by {(theirs.double() - ours.double()).abs().max().item():.3g}"
    return ""


def arguments(subject: Subject, shape: str, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seeded(seed)
    return subject.inputs(shape, seed)


# --- what Dynamo does -----------------------------------------------------------------------------


def captured(subject: Subject, fix: Callable[..., Any]) -> dict[str, int]:
    """Return the breaks and the graphs of the first call, and the graphs of four calls."""
    torch._dynamo.reset()
    counters.clear()
    model = subject.build(0)
    options: dict[str, Any] = {}
    found = {}
    for number, (shape, seed) in enumerate(CALLS):
        args, kwargs = arguments(subject, shape, seed)
        with fix(model, args, kwargs, options):
            if number == 0:
                compiled = torch.compile(model, backend="eager", **options)
            call(subject, model, compiled, args, kwargs)
        if number == 0:
            found["breaks"] = sum(counters["graph_break"].values())
            found["graphs"] = counters["stats"]["unique_graphs"]
    found["compilations"] = counters["stats"]["unique_graphs"]
    return found


def accepted(subject: Subject, shape: str) -> Step:
    """Whether `fullgraph=True` accepts the model with the fix."""
    model = subject.build(0)
    options: dict[str, Any] = {}
    args, kwargs = arguments(subject, shape, 0)
    with subject.fixed(model, args, kwargs, options):
        compiled = torch.compile(model, backend="eager", fullgraph=True, **options)
        call(subject, model, compiled, args, kwargs)
    return True, ""


# --- what it computes -----------------------------------------------------------------------------


def equal_in_eager(subject: Subject, seed: int) -> Step:
    """Whether the fix leaves what eager mode computes."""
    model, other = subject.build(seed), subject.build(seed)
    for shape, of_inputs in CALLS:
        args, kwargs = arguments(subject, shape, of_inputs)
        expected = call(subject, model, model, args, kwargs)
        args, kwargs = arguments(subject, shape, of_inputs)
        given = dict(kwargs)
        with subject.fixed(other, args, kwargs, {}):
            got = call(subject, other, other, args, kwargs, given)
        found = difference(expected, got, CAPTURE_TOLERANCE, dropped=subject.drops)
        if found:
            return False, f"{shape}, inputs of seed {of_inputs}: {found}"
    return True, f"{len(CALLS)} calls"


def equal_when_compiled(
    subject: Subject, seed: int, backend: str, tolerance: float, *, whole: bool
) -> Step:
    """Whether one compiled model computes in all calls what eager mode does."""
    model, other = subject.build(seed), subject.build(seed)
    precise = None
    if backend == "inductor":
        with contextlib.suppress(Exception):
            precise = subject.build(seed).double()
    options: dict[str, Any] = {}
    compiled: Any = None
    worst = ""
    for shape, of_inputs in CALLS:
        args, kwargs = arguments(subject, shape, of_inputs)
        expected = call(subject, model, model, args, kwargs)
        args, kwargs = arguments(subject, shape, of_inputs)
        given = dict(kwargs)
        with subject.fixed(other, args, kwargs, options):
            if compiled is None:
                compiled = torch.compile(other, backend=backend, fullgraph=whole, **options)
            got = call(subject, other, compiled, args, kwargs, given)
        found = difference(expected, got, tolerance, dropped=subject.drops)
        if found and precise is not None:
            exact = in_float64(subject, precise, *arguments(subject, shape, of_inputs))
            found = difference(expected, got, tolerance, exact, subject.drops)
        if found and not worst:
            worst = f"{shape}, inputs of seed {of_inputs}: {found}"
    return not worst, worst or f"{len(CALLS)} calls"


def in_float64(subject: Subject, model: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """Return a call in float64, None if the model cannot be called so."""
    args, kwargs = tree_map_only(
        torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, (args, kwargs)
    )
    with contextlib.suppress(Exception):
        return call(subject, model, model, args, kwargs)
    return None


def equal_for(subject: Subject, kind: str, *, whole: bool) -> Step:
    """Whether the captured model does what the model does for unusual inputs, errors included.

    The model is compiled for the usual inputs, and called with the unusual ones after that.
    """
    model, other = subject.build(0), subject.build(0)
    usual_args, usual_kwargs = arguments(subject, "first shape", 0)
    call(subject, model, model, *arguments(subject, "first shape", 0))
    options: dict[str, Any] = {}
    with subject.fixed(other, usual_args, usual_kwargs, options):
        compiled = torch.compile(other, backend="eager", fullgraph=whole, **options)
        call(subject, other, compiled, usual_args, usual_kwargs)

    def unusual() -> Any:
        return tree_map_only(torch.Tensor, UNUSUAL[kind], arguments(subject, "first shape", 0))

    args, kwargs = unusual()
    try:
        expected = call(subject, model, model, args, kwargs)
    except Exception as error:  # noqa: BLE001  (the model's own check)
        raised = words_of(error)
        args, kwargs = unusual()
        try:
            with subject.fixed(other, args, kwargs, options):
                call(subject, other, compiled, args, kwargs)
        except Exception:  # noqa: BLE001
            return True, f"an error as in eager mode ({raised})"
        return False, f"eager mode raises an error that the fix hides ({raised})"
    args, kwargs = unusual()
    given = dict(kwargs)
    with subject.fixed(other, args, kwargs, options):
        got = call(subject, other, compiled, args, kwargs, given)
    found = difference(expected, got, CAPTURE_TOLERANCE, dropped=subject.drops)
    return not found, found


# --- the proof ------------------------------------------------------------------------------------


def prove(subject: Subject, report: Callable[[str, Step], None]) -> dict[str, Any]:
    """Examine all requirements; `report` gets each as it is known. Returns the figures."""

    def step(name: str, function: Callable[[], Step]) -> bool:
        found = untouched(function, (False, "the process ended"))
        if isinstance(found, dict):
            found = (False, found["raised"])
        report(name, (bool(found[0]), str(found[1])))
        return bool(found[0])

    none: dict[str, Any] = {"raised": "the process ended"}
    before = untouched(partial(captured, subject, subject.plain), none)
    after = untouched(partial(captured, subject, subject.fixed), none)
    figures: dict[str, Any] = {"single_graph": False}
    for name in ("breaks", "graphs", "compilations"):
        figures[name] = [before.get(name, -1), after.get(name, -1)]
    if "raised" in after:
        report("Dynamo captures it", (False, after["raised"]))
        return figures
    shapes = sorted({shape for shape, _ in CALLS})
    single = [untouched(partial(accepted, subject, each), none) for each in shapes]
    whole = figures["single_graph"] = all(isinstance(each, list) for each in single)
    if whole:
        report("fullgraph=True accepts it", (True, "both shapes"))
    else:
        rejected = next(each["raised"] for each in single if isinstance(each, dict))
        fewer = after["breaks"] < before.get("breaks", after["breaks"])
        said = f"{before.get('breaks')} to {after['breaks']}"
        report("it has fewer graph breaks", (fewer, said if fewer else f"{said}; {rejected}"))
        if not fewer:
            return figures
    again = after["compilations"] <= max(before.get("compilations", 0), len(shapes))
    counts = f"{before.get('compilations')} without, {after['compilations']} with the fix"
    report("compilations do not grow", (again, counts))
    for seed in (0, 1):
        if not step(f"eager results, seed {seed}", partial(equal_in_eager, subject, seed)):
            return figures
    for seed in (0, 1):
        name = f"results of the graph, seed {seed}"
        graph = partial(equal_when_compiled, subject, seed, "eager", CAPTURE_TOLERANCE, whole=whole)
        if not step(name, graph):
            return figures
    for kind in UNUSUAL:
        name = f"results for {kind}"
        if not step(name, partial(equal_for, subject, kind, whole=whole)):
            return figures

    def with_inductor() -> Step:
        from torch._inductor import config

        with config.patch(compile_threads=1, fallback_random=True):
            return equal_when_compiled(subject, 0, "inductor", INDUCTOR_TOLERANCE, whole=whole)

    step("results of Inductor", with_inductor)
    return figures


def main(subject: Subject) -> int:
    """Print each requirement, and with --json the figures. Returns the exit status.

    0: a single graph, proven; 1: fewer graph breaks, proven; 3: not proven.
    """
    as_json = "--json" in sys.argv
    began = time.monotonic()
    steps: list[tuple[str, bool, str]] = []

    def report(name: str, found: Step) -> None:
        steps.append((name, *found))
        if not as_json:
            say(f"{'ok  ' if found[0] else 'FAIL'} {name}: {found[1]}")

    torch.set_num_threads(1)  # a fork has only the thread that forks
    figures = prove(subject, report)
    holds = all(passed for _, passed, _ in steps)
    if as_json:
        seconds = round(time.monotonic() - began, 1)
        say(json.dumps({"steps": steps, **figures, "seconds": seconds}))
    else:
        for name in ("breaks", "graphs", "compilations"):
            say(f"{name}: {figures[name][0]} without the fix, {figures[name][1]} with it")
        say("proven" if holds else "not proven")
    return (0 if figures["single_graph"] else 1) if holds else 3
