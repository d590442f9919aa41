"""What a profile asks of a subject after the last round, because it would disturb a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from compilewatch.contract.targets import CPU
from compilewatch.extras.profiles.infer import analysis, measured_once
from compilewatch.extras.profiles.infer import messages as orders
from compilewatch.extras.profiles.infer.records import EAGER, target_kind
from compilewatch.extras.profiles.infer.server_client import SubjectError
from compilewatch.records import Status

if TYPE_CHECKING:
    from compilewatch.extras.profiles.infer.measurement import Inference
    from compilewatch.extras.profiles.infer.parts import RunningSubject

SEGMENT_CALLS = 5
TRACE_CALLS = 3

INDUCTOR = "inductor"

Step = Callable[["Inference", "RunningSubject"], None]


def inspect(profile: Inference, each: RunningSubject, *, first: bool) -> None:
    """Look into a subject. What fails is missing, and a note says why."""
    for what, step in _steps(profile, each, first=first):
        try:
            step(profile, each)
        except SubjectError as error:
            where = f"{each.target} at batch {each.point.batch_size}"
            profile.notes.append(f"{what} of {where} failed: {error.failure.detail}")
            if error.failure.status in (Status.TIMEOUT, Status.OOM, Status.CRASHED):
                return  # its process has ended


def _steps(profile: Inference, each: RunningSubject, *, first: bool) -> list[tuple[str, Step]]:
    kind = target_kind(each.target)
    found: list[tuple[str, Step]] = [("memory", _memory)]
    if kind != EAGER:
        found.append(("comparison with eager mode", _numerics))
    if kind == INDUCTOR and profile.options.device == CPU:
        found.append(("trace of a call", _segments))
    if first and profile.job.trace and kind in analysis.TRACED:
        found.append(("trace", _trace))
    if first and each.prepared is not None and each.prepared.generates:
        found.append(("generation", _generation))
    if first and kind == INDUCTOR:
        found.append(("warm first call", _warm))
    return found


def _memory(profile: Inference, each: RunningSubject) -> None:
    order = orders.MeasureMemory(subject=each.number, deadline_seconds=profile.subjects.deadline)
    found = each.ask(order, orders.Used)
    each.point = msgspec.structs.replace(
        each.point, memory=found.memory, device_utilization=found.device_utilization
    )
    if found.device_note and found.device_note not in profile.notes:
        profile.notes.append(found.device_note)


def _numerics(profile: Inference, each: RunningSubject) -> None:
    seconds = profile.job.request.deadlines.compare_seconds
    order = orders.Compare(subject=each.number, deadline_seconds=seconds)
    found = each.ask(order, orders.Compared)
    each.point = msgspec.structs.replace(each.point, numerics=found.numerics)
    if found.numerics.deterministic and not found.numerics.matches:
        profile.notes.append(
            f"{each.target} at batch {each.point.batch_size} differs from eager in "
            f"{found.numerics.mismatches[0]}: its speed-up is not shown"
        )


def _segments(profile: Inference, each: RunningSubject) -> None:
    order = orders.TimedSegment(
        subject=each.number, deadline_seconds=profile.subjects.deadline, calls=SEGMENT_CALLS
    )
    found = each.ask(order, orders.Segmented)
    each.point = msgspec.structs.replace(
        each.point, segments=analysis.segments_of(found), breaks=analysis.costs_of(found)
    )


def _trace(profile: Inference, each: RunningSubject) -> None:
    order = orders.Trace(
        subject=each.number, deadline_seconds=profile.subjects.deadline, calls=TRACE_CALLS
    )
    found = each.ask(order, orders.TracedCall)
    profile.operators[each.target] = found.operators
    folder = analysis.trace_folder(each.target, profile.options.targets)
    for name in found.files:
        profile.folder.adopt(each.folder / name, f"{folder}/{name}")


def _generation(profile: Inference, each: RunningSubject) -> None:
    found = measured_once.generation(each, profile.subjects.deadline)
    profile.extras[each.target]["generation"] = found


def _warm(profile: Inference, each: RunningSubject) -> None:
    order = orders.Recompile(subject=each.number, deadline_seconds=profile.subjects.deadline)
    found = each.ask(order, orders.Called)
    each.point = msgspec.structs.replace(each.point, warm_first_call_seconds=found.seconds)
