"""The XLA device of this process: moving a subject there, and the counters of torch_xla.

Importing this module needs torch_xla; only using it creates a device client, whose threads make a
fork impossible. Names of counters and metrics: `torch_xla/debug/metrics.py` (2.9).
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import torch_xla
import torch_xla.debug.metrics as met
from torch import nn

from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.execution import mapped

DEVICE_TYPE = "xla"
_OUTSIDE = "aten::"
_LOWERED = "xla::"


def on_device(subject: Subject) -> Subject:
    """Return a copy on the XLA device.

    Not by `module.to`, which makes a separate tensor there for each name of a tied weight (torch
    2.9): instead, `deepcopy` gets the device's tensors for the module's.
    """
    device = torch_xla.device()
    memo: dict[int, Any] = {}
    for parameter in subject.module.parameters():
        moved = parameter.detach().to(device)
        memo[id(parameter)] = nn.Parameter(moved, requires_grad=parameter.requires_grad)
    for buffer in subject.module.buffers():
        memo[id(buffer)] = buffer.detach().to(device)
    placed = replace(subject, module=copy.deepcopy(subject.module, memo))
    return fed(placed, subject)


def fed(placed: Subject, subject: Subject) -> Subject:
    """Return the subject on the device with copies of another's inputs, nothing being pending."""
    device = torch_xla.device()
    inputs = mapped(subject.inputs, lambda tensor: tensor.to(device))
    torch_xla.sync(wait=True)
    return replace(placed, inputs=inputs)


def is_placed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == DEVICE_TYPE


def counter(name: str) -> int:
    return int(met.counter_value(name) or 0)


def compiled_graphs() -> int:
    """Return the number of graphs that XLA compiled since the last `clear_all`."""
    return counter("UncachedCompile")


def executions() -> int:
    """Return the number of graphs that ran since then, including cached ones."""
    return counter("ExecuteComputation")


def compile_seconds() -> float:
    """Return the seconds in XLA's compiler since then (the metric is in nanoseconds)."""
    data = met.metric_data("CompileTime")
    return float(data[1]) / 1e9 if data is not None else 0.0


def fallbacks() -> dict[str, int]:
    """Return how often each operator (`aten::nonzero`) ran outside XLA, on the CPU, since then."""
    return _counted(_OUTSIDE)


def lowered() -> dict[str, int]:
    """Return how often each operator (`aten::sort`) was recorded for XLA since then."""
    counts = _counted(_LOWERED)
    return {_OUTSIDE + name.removeprefix(_LOWERED): count for name, count in counts.items()}


def _counted(prefix: str) -> dict[str, int]:
    return {name: counter(name) for name in met.counter_names() if name.startswith(prefix)}
