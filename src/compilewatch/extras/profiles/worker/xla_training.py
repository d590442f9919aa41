"""Training steps on an XLA device, in the named blocks that XLA's own profiler shows.

XLA records operations and runs them at the end of a step: the stages `forward`, `backward` and
`optimizer` hold the time to record them, and `other` the time to compile and run the graph.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import torch
import torch_xla
import torch_xla.debug.profiler as xp

from compilewatch.extras.profiles.train.profiler import Profiler
from compilewatch.extras.profiles.train.records import Stage, TrainingOptions
from compilewatch.records import Phase
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.calls import loss_of
from compilewatch.worker.targets.execution import mapped
from compilewatch.worker.targets.xla.device import on_device

BLOCKS = ("model_build", "loss_backward", "optimizer_step")

TRACE_FOLDER = "xla"
"""Below the folder of the profile: plugins/profile/<time>/*.trace.json.gz and *.xplane.pb."""


def loop(
    subject: Subject, options: TrainingOptions, profiler: Profiler, samples: int | None
) -> str:
    """Train, and return a sentence about the blocks in XLA's trace; empty without one."""
    placed = on_device(subject)
    device = torch_xla.device()
    optimizer = torch.optim.AdamW(placed.module.parameters(), lr=options.learning_rate)
    folder = profiler.folder / TRACE_FOLDER if profiler.folder is not None else None
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
                with profiler.stage(Stage.ZERO_GRAD):
                    optimizer.zero_grad()
                with profiler.stage(Stage.FORWARD):
                    output = placed.module(*inputs.args, **inputs.kwargs)
                with profiler.stage(Stage.LOSS):
                    loss = loss_of(output)
            if loss is None:
                raise ValueError(f"{subject.request.model.name} has no output with a gradient")
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
        f"{name} {count}" for name, count in blocks(folder).items()
    )


def blocks(folder: Path) -> dict[str, int]:
    """Count the named blocks in the traces below a folder."""
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.trace.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes())).get("traceEvents", [])
        counts.update(e["name"] for e in events if e.get("name") in BLOCKS and e.get("ph") == "X")
    return {name: counts[name] for name in BLOCKS}
