"""`shapes` for one model: the sizes that are called, and the process that calls them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from compilewatch.api.choose import local_launcher
from compilewatch.config import Settings
from compilewatch.errors import InputsError, UsageError
from compilewatch.extras.shapes.records import REPORT_FILE, OneGraph, ShapeReport
from compilewatch.records import Depth, Request, Status, Tier, Variants, Work


def shapes_of(
    request: Request,
    settings: Settings,
    served: Served,
    *,
    one_graph: bool = False,
    generate: bool = False,
) -> ShapeReport:
    """Call a model with sizes as they are served, in a separate process; nothing is stored.

    With `one_graph`, another process also runs one graph without guards, on real tensors; with
    `generate`, texts are generated too.
    Raises UsageError for a target or device that this is not about, InputsError where the model
    could not be called.
    """
    if request.target.name != "dynamo" or request.device is not None:
        raise UsageError("shapes is about Dynamo on the CPU: leave out --target and --device")
    options = {"domains": served.domains, "calls": served.calls, "generate": generate}
    request = msgspec.structs.replace(
        request,
        depth=Depth.REDUCED,
        variants=Variants.MAIN,
        keep_artifacts=True,
        work=Work(name="shapes", options=options),
    )
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, [request.target.environment], single=True) as launcher,
    ):

        def content(request: Request) -> bytes:
            (completed,) = launcher.run([request], Path(scratch))
            if completed.artifacts is None or completed.result.status is not Status.PASS:
                raise InputsError(f"{request.model.name}: {completed.result.detail}")
            return (completed.artifacts / REPORT_FILE).read_bytes()

        report = msgspec.json.decode(content(request), type=ShapeReport)
        if not one_graph:
            return report
        ends = [(limit.name, limit.size) for limit in report.limits]
        work = Work(name="one-graph", options={"domains": served.domains, "ends": ends})
        on_real_tensors = msgspec.structs.replace(request, tier=Tier.REAL, work=work)
        graph = msgspec.json.decode(content(on_real_tensors), type=OneGraph)
        return msgspec.structs.replace(report, one_graph=graph)


class Served(NamedTuple):
    """The sizes that are served: of each dimension whether they are (first, last), or all.

    Without `calls`, those are found that tell most.
    """

    domains: dict[str, tuple[bool, tuple[int, ...]]]
    calls: list[dict[str, int]]


def served_by_trace(text: str, where: str) -> Served:
    """Read sizes as served: one JSON object a line, such as `{"batch": 8, "sequence": 17}`.

    Raises UsageError for a line that is none, or is about other dimensions, with its number.
    """
    calls: list[dict[str, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                calls.append(msgspec.json.decode(line, type=dict[str, int]))
            except msgspec.DecodeError as error:
                raise UsageError(
                    f'{where}, line {number}: not sizes such as {{"batch": 8}}: {error}'
                ) from None
            if calls[-1].keys() != calls[0].keys() or min(calls[-1].values(), default=-1) < 0:
                raise UsageError(f"{where}, line {number}: not sizes of {', '.join(calls[0])}")
    if not calls:
        raise UsageError(f'{where} has no calls: one JSON line each, such as {{"batch": 8}}')
    ends = {name: tuple(call[name] for call in calls) for name in calls[0]}
    return Served(
        {name: (True, (min(values), max(values))) for name, values in ends.items()}, calls
    )


def served_by_values(vary: Sequence[str]) -> Served:
    """Read `batch=1,8,64` and `sequence=1..512`; of lists alone, all combinations are called.

    Raises UsageError for another spelling.
    """
    domains: dict[str, tuple[bool, tuple[int, ...]]] = {}
    for text in vary:
        name, _, values = text.partition("=")
        first, dots, last = values.partition("..")
        try:
            sizes = tuple(map(int, (first, last) if dots else values.split(",")))
        except ValueError:
            sizes = ()
        if not name or not sizes or min(sizes) < 0 or (dots and sizes[0] >= sizes[1]):
            raise UsageError(f"--vary {text}: write NAME=FIRST..LAST or NAME=SIZE,SIZE")
        domains[name] = (bool(dots), sizes)
    if any(is_range for is_range, _ in domains.values()):
        return Served(
            {name: (dots, tuple(sorted(sizes))) for name, (dots, sizes) in domains.items()}, []
        )
    product = itertools.product(*(sizes for _, sizes in domains.values()))
    calls = [dict(zip(domains, sizes, strict=True)) for sizes in product]
    return Served(
        {name: (False, tuple(sorted(sizes))) for name, (_, sizes) in domains.items()}, calls
    )
