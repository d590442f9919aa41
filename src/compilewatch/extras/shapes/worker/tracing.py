"""Calls a compiled model with the sizes of a trace, or with those of a range that say the most."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from multiprocessing.connection import Connection
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
from compilewatch.worker import forked
from compilewatch.worker.subject import ExampleInputs, Subject
from compilewatch.worker.targets.dynamo.series import judged, series

_MASK = re.compile(r"(?<!encoder_)attention_mask$|padding_mask$|^(pixel_)?mask$")
"""The names of arguments that say what is padding."""

_END = b""
"""After the last call that a fork tells the other one of."""


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
    as_called, dynamic = traced(geometry, within(domains_of(values), limits), calls)
    return ShapeReport(
        as_called=as_called.series,
        dynamic=dynamic.series,
        served={"as called": as_called.served, "dynamic=True": dynamic.served},
        limits=limits,
        masks=tuple(filter(_MASK.search, parameters)),
        generation=generation(geometry.subject) if values["generate"] else None,
    )


def traced(geometry: Geometry, domains: Domains, calls: Sequence[Sizes]) -> tuple[Traced, Traced]:
    """Return what calls of a model that nothing has called compile: as called, and dynamically.

    Without `calls`, the first series looks for those that are needed, and the second one for more.
    Both make all of them, at the same time where this process can fork.
    """
    subject = geometry.subject

    def called(
        dynamic: bool | None, choose: Callable[[Search], Iterable[Sizes]], inside: Subject
    ) -> Traced:
        with series(inside, dynamic=dynamic) as compiled:
            search = Search(compiled, replace(geometry, subject=inside), domains)
            with contextlib.suppress(EOFError, OSError):  # the other fork has ended, and counts
                for sizes in choose(search):
                    search.call(sizes)
            return Traced(series=compiled.record(), served=search.served())

    def first(search: Search) -> Iterable[Sizes]:
        return calls or search.wanted()

    def further(search: Search) -> Iterable[Sizes]:
        return () if calls else search.wanted()

    def alone(dynamic: bool | None, choose: Callable[[Search], Iterable[Sizes]]) -> Traced:
        return subject.in_fork(partial(called, dynamic, choose), Traced)

    def inputs(inside: Subject, sizes: Sizes) -> ExampleInputs:
        return replace(geometry, subject=inside).inputs(sizes)

    if subject.can_fork():
        as_called, dynamic = forked.in_two_forks(
            (
                lambda end: called(
                    None, lambda s: chain(_sent(first(s), end), _received(end)), subject
                ),
                lambda end: called(
                    True, lambda s: chain(_received(end), _sent(further(s), end)), subject
                ),
            ),
            Traced,
        )
    else:
        before = alone(None, first).sizes
        dynamic = alone(True, lambda search: chain(before, further(search)))
        as_called = alone(None, lambda _: dynamic.sizes)
    for result in (as_called, dynamic):
        result.series = judged(subject, result.series, inputs)
    return as_called, dynamic


def _sent(calls: Iterable[Sizes], other: Connection) -> Iterator[Sizes]:
    """Yield calls that the other fork is told of, and then of their end."""
    for sizes in calls:
        other.send_bytes(msgspec.json.encode(sizes))
        yield sizes
    other.send_bytes(_END)


def _received(other: Connection) -> Iterator[Sizes]:
    yield from map(msgspec.json.decode, iter(other.recv_bytes, _END))
