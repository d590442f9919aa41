"""Trains a model on its example inputs for some steps.

On eager mode, Inductor and XLA it trains under the profiler of training scripts, on a NeuronCore
under torch.profiler with TorchNeuron's part of it. `BLOCKS` are the named blocks in the traces of
XLA and Neuron.
"""

import gzip
import importlib
import importlib.util
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from compilewatch.contract.failures import error_record, one_line
from compilewatch.errors import CompilerError
from compilewatch.extras.profiles.profiler import Profiler
from compilewatch.extras.profiles.training import Stage
from compilewatch.neuron.profiler import is_of_session
from compilewatch.records import Phase, Request, Result, Status, TargetOutcome, Tier
from compilewatch.worker.example_inputs import make_inputs
from compilewatch.worker.example_inputs.sizes import rows_of, with_rows
from compilewatch.worker.model.resolve import build_model
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.capture import loss_of
from compilewatch.worker.targets.execution import mapped

EAGER = "eager"

BLOCKS = ("model_build", "loss_backward", "optimizer_step")
"""The named blocks of a step, of which each has its line in a view."""

XLA_FOLDER = "xla"
"""Below the folder of the profile: plugins/profile/<time>/*.trace.json.gz and *.xplane.pb."""

DEVICE, PROFILING = "neuron", "torch_neuronx.profiling"

WARM_UP_STEPS = 3
"""Steps on a NeuronCore before the profile; the first one compiles."""

LEARNING_RATE = 1e-4
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


def train(subject: Subject, options: dict[str, Any]) -> TargetOutcome:
    """Train for some steps and say whether that worked; `options` are the arguments of `_train`."""
    return _train(subject, **options)


def _train(
    subject: Subject,
    *,
    out: str,
    steps: int,
    warm_up: int,
    trace_steps: int,
    batch_size: int | None,
    compiled: bool,
) -> TargetOutcome:
    """Train for `steps` steps; the profile's folder is created in the absolute folder `out`.

    Unless `compiled`, the model trains in eager mode, whatever the target. `batch_size` repeats or
    drops rows of the example inputs; None leaves them as they are. The first step, which compiles,
    is in the phase `compile`, the others are in `profile`.
    """
    request = subject.request
    target = request.target
    label = ":".join(filter(None, (target.name, target.backend))) if compiled else EAGER
    profiler = Profiler(
        out,
        warm_up=warm_up,
        trace_steps=trace_steps,
        model=request.model.name,
        target=label,
        settings={
            "depth": request.depth.value,
            "parameters": sum(parameter.numel() for parameter in subject.module.parameters()),
            "inputs": subject.inputs.strategy,
            "learning_rate": LEARNING_RATE,
        },
    )
    subject.enter(Phase.COMPILE)
    counters.clear()
    words = ""

    def end_step(index: int) -> None:
        if index == 0:
            subject.enter(Phase.PROFILE)

    try:
        inputs = _resized(subject.inputs, batch_size)
        with ExitStack() as stack:
            if compiled and target.name == "inductor":
                from torch._inductor import config
                from torch._inductor.utils import fresh_cache

                # As the target inductor: no pool of compilers, random numbers as in eager mode.
                stack.enter_context(config.patch(compile_threads=1, fallback_random=True))
                stack.enter_context(fresh_cache())
            stack.enter_context(profiler)
            if target.name == "xla":
                traced = range(warm_up, min(warm_up + trace_steps, steps))
                words = _xla_loop(subject, inputs, steps, traced, profiler, end_step)
            else:
                module: Any = subject.module
                optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
                if compiled:
                    backend = target.backend or "inductor"
                    module = torch.compile(module, backend=backend, dynamic=target.dynamic)
                _loop(inputs, module, steps, optimizer, profiler, end_step)
    except Exception as error:  # noqa: BLE001  (the edge to model code and to the compiler)
        record = error_record(error)
        oom = record.code == "out_of_memory"
        detail = str(error) if isinstance(error, UntrainableError) else one_line(error)
        return TargetOutcome(
            status=Status.OOM if oom else Status.ERROR, detail=detail, error=record
        )
    captured = compiled and target.name == "inductor"
    return TargetOutcome(
        status=Status.PASS,
        detail="; ".join(filter(None, [f"{steps} steps", words, *profiler.problems])),
        graphs=counters["stats"]["unique_graphs"] if captured else None,
    )


