"""Trains a model on its example inputs for some steps.

On eager mode, Inductor and XLA it trains under the profiler of training scripts. On a NeuronCore it
trains under that of torch_neuronx: Neuron SDK 2.32, `torch_neuronx.experimental.profiler` and
`torch_xla.debug.profiler`. The named blocks that XLA's own views show are `BLOCKS`.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from compilewatch.contract.failures import error_record, one_line
from compilewatch.errors import CompilerError
from compilewatch.extras.profiles.messages import CapturedProfile, NeuronCapture
from compilewatch.extras.profiles.profiler import Profiler
from compilewatch.extras.profiles.training import Stage, TrainingOptions
from compilewatch.extras.profiles.worker.subject import rows_of, with_rows
from compilewatch.records import Phase, Request, Result, Status, Tier
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.model.overrides import overrides_of
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets import TargetOutcome
from compilewatch.worker.targets.dynamo.capture import loss_of
from compilewatch.worker.targets.execution import mapped

EAGER = "eager"

BLOCKS = ("model_build", "loss_backward", "optimizer_step")
"""The named blocks of a step, of which each has its line in a view."""

XLA_FOLDER = "xla"
"""Below the folder of the profile: plugins/profile/<time>/*.trace.json.gz and *.xplane.pb."""

EXPERIMENTAL = "torch_neuronx.experimental.profiler"

NEURON_LEARNING_RATE = 0.01


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
            "parameters": sum(parameter.numel() for parameter in subject.module.parameters()),
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
                words = _xla_loop(subject, options, profiler)
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
        target = subject.request.target
        backend = target.backend or "inductor"
        call = torch.compile(module, backend=backend, dynamic=target.dynamic)
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.learning_rate)
    for index in range(options.steps):
        torch.manual_seed(index)  # The same dropout on each target, so that losses compare.
        with profiler.stage(Stage.DATA):
            inputs = mapped(subject.inputs, torch.clone)
        loss = _forward(subject, call, inputs, optimizer, profiler)
        with profiler.stage(Stage.BACKWARD):
            loss.backward()
        with profiler.stage(Stage.OPTIMIZER):
            optimizer.step()
        profiler.step(loss=loss, samples=samples)
        if index == 0:
            subject.enter(Phase.PROFILE)


def _forward(
    subject: Subject, call: Any, inputs: ExampleInputs, optimizer: Any, profiler: Profiler
) -> torch.Tensor:
    with profiler.stage(Stage.ZERO_GRAD):
        optimizer.zero_grad()
    with profiler.stage(Stage.FORWARD):
        output = call(*inputs.args, **inputs.kwargs)
    with profiler.stage(Stage.LOSS):
        loss = loss_of(output)
    if loss is None:
        raise UntrainableError(f"{subject.request.model.name} has no output with a gradient")
    return loss


def _resized(subject: Subject, batch: int | None) -> Subject:
    """Return the subject with inputs of a wanted batch size. Raises UntrainableError."""
    rows = rows_of(subject.inputs)
    if batch is None or rows == batch:
        return subject
    if rows is None:
        raise UntrainableError("the inputs have no batch dimension: leave out --batch-size")
    return replace(subject, inputs=with_rows(subject.inputs, rows, batch))


def _xla_loop(subject: Subject, options: TrainingOptions, profiler: Profiler) -> str:
    """Train on XLA, and return a sentence about the blocks in its trace; empty without one.

    XLA records operations and runs them at the end of a step: the stages `forward`, `backward` and
    `optimizer` hold the time to record them, and `other` the time to compile and run the graph.
    """
    import torch_xla
    import torch_xla.debug.profiler as xp

    from compilewatch.worker.targets.xla.capture import on_device

    placed, samples = on_device(subject), rows_of(subject.inputs)
    device = torch_xla.device()
    optimizer = torch.optim.AdamW(placed.module.parameters(), lr=options.learning_rate)
    folder = profiler.folder / XLA_FOLDER if profiler.folder is not None else None
    tracing = False
    for index in range(options.steps):
        if index == options.warm_up and folder is not None and options.trace_steps:
            xp.start_trace(str(folder))
            tracing = True
        torch.manual_seed(index)
        with xp.StepTrace("training_step", step_num=index):
            with profiler.stage(Stage.DATA):
                inputs = mapped(subject.inputs, lambda tensor: tensor.to(device))
            with xp.Trace("model_build"):
                loss = _forward(subject, placed.module, inputs, optimizer, profiler)
            with xp.Trace("loss_backward"), profiler.stage(Stage.BACKWARD):
                loss.backward()
            with xp.Trace("optimizer_step"), profiler.stage(Stage.OPTIMIZER):
                optimizer.step()
        torch_xla.sync(wait=True)
        profiler.step(loss=loss, samples=samples)
        if index == 0:
            subject.enter(Phase.PROFILE)
        if tracing and index + 1 == min(options.warm_up + options.trace_steps, options.steps):
            xp.stop_trace()
            tracing = False
    if folder is None or not folder.exists():
        return ""
    return "blocks in the trace of XLA: " + ", ".join(
        f"{name} {count}" for name, count in xla_blocks(folder).items()
    )


def xla_blocks(folder: Path) -> dict[str, int]:
    """Count the named blocks in the traces below a folder."""
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.trace.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes())).get("traceEvents", [])
        counts.update(e["name"] for e in events if e.get("name") in BLOCKS and e.get("ph") == "X")
    return {name: counts[name] for name in BLOCKS}


def api() -> Any:
    """Import the profiler of torch_neuronx. Raises CompilerError that says which SDK has which."""
    if importlib.util.find_spec("torch_neuronx") is None:
        raise CompilerError("this environment has no torch_neuronx: compilewatch env create neuron")
    try:
        return importlib.import_module(EXPERIMENTAL)
    except ImportError:
        newer = hasattr(torch.profiler, "NeuronConfig")
        what = (
            "profiles with torch.profiler and NeuronConfig" if newer else f"has no {EXPERIMENTAL}"
        )
        raise CompilerError(
            f"this SDK {what}, which compilewatch does not drive: capture the model's NEFF with "
            "`compilewatch profile neuron capture FILE.neff`"
        ) from None


def captured(content: bytes) -> CapturedProfile:
    """Train for some steps inside of the profiler's context. Raises CompilerError.

    `content` is a `NeuronCapture` as JSON.
    """
    order = msgspec.json.decode(content, type=NeuronCapture)
    profiler = api()
    overrides = overrides_of(order.request)
    torch.manual_seed(0)
    built = build_model(order.request, None, overrides)
    built.module.train()
    inputs = make_inputs(built.module, built.config, order.request, overrides, None)
    folder = Path(order.neuron_tensorboard_plugin_dir)
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.rglob("*"))
    with profiler.profile(
        port=order.port,
        profile_type=order.profile_type,
        ms_duration=order.ms_duration,
        neuron_tensorboard_plugin_dir=order.neuron_tensorboard_plugin_dir,
        delete_working=order.delete_working,
    ):
        # The model is moved to the device in here: what was moved before would not be recorded.
        blocks = _train_on_neuron(built.module, inputs, order.steps)
    files = sorted(path for path in set(folder.rglob("*")) - before if path.is_file())
    if not files:
        raise CompilerError(
            f"the profiler wrote nothing into {folder}: raise --ms-duration, and unset the "
            "variables NEURON_RT_INSPECT_*, which exclude it"
        )
    return CapturedProfile(
        api=EXPERIMENTAL,
        steps=order.steps,
        blocks=blocks,
        files=tuple(path.relative_to(folder).as_posix() for path in files),
    )


def _train_on_neuron(module: torch.nn.Module, inputs: ExampleInputs, steps: int) -> dict[str, int]:
    """Train in named blocks, and return how often each has run."""
    import torch_xla.core.xla_model as xm

    profiler: Any = importlib.import_module("torch_xla.debug.profiler")
    ran: Counter[str] = Counter()
    device = xm.xla_device()
    module = module.to(device)
    placed = mapped(inputs, lambda tensor: tensor.to(device))
    optimizer = torch.optim.SGD(module.parameters(), lr=NEURON_LEARNING_RATE)
    for number in range(steps):
        with profiler.StepTrace("training_step", step_num=number):
            with profiler.Trace("model_build"):
                optimizer.zero_grad()
                loss = loss_of(module(*placed.args, **placed.kwargs))
            if loss is None:
                raise CompilerError("the model has no output with a gradient")
            with profiler.Trace("loss_backward"):
                loss.backward()
            with profiler.Trace("optimizer_step"):
                optimizer.step()
            ran.update(BLOCKS)
        xm.mark_step()  # torch_xla rejects it inside of a named block
    xm.wait_device_ops()
    return dict(ran)
