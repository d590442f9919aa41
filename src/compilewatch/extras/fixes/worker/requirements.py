"""What a fix has to do, one function each: the second part of each proof's text.

Each function is called in a fork, so that its model has never been called.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map_only

from compilewatch.extras.fixes.worker.comparing import (
    CAPTURE_TOLERANCE,
    INDUCTOR_TOLERANCE,
    MEMORY,
    Model,
    Outcome,
    called,
    difference,
    restored_globals,
    seeded,
    unequal_integers,
)

Step = tuple[bool, str]
"""Whether a requirement is met, and what was found."""

CALLS = (("first shape", 0), ("second shape", 0), ("first shape", 1), ("second shape", 1))
"""The shape and the seed of the inputs of each call, in order."""

SEEDS = (0, 1)
"""The seeds of the weights for which results are compared."""

SHAPES = tuple(dict.fromkeys(shape for shape, _ in CALLS))

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

INTEGERS = ("integers that are all zero", "integers whose last are zero")
"""The kinds that replace integers and booleans, such as those of a mask."""

DIED: dict[str, Any] = {"raised": "the process ended"}


class ProofSubject:
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

    def unchanged(self, *_: Any) -> contextlib.AbstractContextManager[None]:
        """Take the place of the fix: the model as it is."""
        return contextlib.nullcontext()


class ProofCall:
    """A model that is called again and again, under a fix, and compiled if there is a backend."""

    def __init__(
        self,
        subject: ProofSubject,
        model: torch.nn.Module,
        fix: Callable[..., contextlib.AbstractContextManager[None]],
        backend: Any = None,
        *,
        whole: bool = False,
    ) -> None:
        self.subject, self.model, self.fix = subject, model, fix
        self.backend, self.whole = backend, whole
        self.run: Model | None = None if backend is not None else model
        self.options: dict[str, Any] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> Outcome:
        given = [list(args), dict(kwargs)]  # the fix may add arguments, which are not the caller's
        with self.fix(self.model, args, kwargs, self.options):
            if self.run is None:
                self.run = torch.compile(
                    self.model, backend=self.backend, fullgraph=self.whole, **self.options
                )
            return called(
                self.model,
                partial(self.run, *args, **kwargs),
                given,
                seed=seed,
                train=self.subject.train,
            )

    def all(self) -> list[Outcome]:
        """Call it with all shapes and seeds."""
        found = []
        with restored_globals(self.model):
            for number, (shape, seed) in enumerate(CALLS):
                found.append(self(*arguments(self.subject, shape, seed), seed=number))
        return found


def untouched(function: Callable[[], Any], otherwise: Any = DIED) -> Any:
    """Return what a function returns in a fork; `otherwise` if the process ends before that."""
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(read)
        torch.set_num_threads(1)  # before threads of autograd race for the pool of a fork
        try:
            said = json.dumps(function())
        except BaseException as error:  # noqa: BLE001  (the parent reports it)
            said = json.dumps({"raised": words_of(error)})
        with os.fdopen(write, "w") as stream:
            stream.write(said)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else otherwise


def without_last(values: torch.Tensor) -> torch.Tensor:
    """Return integers with zeros at the end of each row, as a mask of padded texts has them."""
    if not values.dim():
        return values
    last = torch.arange(values.shape[-1]) == values.shape[-1] - 1
    return values.masked_fill(last, 0)


def words_of(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def arguments(
    subject: ProofSubject, shape: str, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seeded(seed)
    return subject.inputs(shape, seed)


# --- what Dynamo does -----------------------------------------------------------------------------


class Breaks(logging.Handler):
    """Counts graph breaks in PyTorch's structured trace; its counters leave out branches."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        artifact = getattr(record, "metadata", {}).get("artifact", {})
        self.count += artifact.get("name") == "dynamo_graph_break_reason"


def captured(subject: ProofSubject, fix: Callable[..., Any]) -> dict[str, int]:
    """Return what Dynamo captures in the first call, and what it compiles in four calls."""
    return counted(subject, fix)[0]


