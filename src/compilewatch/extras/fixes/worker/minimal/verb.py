"""The worker's part of `reproduce --minimal`: build, reach, cut out, reduce, verify."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from compilewatch.contract.failures import one_line
from compilewatch.errors import InputsError
from compilewatch.extras.fixes.minimal.messages import (
    CHOICE_SECONDS,
    MinimalOrder,
    MinimalOutcome,
    MinimalReproducer,
)
from compilewatch.extras.fixes.worker.minimal.candidates import ReproducerCandidate, candidates
from compilewatch.extras.fixes.worker.minimal.checking import CheckServer
from compilewatch.extras.fixes.worker.minimal.fresh import (
    Showing,
    complete,
    count_lines,
    may_raise,
    run_fresh,
)
from compilewatch.extras.fixes.worker.minimal.reasons import Likeness
from compilewatch.extras.fixes.worker.minimal.reduction import (
    Chosen,
    choose,
    like,
    load_reducer,
    reduced,
)
from compilewatch.records import Depth, GraphBreak, Mode, Record, Request, Tier
from compilewatch.worker import forked


class _Choice(Record, frozen=True, kw_only=True):
    """What a fork returns: the chosen candidate, or why there is none, and how many it ran."""

    chosen: Chosen | None = None
    failure: str = ""
    checks: int = 0


def minimal(content: bytes) -> MinimalOutcome:
    """Do what `content` says, a `MinimalOrder` as JSON."""
    torch.set_num_threads(1)  # a fork of a process with a pool of threads would wait for them
    order = msgspec.json.decode(content, type=MinimalOrder)
    load_reducer(order.reducer)
    request = msgspec.structs.replace(order.request, tier=Tier.REAL, depth=Depth.REDUCED)
    with CheckServer() as server:
        call = model_call(request)
        breaks = order.breaks or captured_breaks(request)
        reproducers = tuple(
            _reproducer(graph_break, request, call, server, order.seconds)
            for graph_break in chosen_breaks(breaks, order)
        )
    return MinimalOutcome(reproducers=reproducers, versions=versions())


def chosen_breaks(breaks: tuple[GraphBreak, ...], order: MinimalOrder) -> tuple[GraphBreak, ...]:
    """The graph breaks that are meant. Raises InputsError, which names those that there are."""
    if not breaks:
        raise InputsError("no graph break occurs, so there is nothing to reproduce")
    if order.at is None:
        return breaks if order.breaks else breaks[:1]
    matching = tuple(graph_break for graph_break in breaks if _is_at(graph_break, order.at))
    if not matching:
        places = ", ".join(
            f"{graph_break.file}:{graph_break.line} ({graph_break.code})" for graph_break in breaks
        )
        raise InputsError(f"no graph break at {order.at}; there are: {places}")
    return matching[:1]


def _is_at(broken: GraphBreak, at: str) -> bool:
    return broken.code == at or f"/{broken.file}:{broken.line}".endswith(f"/{at}")


def model_call(request: Request) -> Callable[[], object]:
    """Build the model with its inputs, and return a function that calls it."""
    from compilewatch.worker.example_inputs import make_inputs
    from compilewatch.worker.model.overrides import overrides_of
    from compilewatch.worker.model.resolve import build_model

    torch.manual_seed(0)
    overrides = overrides_of(request)
    built = build_model(request, None, overrides)
    train = request.target.mode is Mode.TRAIN
    built.module.train(train)  # detectors take other inputs in train mode
    called: list[object] = []
    hook = register_module_forward_pre_hook(lambda module, _: called.append(module))
    try:
        inputs = make_inputs(built.module, built.config, request, overrides, None)
    finally:
        hook.remove()
    if called:  # some rules for inputs call the model, which may change it
        torch.manual_seed(0)
        built = build_model(request, None, overrides)
        built.module.train(train)

    def call() -> object:
        with torch.set_grad_enabled(train):
            return built.module(*inputs.args, **inputs.kwargs)

    return call


def captured_breaks(request: Request) -> tuple[GraphBreak, ...]:
    """Capture the model as `compilewatch explain` does, in a fork."""
    from compilewatch.worker.reproduce import captured

    return forked.in_fork(lambda: captured(request).breaks, tuple[GraphBreak, ...], [])


def _reproducer(
    broken: GraphBreak,
    request: Request,
    call: Callable[[], object],
    server: CheckServer,
    seconds: float,
) -> MinimalReproducer:
    began, before = time.monotonic(), server.count

    def outcome(**fields: Any) -> MinimalReproducer:
        spent = time.monotonic() - began
        return MinimalReproducer(
            broken=broken, checks=server.count - before, seconds=round(spent, 1), **fields
        )

    try:
        choice = forked.in_fork(
            lambda: _choose(call, broken, server, began + CHOICE_SECONDS), _Choice, []
        )
    except Exception as error:  # noqa: BLE001  (whatever code of the model raises)
        return outcome(failure=f"writing candidates failed: {one_line(error)}")
    server.count += choice.checks
    if choice.chosen is None:
        return outcome(failure=choice.failure)
    chosen = choice.chosen
    body = reduced(chosen, broken.reason, server, seconds)
    raising = complete(body, broken, request.model.name, showing=Showing.RAISED)
    raises = may_raise(broken.reason) and like(server, raising, broken.reason) >= min(
        chosen.likeness, Likeness.REASON
    )
    for showing in (Showing.RAISED,) if raises else (Showing.LOGGED, Showing.GIVEN_UP):
        source = complete(body, broken, request.model.name, showing=showing)
        fresh = run_fresh(source, broken.reason)
        if fresh.code == broken.code:
            break
    failure = ""
    if fresh.code != broken.code:
        said = fresh.code or fresh.reason
        failure = f"in a fresh process, the file shows {said} instead of {broken.code}"
    return outcome(
        source=source,
        form=chosen.candidate.form,
        lines=count_lines(source),
        fresh=fresh,
        failure=failure,
    )


def _choose(
    call: Callable[[], object], broken: GraphBreak, server: CheckServer, deadline: float
) -> _Choice:
    """Reach the graph break in this process, a fork, and choose while its frames live."""
    from compilewatch.extras.fixes.worker.minimal.frames import frames_at

    frames = frames_at(call, broken)
    if not frames:
        return _Choice(failure="the line is not reached with real tensors")
    before, tried = server.count, 0
    errors: dict[str, None] = {}

    def each() -> Iterator[ReproducerCandidate]:
        nonlocal tried
        for candidate in candidates(frames):
            tried += 1
            yield candidate
            if server.last.error:
                errors.setdefault(server.last.error)

    chosen = choose(each(), broken.reason, server, deadline)
    summary = f"none of {tried} pieces of code shows {broken.code}"
    failure = f"{summary}: {next(iter(errors), 'they show other graph breaks')}"
    return _Choice(chosen=chosen, failure=failure, checks=server.count - before)


def versions() -> dict[str, str]:
    """Versions of the packages that decide about a graph break, and of Python."""
    by_package = {"torch": str(torch.__version__), "python": platform.python_version()}
    by_package["torch_git"] = str(torch.version.git_version)
    by_package["platform"] = platform.platform()
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        by_package["transformers"] = importlib.metadata.version("transformers")
    return by_package
