"""`report/`: a run as static pages without scripts, for any browser and any file server.

Jenkins serves artifacts under `sandbox; default-src 'none'; img-src 'self'; style-src 'self'`, so
there is one external style sheet, no inline style and no script; charts are SVG files. Everything
is linked relatively: the folder can be moved, mailed or archived.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any

import jinja2

import compilewatch
from compilewatch.analysis import summary
from compilewatch.contract.targets import target_label
from compilewatch.records import Status
from compilewatch.records.views import RunView
from compilewatch.report import charts, pages, wording
from compilewatch.report.sections import details
from compilewatch.report.wording import OUTCOME_LABELS, Outcome

CHART_WIDTHS = {"": 560, "-narrow": 350}
"""A chart for the desk and one for the phone: scaling one down makes its text unreadable."""

CHART_FAMILIES = 18

SYMBOLS: dict[Outcome, str] = {
    Outcome.PASS: "✓",
    Outcome.GRAPH_BREAK: "÷",
    Outcome.MISMATCH: "≠",
    Outcome.COMPILE_ERROR: "✕",
    Outcome.NO_VERDICT: "?",
    Outcome.NOT_RUN: "–",
}

STATUS_CLASSES: dict[Status, Outcome] = {
    Status.PASS: Outcome.PASS,
    Status.GRAPH_BREAK: Outcome.GRAPH_BREAK,
    Status.MISMATCH: Outcome.MISMATCH,
    Status.ERROR: Outcome.COMPILE_ERROR,
    Status.TIMEOUT: Outcome.NO_VERDICT,
    Status.OOM: Outcome.NO_VERDICT,
    Status.CRASHED: Outcome.NO_VERDICT,
    Status.SKIPPED: Outcome.NOT_RUN,
    Status.UNSUPPORTED: Outcome.NOT_RUN,
}
"""The colour of a status alone, where a change has no phase to go with it."""


def render(view: RunView) -> Iterator[tuple[str, bytes]]:
    """Every file of the report as (path in report/, content); the overview comes last.

    The overview is what people open and tools wait for: once it is there, its links work.
    """
    report = pages.Report.of(view)
    yield "report.css", resources.files(__package__).joinpath("report.css").read_bytes()
    yield from _charts(report)
    for model in report.models:
        yield model.page, _page("model.html", report, root="../", model=model)
    for reason in report.reasons:
        yield reason.page, _page("reason.html", report, root="../", reason=reason)
    if len(report.targets) > 1:
        yield "targets.html", _page("targets.html", report, root="")
    for name in ("families.html", "reasons.html", "changes.html", "index.html"):
        yield name, _page(name, report, root="")


def _charts(report: pages.Report) -> Iterator[tuple[str, bytes]]:
    legend = {outcome.value: label for outcome, label in OUTCOME_LABELS.items()}
    bars = [
        charts.Bar(label=name, parts=tuple((o.value, counts.get(o, 0)) for o in OUTCOME_LABELS))
        for name, counts in report.charted_families(CHART_FAMILIES)
    ]
    for suffix, width in CHART_WIDTHS.items():
        yield (
            f"charts/families{suffix}.svg",
            charts.stacked_bars("Results by model family", bars, legend, width),
        )
        yield (
            f"charts/durations{suffix}.svg",
            charts.histogram("Time per request", report.measured_seconds, width),
        )


def _page(template: str, report: pages.Report, **values: Any) -> bytes:
    text = _environment().get_template(template).render(report=report, **values)
    return text.encode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("compilewatch.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for function in (
        wording.percent,
        wording.quantity,
        wording.seconds,
        wording.memory,
        wording.status_words,
        wording.outcome,
        wording.registry_page,
        wording.reason_title,
        wording.commands,
        wording.decompressing,
        wording.main_artifacts,
        wording.cell_words,
        wording.cause_words,
        wording.why,
        details,
        pages.anchor,
        pages.family_counts,
        summary.slowest,
        summary.spent,
        target_label,
        moment,
    ):
        environment.filters[function.__name__] = function
    environment.globals |= {
        "OUTCOMES": OUTCOME_LABELS,
        "MEANINGS": wording.OUTCOME_MEANINGS,
        "CHANGES": wording.CHANGE_LABELS,
        "SYMBOLS": SYMBOLS,
        "STATUS_CLASSES": STATUS_CLASSES,
        "version": compilewatch.__version__,
    }
    return environment


def _printable(value: object) -> object:
    # Markup is a str too: what a macro made is HTML already and holds only what was printable.
    return wording.printable(value) if type(value) is str else value


def moment(time: str) -> str:
    """`20 Aug 2026, 03:00 UTC` of an RFC 3339 time in UTC."""
    return f"{datetime.fromisoformat(time):%-d %b %Y, %H:%M} UTC"
