"""Calls a compiled model with the sizes of a trace, or with those of a range that say the most."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from compilewatch.extras.shapes.records import REPORT_FILE, ServedSizes, ShapeReport
from compilewatch.extras.shapes.worker.generation import generation
from compilewatch.extras.shapes.worker.planning import Planner
from compilewatch.extras.shapes.worker.search import (
    Domains,
    Geometry,
    Search,
    bounded,
    domains_of,
    geometry_of,
    rejection,
)
from compilewatch.extras.shapes.worker.serving import Sizes
from compilewatch.records import Phase, Record, ShapeSeries, Status, TargetOutcome
from compilewatch.worker.subject import Subject
from compilewatch.worker.targets.dynamo.series import series

_MASK = re.compile(r"(?<!encoder_)attention_mask$|padding_mask$|^(pixel_)?mask$")
"""The names of arguments that say what is padding."""


class Traced(Record, frozen=True, kw_only=True):
    """A series, and which graph serves which sizes."""

    series: ShapeSeries
    served: ServedSizes


def trace(subject: Subject, values: dict[str, Any]) -> TargetOutcome:
    """Write what sizes compile, as called and with `dynamic=True`, to a file.

    `domains` are the sizes of each dimension that are served, as (first, last) or a list; `calls`
    are made as they are, and without any a search finds them. Plans are tried `without` those of
    these titles. With `generate`, texts are generated.
    """
    subject.enter(Phase.COMPILE)
    calls: list[Sizes] = values["calls"]
    domains: Domains = domains_of(values)
    geometry = geometry_of(subject, list(domains))
    domains, limits = bounded(geometry, domains) if not calls else (domains, ())
    search = not calls
    as_called = traced(geometry, domains, calls, dynamic=None, search=search)
    calls = [call.sizes for call in as_called.series.calls]
    dynamic = traced(geometry, domains, calls, dynamic=True, search=search)
    if len(dynamic.series.calls) > len(calls):
        calls = [call.sizes for call in dynamic.series.calls]
        as_called = traced(geometry, domains, calls, dynamic=None)
    planner = Planner(geometry, domains, (as_called.series, dynamic.series))
    report = ShapeReport(
        as_called=as_called.series,
        dynamic=dynamic.series,
        served={"as called": as_called.served, "dynamic=True": dynamic.served},
        limits=limits,
        masks=tuple(filter(_MASK.search, inspect.signature(subject.module.forward).parameters)),
        generation=generation(subject) if values["generate"] else None,
        plan=planner.plan(values["without"]),
    )
    (subject.artifacts / REPORT_FILE).write_bytes(msgspec.json.encode(report))
    return TargetOutcome(status=Status.PASS, artifacts=(REPORT_FILE,))


def traced(
    geometry: Geometry,
    domains: Domains,
    calls: Sequence[Sizes],
    *,
    dynamic: bool | None,
    search: bool = False,
) -> Traced:
    """Return what the calls compile, of a model that nothing has called; with `search` also others.

    A call that fails is made in eager mode, too: what the model itself rejects says nothing.
    """

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

    result = geometry.subject.in_fork(called, Traced)
    checked = tuple(
        msgspec.structs.replace(call, rejected=is_rejected(geometry, call.sizes))
        if call.error
        else call
        for call in result.series.calls
    )
    return Traced(
        series=msgspec.structs.replace(result.series, calls=checked), served=result.served
    )


def is_rejected(geometry: Geometry, sizes: Sizes) -> bool:
    """Whether the model fails for these sizes in eager mode."""
    return geometry.subject.in_fork(
        lambda subject: rejection(replace(geometry, subject=subject), sizes) is not None, bool
    )
