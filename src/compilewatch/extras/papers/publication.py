"""Publishing what is stored of papers: the report page, Pushgateway, Loki and CloudWatch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path

import jinja2
import msgspec
from botocore import exceptions

import compilewatch
from compilewatch import aws
from compilewatch.api.publish import Published
from compilewatch.config import Settings
from compilewatch.errors import SinkError, UnreachableError
from compilewatch.extras.papers.analysis import first_finding, funnel, summarise_paper
from compilewatch.extras.papers.metrics import (
    DEFINITIONS,
    PAPERS,
    Datum,
    execution_data,
    paper_groups,
    paper_stage,
)
from compilewatch.extras.papers.records import ModelCall, PaperSummary, PipelineStage, StageResult
from compilewatch.extras.papers.settings import CloudWatchSettings
from compilewatch.extras.papers.store import PaperStore
from compilewatch.records import digest
from compilewatch.report.wording import plural, printable

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


PAPERS_JOB = "compilewatch_papers"

EXECUTIONS = 150
"""Of one request to CloudWatch: with six metrics each, they fit into one of 1,000 data."""


def publish_papers(outputs: Path, settings: Settings) -> Published:
    """Write the report and send metrics to each service that is set; none affects another.

    Publishing again changes nothing: groups are replaced, and what Loki and CloudWatch have
    accepted is not sent again.
    """
    store = PaperStore(outputs)
    entries = store.ledger.entries()
    journals = {name: store.folder(name).journal() for name in store.ids()}
    summaries = [summarise_paper(journal, entries) for journal in journals.values()]
    lines = []
    for name, data in render(summaries, entries):
        store.write_report(name, data)
    lines.append(f"report: {store.root / 'report' / 'index.html'}")
    steps: dict[str, Callable[[], str]] = {}
    if settings.pushgateway.url:
        steps["pushgateway"] = functools.partial(push_papers, settings, summaries)
    if settings.loki.url:
        results = [result for journal in journals.values() for result in journal]
        steps["loki"] = functools.partial(_log, settings, store, results)
    if settings.of(CloudWatchSettings).enabled:
        steps["cloudwatch"] = functools.partial(_watch, settings, store, summaries)
    failures = []
    for name, step in steps.items():
        try:
            lines.append(step())
        except SinkError as error:
            failures.append((name, str(error)))
    return Published(lines=tuple(lines), failures=tuple(failures))


def push_papers(settings: Settings, summaries: Sequence[PaperSummary]) -> str:
    """Replace the groups of papers, by the origin of their code. Raises SinkError."""
    from compilewatch.sinks.prometheus import registry
    from compilewatch.sinks.pushgateway import Gateway

    gateway = Gateway(settings)
    groups = paper_groups(summaries)
    for replies, samples in groups.items():
        key = dict(zip(PAPERS.labels, (replies,), strict=True))
        gateway.replace(PAPERS_JOB, key, registry(samples, DEFINITIONS))
    series = sum(map(len, groups.values()))
    return f"pushgateway: {series:,} series in {len(groups)} groups at {gateway.address}"


def _log(settings: Settings, store: PaperStore, results: list[StageResult]) -> str:
    """Send what Loki does not have. It rejects what is older than a week, so nothing goes twice."""
    from compilewatch.sinks.loki import send_lines

    known = store.published("loki")
    keys = {digest([one.paper, one.stage, one.key, one.at])[:32]: one for one in results}
    new = {key: one for key, one in keys.items() if key not in known}
    if not new:
        return "loki: nothing new"
    ordered = sorted(new.values(), key=lambda one: one.at)
    line = send_lines(settings, [msgspec.json.encode(paper_stage(one)) for one in ordered])
    store.add_published("loki", new)
    return line


def _watch(settings: Settings, store: PaperStore, summaries: list[PaperSummary]) -> str:
    """Send the executions that CloudWatch does not have, a request at a time."""

    own = settings.of(CloudWatchSettings)
    sent = 0
    for start in range(0, len(summaries), EXECUTIONS):
        part = summaries[start : start + EXECUTIONS]
        known = store.published("cloudwatch")
        data, keys = execution_data(part, own.instance_type, known)
        if keys:
            put(own, data)
            store.add_published("cloudwatch", keys)  # before the next request can fail
            sent += len(keys)
    if not sent:
        return "cloudwatch: nothing new"
    return f"cloudwatch: {plural(sent, 'execution')} in {own.namespace}"


MAX_DATA = 1_000
MAX_BYTES = 800_000
"""Below the limit of 1 MB, because a request is encoded differently from what is measured here."""


def put(settings: CloudWatchSettings, data: Sequence[Datum]) -> str:
    """Send data and return a line about them. Raises SinkError, or UnreachableError."""
    sent = 0
    try:
        client = aws.client(
            "cloudwatch",
            region=settings.region,
            profile=settings.profile,
            endpoint_url=settings.endpoint_url,
            attempts=3,
        )
        for batch in batches(data):
            client.put_metric_data(
                Namespace=settings.namespace, MetricData=[datum.request() for datum in batch]
            )
            sent += len(batch)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        message = f"CloudWatch: {aws.explain(error, settings.region)} ({sent} data were sent)"
        transient = aws.error_details(error).code in aws.BUSY or isinstance(error, aws.CONNECTION)
        raise (UnreachableError if transient else SinkError)(message) from None
    return f"cloudwatch: {sent} data in the namespace {settings.namespace}"


def batches(data: Iterable[Datum]) -> Iterator[list[Datum]]:
    """Split data into requests within both limits."""
    batch: list[Datum] = []
    size = 0
    for datum in data:
        bytes_ = len(msgspec.json.encode(datum)) + 200
        if batch and (len(batch) == MAX_DATA or size + bytes_ > MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(datum)
        size += bytes_
    if batch:
        yield batch
