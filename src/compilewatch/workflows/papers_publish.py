"""Publishing what is stored of papers: the report page, Pushgateway, Loki and CloudWatch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec

from compilewatch.analysis.papers import summarise_paper
from compilewatch.config.settings import Settings
from compilewatch.errors import SinkError
from compilewatch.events import paper_stage
from compilewatch.records.papers import PaperSummary
from compilewatch.report.papers import render
from compilewatch.sinks.papers import execution_data, paper_groups
from compilewatch.store.papers import PaperStore
from compilewatch.workflows.publish import Published


def publish_papers(outputs: Path, settings: Settings) -> Published:
    """Write the report and send metrics to each service that is set; none affects another.

    Publishing again changes nothing: groups are replaced, Loki keeps equal lines once, and
    executions that CloudWatch has are not sent again.
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
        steps["pushgateway"] = functools.partial(_push, settings, summaries)
    if settings.loki.url:
        events = [
            msgspec.json.encode(paper_stage(result))
            for journal in journals.values()
            for result in journal
        ]
        steps["loki"] = functools.partial(_log, settings, events)
    if settings.cloudwatch.enabled:
        steps["cloudwatch"] = functools.partial(_watch, settings, store, summaries)
    failures = []
    for name, step in steps.items():
        try:
            lines.append(step())
        except SinkError as error:
            failures.append((name, str(error)))
    return Published(lines=tuple(lines), failures=tuple(failures))


def _push(settings: Settings, summaries: list[PaperSummary]) -> str:
    from compilewatch.sinks.pushgateway import push_papers

    return push_papers(settings, paper_groups(summaries))


def _log(settings: Settings, events: list[bytes]) -> str:
    from compilewatch.sinks.loki import send_lines

    return send_lines(settings, events)


def _watch(settings: Settings, store: PaperStore, summaries: list[PaperSummary]) -> str:
    from compilewatch.sinks.cloudwatch import put

    instance = settings.cloudwatch.instance_type
    data, keys = execution_data(summaries, instance, store.published("cloudwatch"))
    if not keys:
        return "cloudwatch: nothing new"
    line = put(settings.cloudwatch, data)
    store.add_published("cloudwatch", keys)
    return line