def captured_with_results(subject: ProofSubject) -> dict[str, Any]:
    """Return what Dynamo captures with the fix, and whether the graphs compute what eager does."""
    found, got = counted(subject, subject.compilable)
    try:
        expected = ProofCall(subject, subject.build(0), subject.unchanged).all()
        results = compared(subject, 0, "eager", expected, got)
    except Exception as error:  # noqa: BLE001  (eager mode may raise what the graph does not)
        results = False, words_of(error)
    return {**found, "results": results}


def counted(subject: ProofSubject, fix: Callable[..., Any]) -> tuple[dict[str, int], list[Outcome]]:
    """Return what is captured and compiled in four calls of a model, and what each call did.

    `operators` are those that graphs run: one graph may serve several layers. `late` are calls of a
    shape that was seen before in which Dynamo compiled something again.
    """
    torch._dynamo.reset()
    counters.clear()
    operators = 0

    def backend(module: Any, _: Any) -> Any:
        graphs = [each.graph for each in module.modules() if hasattr(each, "graph")]
        held = sum(node.op.startswith("call_") for graph in graphs for node in graph.nodes)

        def run(*values: Any) -> Any:
            nonlocal operators
            operators += held
            return module.forward(*values)

        return run

    breaks = Breaks(logging.DEBUG)
    logging.getLogger("torch.__trace").addHandler(breaks)
    calling = ProofCall(subject, subject.build(0), fix, backend)
    stats, frames = counters["stats"], counters["frames"]
    found, outcomes = {"late": 0}, []
    with restored_globals(calling.model):
        for number, (shape, seed) in enumerate(CALLS):
            before = stats["unique_graphs"]
            outcomes.append(calling(*arguments(subject, shape, seed), seed=number))
            if number == 0:
                # Dynamo gives up a frame without a graph break where it meets an unknown size.
                found["breaks"] = breaks.count + frames["total"] - frames["ok"]
                found |= {"graphs": stats["unique_graphs"], "operators": operators}
            found["late"] += number >= len(SHAPES) and stats["unique_graphs"] > before
    found["compilations"] = stats["unique_graphs"]
    return found, outcomes


def left_behind(subject: ProofSubject) -> Step:
    """Whether the fix ends with its context: settings and functions of PyTorch are as before."""

    def settings() -> dict[str, Any]:
        owners = (torch, torch.nn.functional, torch.Tensor, torch.nn.Module)
        functions = {
            f"{owner.__name__}.{name}": id(value)
            for owner in owners
            for name, value in vars(owner).items()
            if callable(value)
        }
        config = {
            f"torch._dynamo.config.{name}": value
            for name, value in torch._dynamo.config.get_config_copy().items()
        }
        others = {"grad mode": torch.is_grad_enabled(), "dtype": torch.get_default_dtype()}
        return functions | config | others

    model = subject.build(0)
    model_args, model_kwargs = arguments(subject, SHAPES[0], 0)
    before = settings()
    with subject.compilable(model, model_args, model_kwargs, {}):
        pass
    after = settings()
    changed = [name for name, value in before.items() if after.get(name) != value]
    return not changed, f"{changed[0]} stays changed" if changed else ""


# --- what it computes -----------------------------------------------------------------------------


def equal_calls(
    subject: ProofSubject,
    seed: int,
    backend: str | None = None,
    *,
    whole: bool = True,
    raising: tuple[str, ...] = (),
) -> Step:
    """Whether a model with the fix, compiled once, does in all calls what eager mode does.

    With `whole`, it is compiled with `fullgraph=True`. Without a backend it is not compiled.
    `raising` are the unusual values for which it must raise an error, as eager mode does.
    """
    counters.clear()
    expected = ProofCall(subject, subject.build(seed), subject.unchanged).all()
    fixed = ProofCall(subject, subject.build(seed), subject.compilable, backend, whole=whole)
    got = fixed.all()
    if backend is not None and not counters["stats"]["unique_graphs"]:
        raise RuntimeError("nothing is captured")
    found = compared(subject, seed, backend, expected, got)
    for kind in raising:
        if untouched(partial(hides_error, fixed, kind)) is True:
            return False, f"no error for {kind}, for which eager mode raises one"
    return found


