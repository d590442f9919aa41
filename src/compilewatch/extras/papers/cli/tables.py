"""Tables and lines of `compilewatch papers`."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.text import Text

from compilewatch.extras.papers.analysis import first_finding
from compilewatch.extras.papers.records import (
    CodeVersion,
    Paper,
    PaperFinding,
    PaperSummary,
    StageOutcome,
    StageResult,
)
from compilewatch.extras.papers.view import Preflight
from compilewatch.report.terminal import console, plain, plain_table
from compilewatch.report.wording import plural

STYLES = {
    StageOutcome.PASSED: "green",
    StageOutcome.FAILED: "red",
    StageOutcome.NOT_RUN: "dim",
}
STATE_STYLES = {"passed": "green", "failed": "red", "incomplete": "yellow"}
WORDS = {StageOutcome.NOT_RUN: "not run"}


class StageLines:
    """Prints a line on standard error when a stage of a paper ends; from several threads too."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = console(stderr=True)
        self._since: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, result: StageResult) -> None:
        if self._quiet:
            return
        with self._lock:
            now = time.monotonic()
            seconds = now - self._since.get(result.paper, now)
            self._since[result.paper] = now
            self._console.print(self._line(result, seconds))

    @staticmethod
    def _line(result: StageResult, seconds: float) -> Text:
        text = result.findings[0].evidence if result.findings else result.detail
        return Text.assemble(
            plain(f"{result.paper[:28]:28} {result.stage:9} "),
            plain(f"{_word(result.outcome):8}", STYLES[result.outcome]),
            plain(f"{seconds:6.1f} s  {text}"),
        )


def _word(outcome: StageOutcome) -> str:
    return WORDS.get(outcome, outcome.value)


def print_found(papers: Sequence[Paper]) -> None:
    """A table of found papers, or a line that there are none."""
    if not papers:
        click.echo("no paper is found", err=True)
        return
    table = plain_table("paper", "date", "title", "location", gap=2)
    for paper in papers:
        table.add_row(
            *(plain(t) for t in (paper.id, paper.date[:10], paper.title)), plain(paper.location)
        )
    console().print(table)


def print_summaries(
    summaries: Sequence[PaperSummary],
    root: Path,
    *,
    damaged: Sequence[str] = (),
    earlier: int | None = None,
) -> None:
    """One line for each damaged line of what is stored, one for each paper, and the sums.

    `earlier` requests were sent before the run.
    """
    for note in damaged:
        click.echo(note, err=True)
    if not summaries:
        click.echo(f"no papers in {root}: start with `compilewatch papers run`")
        return
    table = plain_table("paper", "state", "stages", "repairs", "USD", "what is wrong", gap=2)
    for one in summaries:
        passed = sum(stage.outcome is StageOutcome.PASSED for stage in one.stages)
        table.add_row(
            plain(one.paper),
            plain(one.state, STATE_STYLES[one.state]),
            plain(f"{passed} of {len(one.stages)}"),
            plain(str(one.repairs)),
            plain(_usd(one)),
            plain(_wrong(one)),
        )
    console().print(table)
    usd = sum(one.spent.usd for one in summaries)
    requests = sum(one.spent.requests for one in summaries)
    counts = f"{plural(len(summaries), 'paper')}, {plural(requests, 'request')}"
    if earlier is not None:
        counts += f" ({requests - earlier} in this run)"
    click.echo(f"{counts}, ${usd:.4f}; {root}")
    if any(one.scripted for one in summaries):
        click.echo("Results marked as scripted come from prepared replies, not from a model.")


def _usd(one: PaperSummary) -> str:
    if one.spent.unpriced:
        return "unknown"
    return f"{one.spent.usd:.4f}{' scripted' if one.scripted else ''}"


def _wrong(one: PaperSummary) -> str:
    finding = first_finding(one)
    if finding is not None:
        return f"{finding.stage}: {finding.kind}: {finding.evidence}"
    missing = [stage for stage in one.stages if stage.outcome is StageOutcome.NOT_RUN]
    return f"{missing[0].stage} was not run: {missing[0].detail}" if missing else ""


def print_check(summary: PaperSummary, folder: Path) -> None:
    """Every stage with its outcome and evidence."""
    out = console()
    out.print(plain(f"{summary.paper}: {summary.title}"))
    for stage in summary.stages:
        line = Text.assemble(
            plain(f"  {stage.stage:9} "),
            plain(f"{_word(stage.outcome):8}", STYLES[stage.outcome]),
            plain(f" {stage.detail}" if stage.detail else ""),
        )
        out.print(line)
        for finding in stage.findings:
            out.print(plain(f"            {_finding(finding)}"))
        for name in stage.files:
            out.print(plain(f"            {folder / name}", "dim"))
    spent = summary.spent
    out.print(
        plain(
            f"  {summary.state}; {plural(summary.repairs, 'repair')}, "
            f"{plural(spent.requests, 'request')}, "
            f"{spent.input_tokens:,} + {spent.output_tokens:,} tokens, {_usd(summary)} USD; "
            f"model {summary.model or 'none'}, dataset {summary.dataset or 'none'}"
        )
    )


def _finding(finding: PaperFinding) -> str:
    line = f" (line {finding.line})" if finding.line else ""
    return f"{finding.kind}: {finding.evidence}{line}"


def print_generation(generation: CodeVersion, findings: Sequence[PaperFinding]) -> None:
    """The code with its provenance as comments."""
    scripted = ", scripted" if generation.scripted else ""
    lines = [
        f"# {generation.paper}, version {generation.number}, {generation.id}",
        f"# model {generation.model}{scripted}, paper {generation.paper_sha256[:12]}, "
        f"prompt {generation.prompt_sha256[:12]}, rules {generation.rules_sha256[:12]}",
        *(f"# {finding.stage}: {_finding(finding)}" for finding in findings),
        generation.source,
    ]
    console().print(plain("\n".join(lines)))


def print_preflight(report: Preflight) -> None:
    out = console()
    if report.models:
        table = plain_table("model", "name", "status", "ends", "usable", gap=2)
        for one in report.models:
            usable = "yes" if one.usable else one.why
            table.add_row(
                *(plain(t) for t in (one.model, one.name, one.status, one.ends[:10], usable))
            )
        out.print(table)
    out.print(plain(f"model:   {report.model_problem or report.model}"))
    out.print(plain(f"price:   {report.price}"))
    out.print(plain(f"rules:   {report.rules}"))
    out.print(plain(f"sandbox: {report.sandbox_problem or 'generated code can be confined here'}"))


def exit_status(summaries: Sequence[PaperSummary]) -> int:
    """1 if something is wrong, 3 if a stage was not run, else 0."""
    states = {one.state for one in summaries}
    return 1 if "failed" in states else 3 if "incomplete" in states else 0
