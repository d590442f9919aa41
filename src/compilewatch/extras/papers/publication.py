"""Publishing what is stored of papers: the report page, Pushgateway, Loki and CloudWatch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from compilewatch.api.publish import Published
from compilewatch.config.settings import Settings
from compilewatch.errors import SinkError
from compilewatch.extras.papers.analysis import summarise_paper
from compilewatch.extras.papers.events import paper_stage
from compilewatch.extras.papers.metric_definitions import DEFINITIONS, PAPERS
from compilewatch.extras.papers.metrics import execution_data, paper_groups
from compilewatch.extras.papers.records import PaperSummary, StageResult
from compilewatch.extras.papers.report import render
from compilewatch.extras.papers.settings import CloudWatchSettings
from compilewatch.extras.papers.store import PaperStore
from compilewatch.records.digests import digest
from compilewatch.report.wording import plural

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
    from compilewatch.extras.papers.cloudwatch import put

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
