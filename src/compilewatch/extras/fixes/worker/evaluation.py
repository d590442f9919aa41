"""Evaluates a model on Dynamo under some changes, as a step of the search."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec

from compilewatch.extras.fixes.code import NAME, context_manager, imports
from compilewatch.extras.fixes.records import FixChange
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets import TargetOutcome
from compilewatch.worker.targets.dynamo.target import DynamoTarget


def evaluate(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Return what the target Dynamo says of the model within the context manager of `changes`."""
    changes = msgspec.convert(values["changes"], tuple[FixChange, ...])
    names: dict[str, Any] = {}
    exec("\n".join([*imports(changes), context_manager(changes, "The changes.")]), names)
    options: dict[str, Any] = {}
    with ExitStack() as stack:
        with subject.tensors():
            made = subject.inputs
            changed = names[NAME](subject.module, made.args, made.kwargs, options)
            args, kwargs = stack.enter_context(changed)
        target = subject.request.target
        if "dynamic" in options:
            target = msgspec.structs.replace(target, dynamic=bool(options["dynamic"]))
        request = msgspec.structs.replace(subject.request, target=target)
        inputs = replace(made, args=args, kwargs=kwargs)
        return DynamoTarget().run(replace(subject, inputs=inputs, request=request))
