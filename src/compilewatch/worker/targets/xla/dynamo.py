"""Dynamo on top of XLA: `torch.compile(module, backend="openxla")` on the XLA device."""

from __future__ import annotations

import torch._dynamo
import torch_xla
import torch_xla.debug.metrics as met

from compilewatch.records import OpenXla
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.capture import capture, unmeasured_guards
from compilewatch.worker.targets.dynamo.reasons import SKIPPED_FRAME
from compilewatch.worker.targets.execution import forward
from compilewatch.worker.targets.xla import device as xla_device
from compilewatch.worker.targets.xla.isolation import Enter

BACKEND = "openxla"


def capture_for_xla(subject: Subject, _enter: Enter) -> OpenXla:
    """Compile and run one call; a step for `isolated`."""
    placed = xla_device.on_device(subject)
    met.clear_all()
    with unmeasured_guards():
        captured = capture(
            lambda module: _call(placed, module),
            placed.module,
            backend=torch._dynamo.lookup_backend(BACKEND),
            dynamic=subject.request.target.dynamic,
        )
    breaks = captured.log.breaks()
    first = breaks[0] if breaks else None
    code = first.code if first else None
    return OpenXla(
        accepted=captured.is_single_graph,
        graphs=captured.graphs,
        graph_breaks=sum(graph_break.occurrences for graph_break in breaks),
        breaks=breaks,
        fallbacks=xla_device.fallbacks(),
        code=code if captured.is_single_graph or code else SKIPPED_FRAME,
        reason=first.reason if first else None,
    )


def _call(placed: Subject, module: object) -> None:
    forward(placed, module, placed.inputs)  # type: ignore[arg-type]
    torch_xla.sync(wait=True)