def _loop(
    inputs: ExampleInputs,
    call: Any,
    steps: int,
    optimizer: torch.optim.Optimizer,
    profiler: Profiler,
    end_step: Callable[[int], object],
    *,
    place: Callable[[torch.Tensor], torch.Tensor] = torch.clone,
    views: Any = None,
) -> None:
    """Train by calling `call` on the inputs, which `place` copies to where it computes.

    `views` is XLA's profiler, in whose traces steps and `BLOCKS` are named. `end_step` is called
    with the number of each step, outside of its blocks. Raises UntrainableError.
    """

    def block(name: str) -> AbstractContextManager[object]:
        return nullcontext() if views is None else views.Trace(name)

    for index in range(steps):
        torch.manual_seed(index)  # The same dropout on each target, so that losses compare.
        whole = views and views.StepTrace("training_step", step_num=index)
        with whole or nullcontext():
            with profiler.stage(Stage.DATA):
                placed = mapped(inputs, place)
            with block("model_build"):
                with profiler.stage(Stage.ZERO_GRAD):
                    optimizer.zero_grad()
                with profiler.stage(Stage.FORWARD):
                    output = call(*placed.args, **placed.kwargs)
                with profiler.stage(Stage.LOSS):
                    loss = loss_of(output)
            if loss is None:
                raise UntrainableError("the model has no output with a gradient")
            with block("loss_backward"), profiler.stage(Stage.BACKWARD):
                loss.backward()
            with block("optimizer_step"), profiler.stage(Stage.OPTIMIZER):
                optimizer.step()
        end_step(index)
        profiler.step(loss=loss, samples=rows_of(inputs))


def _resized(inputs: ExampleInputs, batch: int | None) -> ExampleInputs:
    """Return inputs of a wanted batch size. Raises UntrainableError."""
    rows = rows_of(inputs)
    if batch is None or rows == batch:
        return inputs
    if rows is None:
        raise UntrainableError("the inputs have no batch dimension: leave out --batch-size")
    return with_rows(inputs, rows, batch)


def _xla_loop(
    subject: Subject,
    inputs: ExampleInputs,
    steps: int,
    traced: range,
    profiler: Profiler,
    end_step: Callable[[int], object],
) -> str:
    """Train on XLA, and return a sentence about the blocks in its trace; empty without one.

    XLA records operations and runs them at the end of a step: the stages `forward`, `backward` and
    `optimizer` hold the time to record them, and `other` the time to compile and run the graph.
    """
    import torch_xla
    import torch_xla.debug.profiler as xp

    from compilewatch.worker.targets.xla.capture import on_device

    module, device = on_device(subject).module, torch_xla.device()
    folder = profiler.folder / XLA_FOLDER if profiler.folder is not None else None

    def trace(index: int) -> None:
        """Start and stop the trace where step `index` is the next one."""
        if folder is not None and traced and index == traced.start:
            xp.start_trace(str(folder))
        elif folder is not None and traced and index == traced.stop:
            xp.stop_trace()

    def end(index: int) -> None:
        torch_xla.sync(wait=True)
        trace(index + 1)
        end_step(index)

    def place(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device)

    trace(0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE)
    work = (inputs, module, steps, optimizer, profiler, end)
    _loop(*work, place=place, views=xp)
    if folder is None or not folder.exists():
        return ""
    counts = ", ".join(f"{name} {count}" for name, count in xla_blocks(folder).items())
    return f"blocks in the trace of XLA: {counts}"


