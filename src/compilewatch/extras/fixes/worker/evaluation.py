"""Evaluates a model on Dynamo under some changes, as a step of the search."""

from __future__ import annotations

import re
from collections import Counter, deque
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from compilewatch.errors import InputsError
from compilewatch.extras.fixes.code import NAME, context_manager, imports
from compilewatch.extras.fixes.records import RECOMPILED, REGIONS_FILE, FixChange, Region
from compilewatch.records import Mode, Phase, RecompilationKind, Status, TargetOutcome
from compilewatch.worker.example_inputs.sizes import BATCH, SEQUENCE, sizes_of
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo import graph_breaks
from compilewatch.worker.targets.dynamo.capture import loss_of
from compilewatch.worker.targets.dynamo.series import traced
from compilewatch.worker.targets.dynamo.target import DynamoTarget


def evaluate(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Return what the target Dynamo says of the model within the context manager of `changes`."""
    changes = msgspec.convert(values["changes"], tuple[FixChange, ...])
    names: dict[str, Any] = {}
    exec("\n".join([*imports(changes), context_manager(changes, "The changes.")]), names)
    options: dict[str, Any] = {}
    inputs = subject.inputs
    with ExitStack() as stack:
        with subject.tensors():
            changed = names[NAME](subject.module, inputs.args, inputs.kwargs, options)
            args, kwargs = stack.enter_context(changed)
        target = subject.request.target
        if "dynamic" in options:
            target = msgspec.structs.replace(target, dynamic=bool(options["dynamic"]))
        request = msgspec.structs.replace(subject.request, target=target)
        subject = replace(
            subject, inputs=replace(inputs, args=args, kwargs=kwargs), request=request
        )
        return recompiled(subject) if values.get("shapes") else DynamoTarget().breaks(subject)


_BATCHES, _LENGTHS = (1, 2, 3, 5, 8), (16, 17, 24, 40, 64)

_OF_TORCH = (RecompilationKind.SIZE_0_OR_1, RecompilationKind.FIRST_STATIC)


def recompiled(subject: Subject) -> TargetOutcome:
    """Return the lines of the model that need a compilation for another size, as breaks.

    Raises InputsError for inputs without a batch.
    """
    sizes = sizes_of(subject)
    if BATCH not in sizes:
        raise InputsError("the inputs have no batch, whose size could differ")
    subject.enter(Phase.COMPILE)
    calls = [
        {BATCH: batch, SEQUENCE: length} for batch, length in zip(_BATCHES, _LENGTHS, strict=True)
    ]
    calls = [{name: size for name, size in call.items() if name in sizes} for call in calls]
    series = traced(subject, calls, dynamic=subject.request.target.dynamic)
    for call in series.calls:
        if call.error and not call.rejected:
            return TargetOutcome(status=Status.ERROR, detail=call.error)
    breaks = [
        graph_breaks.graph_break(f"{RECOMPILED}{one.kind}", one.subject, place, (place,))
        for one in series.recompilations
        if one.kind not in _OF_TORCH and (place := one.needed_by) is not None
    ]
    return TargetOutcome(
        status=Status.GRAPH_BREAK if breaks else Status.PASS,
        detail=f"compilations {series.compilations} in {len(calls)} calls",
        graphs=series.compilations,
        breaks=graph_breaks.merge(breaks),
    )


MOST_ATTEMPTS = 16
"""How many groups of submodules are compiled at most; each takes as long as a capture."""

_INDEX = re.compile(r"\.\d+(?=\.|$)")

Groups = dict[tuple[str, str], list[str]]
"""Names of submodules by (name without indices, class): the blocks of a model are one group."""


class OperatorsInside(TorchDispatchMode):  # type: ignore[misc]
    """Counts what PyTorch dispatches inside of each submodule, and of the model, by name."""

    def __init__(self, tracker: ModuleTracker) -> None:
        super().__init__()
        self.tracker = tracker
        self.inside: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Names begin with that of the model's class; "Global" is always among them.
        self.inside.update({name.partition(".")[2] for name in self.tracker.parents})
        return func(*args, **(kwargs or {}))


def regions(subject: Subject, _: dict[str, Any]) -> TargetOutcome:
    """Find the regions, and write them to a file of the artifacts."""
    subject.enter(Phase.COMPILE)
    counted = subject.in_fork(_counted, dict[str, int])
    total = counted.pop("", 1)
    regions_found: list[Region] = []
    waiting = deque([subject.module])
    # Of a module with several names the last one, as in the tracker.
    modules = subject.module.named_modules(remove_duplicate=False)
    names = {id(module): name for name, module in modules}
    attempts = 0
    while waiting and attempts < MOST_ATTEMPTS:
        groups = _groups(waiting.popleft(), names, counted)
        for (pattern, kind), members in groups.items():
            attempts += 1
            if attempts <= MOST_ATTEMPTS and subject.in_fork(partial(_accepted, members), bool):
                operators = sum(counted[name] for name in members)
                regions_found.append(Region(name=pattern, kind=kind, share=operators / total))
            else:
                waiting.extend(subject.module.get_submodule(name) for name in members[:1])
    (subject.artifacts / REGIONS_FILE).write_bytes(msgspec.json.encode(regions_found))
    return TargetOutcome(status=Status.PASS, artifacts=(REGIONS_FILE,))


def _counted(subject: Subject) -> dict[str, int]:
    """Return the operators in each submodule, and those of the complete model under the name ""."""
    with ModuleTracker() as tracker, OperatorsInside(tracker) as counting:
        _call(subject)
    return dict(counting.inside)


def _groups(module: nn.Module, names: dict[int, str], counted: dict[str, int]) -> Groups:
    """Return the submodules that the module calls, of each container its elements."""
    groups: Groups = {}
    for child in module.children():
        name = names[id(child)]
        called = [child] if name in counted else list(child.children())
        for node in called:
            if (name := names[id(node)]) in counted:
                key = (_INDEX.sub(".*", name), type(node).__name__)
                groups.setdefault(key, []).append(name)
    return groups


def _accepted(members: list[str], subject: Subject) -> bool:
    """Whether the model runs when these submodules are compiled with `fullgraph=True`."""
    for name in members:
        subject.module.get_submodule(name).compile(backend="eager", fullgraph=True)
    try:
        _call(subject)
    except Exception:  # noqa: BLE001  (the edge to the compiler and to model code)
        return False
    return True


def _call(subject: Subject) -> None:
    training = subject.request.target.mode is Mode.TRAIN
    with subject.tensors(), torch.set_grad_enabled(training):
        output = subject.module(*subject.inputs.args, **subject.inputs.kwargs)
        loss = loss_of(output) if training else None
        if loss is not None:
            loss.backward()