def compared(
    subject: ProofSubject,
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
    subject: ProofSubject,
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
        plain = ProofCall(subject, subject.build(seed), subject.unchanged, backend).all()
        pairs = zip(expected, plain, strict=True)
        if any(difference(*pair, tolerance) for pair in pairs):
            return " (the compiled model differs from eager mode without the fix, too)"
    return ""


def in_float64(subject: ProofSubject, seed: int, number: int) -> Outcome | None:
    """Return a call of the model in float64, None if it cannot be called so."""

    def doubled(value: torch.Tensor) -> torch.Tensor:
        return value.double() if value.is_floating_point() else value

    with contextlib.suppress(Exception):
        args, kwargs = tree_map_only(torch.Tensor, doubled, arguments(subject, *CALLS[number]))
        precise = ProofCall(subject, subject.build(seed).double(), subject.unchanged)
        return precise(args, kwargs, seed=number)
    return None


def equal_integers(
    subject: ProofSubject, seed: int, expected: list[Outcome], got: list[Outcome]
) -> Step:
    """Whether Inductor's integers are those of eager mode.

    The index of the largest of equal values depends on the last bit: where some differ, as many
    must differ in the model as it is.
    """
    pairs = list(zip(expected, got, strict=True))
    if not any(unequal_integers(*pair, subject.drops) for pair in pairs):
        return True, f"{len(CALLS)} calls"
    torch._dynamo.reset()
    as_it_is = ProofCall(subject, subject.build(seed), subject.unchanged, "inductor").all()
    for (ours, theirs), plain in zip(pairs, as_it_is, strict=True):
        usual = unequal_integers(ours, plain, subject.drops)
        for name, count in unequal_integers(ours, theirs, subject.drops).items():
            if count > usual.get(name, 0):
                return False, f"{name} differs in {count} elements"
    return True, f"{len(CALLS)} calls; integers differ without the fix, too"


def unusual(subject: ProofSubject, kind: str, models: Iterable[torch.nn.Module]) -> tuple[Any, Any]:
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


def for_unusual(subject: ProofSubject, *, whole: bool) -> list[tuple[str, bool, str, bool]]:
    """Whether the graph does what the model does for unusual values, errors included.

    The model is compiled for usual inputs, and called with unusual ones after that, for each kind
    in a fork. Returns of each kind its name, a step, and whether eager mode raises an error.
    """
    plain = ProofCall(subject, subject.build(0), subject.unchanged)
    fixed = ProofCall(subject, subject.build(0), subject.compilable, "eager", whole=whole)
    for each in (plain, fixed):
        with restored_globals(each.model):
            each(*arguments(subject, SHAPES[0], 0), seed=0)

    def outcome(kind: str) -> tuple[bool, str, bool]:
        values = unusual(subject, kind, (plain.model, fixed.model))
        try:
            with restored_globals(plain.model):
                expected = plain(*values, seed=1)
        except Exception as error:  # noqa: BLE001  (the model's own check)
            raised = words_of(error)
            if hides_error(fixed, kind):
                return False, f"eager mode raises an error that the fix hides ({raised})", True
            return True, f"an error as in eager mode ({raised})", True
        got = fixed(*unusual(subject, kind, ()), seed=1)
        # Where a branch became a selection, a copy is returned instead of the input itself.
        found = difference(
            expected, got, CAPTURE_TOLERANCE, dropped=subject.drops, ignored=(MEMORY,)
        )
        return not found, found, False

    found = []
    for kind in UNUSUAL:
        said = untouched(partial(outcome, kind))
        if said == DIED and untouched(partial(hides_error, plain, kind)) == DIED:
            said = (True, "eager mode ends the process", False)
        found.append((kind, *((False, said["raised"], False) if "raised" in said else said)))
    return found


def hides_error(calling: ProofCall, kind: str) -> bool:
    """Whether a model, compiled or not, raises no error for unusual values."""
    values = unusual(calling.subject, kind, (calling.model,))
    try:
        calling(*values, seed=1)
    except Exception:  # noqa: BLE001  (whatever it raises)
        return False
    return True
