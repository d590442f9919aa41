"""Evaluates a model on Dynamo under some changes, as a step of the search."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
import torch

from compilewatch.extras.fixes.records import FixChange
from compilewatch.records import Record
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import TargetOutcome
from compilewatch.worker.targets.dynamo.target import DynamoTarget


class UnderChanges(Record, frozen=True, kw_only=True):
    """The options of the work: the changes, in the order in which they are made."""

    changes: tuple[FixChange, ...]


def evaluate(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Make the changes, and return what the target Dynamo says of the model then."""
    options = msgspec.convert(values, UnderChanges)
    kwargs = dict(subject.inputs.kwargs)
    with ExitStack() as stack:
        with subject.tensors():
            chosen = made(options.changes, stack, subject.module, subject.inputs.args, kwargs)
        inputs = replace(subject.inputs, kwargs=kwargs)
        target = subject.request.target
        if "dynamic" in chosen:
            target = msgspec.structs.replace(target, dynamic=bool(chosen["dynamic"]))
        request = msgspec.structs.replace(subject.request, target=target)
        return DynamoTarget().run(replace(subject, inputs=inputs, request=request))


def made(
    changes: tuple[FixChange, ...],
    stack: ExitStack,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Run the source of the changes, as the script does; return compile's options."""
    options: dict[str, Any] = {}
    names = {
        "stack": stack,
        "model": model,
        "args": args,
        "kwargs": kwargs,
        "options": options,
    }
    exec("import contextlib\nimport torch\nimport torch._dynamo\n", names)
    definitions = dict.fromkeys(text for each in changes for text in each.definitions)
    for text in (*(text for each in changes for text in each.imports), *definitions):
        exec(text, names)
    for each in changes:
        exec("\n".join(each.lines), names)
    return options