def xla_blocks(folder: Path) -> dict[str, int]:
    """Count the named blocks in the traces below a folder."""
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.trace.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes())).get("traceEvents", [])
        counts.update(e["name"] for e in events if e.get("name") in BLOCKS and e.get("ph") == "X")
    return {name: counts[name] for name in BLOCKS}


def api() -> Any:
    """Import the profiler of TorchNeuron, and its device. Raises CompilerError without one."""
    from compilewatch.worker.targets.neuron.native import PROFILING as NAMES

    if importlib.util.find_spec("torch_neuronx") is None:
        raise CompilerError("this environment has no torch_neuronx: compilewatch env create neuron")
    try:
        importlib.import_module("torch_neuronx")  # workers run without torch's autoload
        module = importlib.import_module(PROFILING)
        if missing := [name for name in NAMES if not hasattr(module, name)]:
            raise ImportError(f"{PROFILING} has no {missing[0]}")
        return module
    except ImportError as error:
        raise CompilerError(
            "training steps are profiled with TorchNeuron (torch-neuronx 2.13 and newer), which "
            f"this environment lacks ({one_line(error)}); with PyTorch/XLA, capture a compiled "
            "model: `compilewatch profile neuron capture FILE.neff`"
        ) from None


def captured(content: bytes) -> tuple[str, ...]:
    """Train for some steps on a NeuronCore under torch.profiler; return the files of the capture.

    They are relative to its folder. `content` is a request as JSON; the options of its work are the
    number of `steps`, the `modes` by name and the absolute `folder`. Raises CompilerError. Source:
    Neuron SDK 2.33, how-to-profile-pytorch of tools/neuron-explorer, which wants three steps before
    the profile and a synchronisation in it.
    """
    request = msgspec.json.decode(content, type=Request)
    assert request.work is not None
    options = request.work.options
    steps, folder = options["steps"], Path(options["folder"])
    # The NEFFs are then beside the traces, which tools need them to read.
    os.environ["TORCH_NEURONX_NEFF_CACHE_DIR"] = str(folder / "neff")
    profiling = api()
    neuron: Any = getattr(torch, DEVICE)
    torch.manual_seed(0)
    built = build_model(request, None)
    inputs = make_inputs(built.module.train(), request, None)
    module = built.module.to(DEVICE)
    compiled = torch.compile(module, backend=DEVICE, dynamic=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=NEURON_LEARNING_RATE)
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.rglob("*"))
    config = profiling.NeuronConfig(
        modes=[getattr(profiling.ProfileMode, name) for name in options["modes"]],
        profile_output_dir=str(folder),
    )
    named = torch.profiler.record_function
    views = SimpleNamespace(Trace=named, StepTrace=lambda n, step_num: named(f"{n} {step_num}"))

    def train(count: int) -> None:
        work = (compiled, count, optimizer, Profiler(enabled=False))
        _loop(
            inputs,
            *work,
            lambda _: neuron.synchronize(),
            place=lambda tensor: tensor.to(DEVICE),
            views=views,
        )

    activity = torch.profiler.ProfilerActivity
    try:
        train(WARM_UP_STEPS)
        with torch.profiler.profile(
            activities=[activity.CPU, activity.PrivateUse1],
            experimental_config=config,
            on_trace_ready=profiling.NeuronProfiler(config).export_trace,
        ):
            train(steps)
    except UntrainableError as error:
        raise CompilerError(str(error)) from None
    files = sorted(path for path in set(folder.rglob("*")) - before if path.is_file())
    if not any(is_of_session(path) for path in files):
        raise CompilerError(
            f"the profiler wrote nothing into {folder}: unset the variables NEURON_RT_INSPECT_*, "
            "which exclude it"
        )
    return tuple(path.relative_to(folder).as_posix() for path in files)
