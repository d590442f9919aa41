"""Calls a compiled model with the sizes of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from compilewatch.extras.shapes.records import REPORT_FILE, ShapeReport
from compilewatch.records import Phase, ShapeSeries, Status, TargetOutcome
from compilewatch.worker.example_inputs.sizes import inputs_of
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.capture import call_once
from compilewatch.worker.targets.dynamo.series import series


def trace(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Write what the sizes `calls` compile, as called and with `dynamic=True`, to a file."""
    subject.enter(Phase.COMPILE)
    calls: list[dict[str, int]] = values["calls"]
    report = ShapeReport(
        as_called=traced(subject, calls, dynamic=None), dynamic=traced(subject, calls, dynamic=True)
    )
    (subject.artifacts / REPORT_FILE).write_bytes(msgspec.json.encode(report))
    return TargetOutcome(status=Status.PASS, artifacts=(REPORT_FILE,))


def traced(
    subject: Subject, calls: Sequence[dict[str, int]], *, dynamic: bool | None
) -> ShapeSeries:
    """Return what the calls compile, of a model that nothing has called.

    A call that fails is made in eager mode, too: what the model itself rejects says nothing.
    """
    recorded = subject.in_fork(partial(_called, calls, dynamic), ShapeSeries)
    return msgspec.structs.replace(
        recorded,
        calls=tuple(
            msgspec.structs.replace(call, rejected=is_rejected(subject, call.sizes))
            if call.error
            else call
            for call in recorded.calls
        ),
    )


def _called(calls: Sequence[dict[str, int]], dynamic: bool | None, subject: Subject) -> ShapeSeries:
    inputs = [inputs_of(subject, sizes) for sizes in calls]
    with series(subject, dynamic=dynamic) as compiled:
        for sizes, call_inputs in zip(calls, inputs, strict=True):
            compiled.call(sizes, call_inputs)
        return compiled.record()


def is_rejected(subject: Subject, sizes: dict[str, int]) -> bool:
    """Whether the model fails for these sizes in eager mode."""

    def fails(inside: Subject) -> bool:
        try:
            with inside.tensors():
                call_once(replace(inside, inputs=inputs_of(inside, sizes)), inside.module)
        except Exception:  # noqa: BLE001  (model code)
            return True
        return False

    return subject.in_fork(fails, bool)
