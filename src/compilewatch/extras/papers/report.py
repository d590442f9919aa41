"""The report page of papers: what happened to each, and the funnel, as a static page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import resources

import jinja2

import compilewatch
from compilewatch.extras.papers.analysis import first_finding, funnel
from compilewatch.extras.papers.records import ModelCall, PaperSummary, PipelineStage
from compilewatch.report.wording import printable

FINDING_WORDS = {
    "wrong_in_eager": "wrong in eager mode",
    "unfaithful": "not the paper's contribution",
    "graph_break": "graph break",
    "compiler_cannot": "the compiler cannot",
}
"""Findings that must not be confused, in words."""


def render(
    summaries: Sequence[PaperSummary], entries: Iterable[ModelCall]
) -> Iterator[tuple[str, bytes]]:
    """Every file of the page as (path, content); the page comes last."""
    yield "report.css", resources.files("compilewatch.report").joinpath("report.css").read_bytes()
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("compilewatch.extras.papers"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["words"] = lambda kind: FINDING_WORDS.get(kind, kind.replace("_", " "))
    text = environment.get_template("papers.html").render(
        version=compilewatch.__version__,
        papers=summaries,
        funnel=funnel(summaries),
        stages=list(PipelineStage),
        first_finding=first_finding,
        requests=len(tuple(entries)),
    )
    yield "index.html", text.encode()
