"""Calls a compiled model with the sizes of a trace, or with those of a range that say the most."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from compilewatch.extras.shapes.records import REPORT_FILE, ShapeReport
from compilewatch.extras.shapes.worker.generation import generation
from compilewatch.extras.shapes.worker.planning import Planner, Traced
from compilewatch.extras.shapes.worker.search import (
    Domains,
    Geometry,
    Search,
    domains_of,
    geometry_of,
    limits_of,
    within,
)
from compilewatch.extras.shapes.worker.serving import Sizes
from compilewatch.records import Phase, Status, TargetOutcome
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.series import judged, series

_MASK = re.compile(r"(?<!encoder_)attention_mask$|padding_mask$|^(pixel_)?mask$")
"""The names of arguments that say what is padding."""


def trace(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Write what sizes compile, as called and with `dynamic=True`, to a file.

    `domains` are the sizes of each dimension that are served, as (first, last) or a list; `calls`
    are made as they are, and without any a search finds them. Plans are tried `without` those of
    these titles. With `generate`, texts are generated. Of a report that is `known`, only the plan
    is made again.
    """
    subject.enter(Phase.COMPILE)
    known = msgspec.convert(values["known"], ShapeReport | None)
    geometry = geometry_of(subject, list(values["domains"]))
    report = known or _report(geometry, values)
    domains = within(domains_of(values), report.limits)
    planner = Planner(geometry, domains, (report.as_called, report.dynamic))
    report = msgspec.structs.replace(report, plan=planner.plan(values["without"]))
    (subject.artifacts / REPORT_FILE).write_bytes(msgspec.json.encode(report))
    return TargetOutcome(status=Status.PASS, artifacts=(REPORT_FILE,))


def _report(geometry: Geometry, values: dict[str, Any]) -> ShapeReport:
    parameters = inspect.signature(geometry.subject.module.forward).parameters
    calls: list[Sizes] = values["calls"]
    limits = () if calls else limits_of(geometry, domains_of(values))
    domains = within(domains_of(values), limits)
    search = not calls
    as_called = traced(geometry, domains, calls, dynamic=None, search=search)
    calls = [call.sizes for call in as_called.series.calls]
    dynamic = traced(geometry, domains, calls, dynamic=True, search=search)
    if len(dynamic.series.calls) > len(calls):
        calls = [call.sizes for call in dynamic.series.calls]
        as_called = traced(geometry, domains, calls, dynamic=None)
    return ShapeReport(
        as_called=as_called.series,
        dynamic=dynamic.series,
        served={"as called": as_called.served, "dynamic=True": dynamic.served},
        limits=limits,
        masks=tuple(filter(_MASK.search, parameters)),
        generation=generation(geometry.subject) if values["generate"] else None,
    )


def traced(
    geometry: Geometry,
    domains: Domains,
    calls: Sequence[Sizes],
    *,
    dynamic: bool | None,
    search: bool = False,
) -> Traced:
    """Return what calls of a model that nothing has called compile; `search` adds some to these."""

    def called(subject: Subject) -> Traced:
        inside = replace(geometry, subject=subject)
        with series(subject, dynamic=dynamic) as compiled:
            caller = Search(compiled, inside, domains)
            if search:
                caller.run(calls)
            else:
                for sizes in calls:
                    caller.call(sizes)
            return Traced(series=compiled.record(), served=caller.served())

    def inputs(subject: Subject, sizes: Sizes) -> ExampleInputs:
        return replace(geometry, subject=subject).inputs(sizes)

    result = geometry.subject.in_fork(called, Traced)
    result.series = judged(geometry.subject, result.series, inputs)
    return result
