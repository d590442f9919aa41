"""Trains a model on its example inputs for some steps, under the profiler of training scripts."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from compilewatch.contract.failures import error_record, one_line
from compilewatch.extras.profiles.train.profiler import Profiler
from compilewatch.extras.profiles.train.records import Stage, TrainingOptions
from compilewatch.extras.profiles.worker.batches import rows_of, with_rows
from compilewatch.records import Phase, Request, Result, Status, Tier
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import TargetOutcome
from compilewatch.worker.targets.dynamo.calls import loss_of
from compilewatch.worker.targets.execution import mapped

EAGER = "eager"


class UntrainableError(Exception):
    """The model has no output with a gradient, or its inputs have no batch dimension."""


def trained(content: bytes) -> Result:
    """Train for a profile in this process, whose autograd no warm-up has started.

    Autograd knows only the devices that exist at its first backward; XLA's comes with torch_xla.
    `content` is a request as JSON.
    """
    from compilewatch.worker import phases

    request = msgspec.json.decode(content, type=Request)
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        return phases.evaluate(request, Tier.REAL, Path(folder), lambda _: None).result


def train(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Train for some steps and say whether that worked; `values` are `TrainingOptions`.

    The first step, which compiles, is in the phase `compile`, the others are in `profile`.
    """
    options = msgspec.convert(values, TrainingOptions)
    request = subject.request
    target = request.target
    label = ":".join(filter(None, (target.name, target.backend))) if options.compiled else EAGER
    profiler = Profiler(
        options.out,
        warm_up=options.warm_up,
        trace_steps=options.trace_steps,
        model=request.model.name,
        target=label,
        settings={
            "depth": request.depth.value,
            "parameters": sum(each.numel() for each in subject.module.parameters()),
            "inputs": subject.inputs.strategy,
            "learning_rate": options.learning_rate,
        },
    )
    subject.enter(Phase.COMPILE)
    counters.clear()
    words = ""
    try:
        subject = _resized(subject, options.batch_size)
        with ExitStack() as stack:
            if options.compiled and target.name == "inductor":
                from torch._inductor import config
                from torch._inductor.utils import fresh_cache

                # As the target inductor: no pool of compilers, random numbers as in eager mode.
                stack.enter_context(config.patch(compile_threads=1, fallback_random=True))
                stack.enter_context(fresh_cache())
            stack.enter_context(profiler)
            if target.name == "xla":
                from compilewatch.extras.profiles.worker import xla_training

                words = xla_training.loop(subject, options, profiler, rows_of(subject.inputs))
            else:
                _loop(subject, options, profiler)
    except Exception as error:  # noqa: BLE001  (the edge to model code and to the compiler)
        record = error_record(error)
        oom = record.code == "out_of_memory"
        detail = str(error) if isinstance(error, UntrainableError) else one_line(error)
        return TargetOutcome(
            status=Status.OOM if oom else Status.ERROR, detail=detail, error=record
        )
    captured = options.compiled and target.name == "inductor"
    graphs = counters["stats"]["unique_graphs"] if captured else None
    return TargetOutcome(
        status=Status.PASS,
        detail="; ".join(filter(None, [f"{options.steps} steps", words, *profiler.problems])),
        graphs=graphs,
    )


def _loop(subject: Subject, options: TrainingOptions, profiler: Profiler) -> None:
    module, samples = subject.module, rows_of(subject.inputs)
    call: Any = module
    if options.compiled:
        call = torch.compile(
            module,
            backend=subject.request.target.backend or "inductor",
            dynamic=subject.request.target.dynamic or None,
        )
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.learning_rate)
    for index in range(options.steps):
        torch.manual_seed(index)  # The same dropout on each target, so that losses compare.
        with profiler.stage(Stage.DATA):
            inputs = mapped(subject.inputs, torch.clone)
        with profiler.stage(Stage.ZERO_GRAD):
            optimizer.zero_grad()
        with profiler.stage(Stage.FORWARD):
            output = call(*inputs.args, **inputs.kwargs)
        with profiler.stage(Stage.LOSS):
            loss = loss_of(output)
        if loss is None:
            raise UntrainableError(f"{subject.request.model.name} has no output with a gradient")
        with profiler.stage(Stage.BACKWARD):
            loss.backward()
        with profiler.stage(Stage.OPTIMIZER):
            optimizer.step()
        profiler.step(loss=loss, samples=samples)
        if index == 0:
            subject.enter(Phase.PROFILE)


def _resized(subject: Subject, batch: int | None) -> Subject:
    """Return the subject with inputs of a wanted batch size. Raises UntrainableError."""
    rows = rows_of(subject.inputs)
    if batch is None or rows == batch:
        return subject
    if rows is None:
        raise UntrainableError("the inputs have no batch dimension: leave out --batch-size")
    return replace(subject, inputs=with_rows(subject.inputs, rows, batch))
