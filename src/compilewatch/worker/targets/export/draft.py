"""Draft export: torch traces with the example values and reports what it had to assume."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator
from traceback import FrameSummary
from typing import Any

import torch
from torch import nn
from torch._logging.structured import INTERN_TABLE
from torch.export import ShapesCollection

from compilewatch.records import DraftExport, DraftFailure
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.targets.dynamo.graph_breaks import place_of, user_stack

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def draft_export(
    module: nn.Module, inputs: ExampleInputs, shapes: ShapesCollection | None, strict: bool
) -> tuple[DraftExport, str]:
    """Export with example values (`torch.export.draft_export`): a summary and torch's report.

    Tensors must be real. Raises the error if even draft export fails.
    """
    with _trace_in_scratch():
        program = torch.export.draft_export(
            module, inputs.args, inputs.kwargs, dynamic_shapes=shapes, strict=strict
        )
    report: Any = program._report
    # Torch announces the number of a file once per process, and so only to the first report.
    report.str_to_filename |= {number: name for name, number in INTERN_TABLE.items()}
    failures = tuple(_failure(failure, report.str_to_filename) for failure in report.failures)
    text = _ANSI.sub("", str(report)).strip() + "\n"
    return DraftExport(exported=True, failures=failures), text


@contextlib.contextmanager
def _trace_in_scratch() -> Iterator[None]:
    """Make torch write its unused trace into a folder that is deleted."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="draft_export_") as folder:
        tempfile.tempdir = folder
        try:
            yield
        finally:
            tempfile.tempdir = before


def _failure(failure: Any, files: dict[int, str]) -> DraftFailure:
    """Convert a `FailureReport` of torch/export/_draft_export.py (2.13 to 2.15)."""
    data: dict[str, Any] = failure.data
    stack = user_stack(
        FrameSummary(files[at["filename"]], at["line"], at["name"], lookup_line=False)
        for at in data.get("user_stack", ())
        if at["filename"] in files
    )
    place = place_of(stack) if stack else None
    return DraftFailure(
        kind=str(failure.failure_type).lower(),
        what=str(data.get("expr") or data.get("op") or ""),
        occurrences=data.get("occurrences", 1),
        file=place.file if place else None,
        line=place.line if place else None,
        function=place.function if place else None,
    )
