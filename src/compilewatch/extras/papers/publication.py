"""Publishing what is stored of papers: the report page, Pushgateway, Loki and CloudWatch."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

import compilewatch
from compilewatch.api.publish import Published
from compilewatch.config import CloudWatchSettings, Settings
from compilewatch.errors import SinkError
from compilewatch.events import Event
from compilewatch.extras.papers import records
from compilewatch.extras.papers.store import PaperStore, funnel, summarise_paper
from compilewatch.records import digest
from compilewatch.report.html import environment
from compilewatch.report.wording import plural
from compilewatch.sinks.prometheus import Definition, MetricGroup, Sample

MODEL, SCRIPTED = "model", "scripted"

PAPERS_SHOWN = 100
"""Papers that have a series of their own; all of them are counted."""

TITLE_CHARACTERS = 120


def paper_groups(summaries: Sequence[records.PaperSummary]) -> dict[str, list[Sample]]:
    """Samples by the origin of the code: prepared replies never count as those of a model."""
    return {
        replies: list(_samples(replies, [one for one in summaries if one.scripted is scripted]))
        for replies, scripted in ((MODEL, False), (SCRIPTED, True))
    }


def _samples(replies: str, summaries: Sequence[records.PaperSummary]) -> Iterator[Sample]:
    def sample(name: str, value: float, *labels: str) -> Sample:
        return f"compilewatch_{name}", (replies, *labels), float(value)

    stages = Counter((s.stage.value, s.outcome.value) for one in summaries for s in one.stages)
    total = funnel(summaries)
    spent = total["spent"]
    verdicts = Counter(
        verdict
        for one in summaries
        for stage in one.stages
        if stage.stage is records.PipelineStage.SWEEP
        for verdict in stage.labels.items()
    )
    repairs = Counter(str(one.repairs) for one in summaries)
    yield from (sample("paper_stages", n, *labels) for labels, n in sorted(stages.items()))
    yield from (sample("papers", n, state) for state, n in total["states"].items())
    at = {one.paper: max((s.at for s in one.stages), default="") for one in summaries}
    newest = sorted(summaries, key=lambda one: (at[one.paper], one.paper), reverse=True)
    for one in newest[:PAPERS_SHOWN]:
        stopped = (
            s.stage.value for s in one.stages if s.outcome is not records.StageOutcome.PASSED
        )
        about = (one.paper, one.title[:TITLE_CHARACTERS], one.state, next(stopped, ""))
        yield sample("paper_info", 1, *about)
    yield from (sample("paper_findings", n, kind) for kind, n in total["findings"].items())
    yield from (sample("paper_verdicts", n, *labels) for labels, n in sorted(verdicts.items()))
    yield from (sample("paper_repairs", n, text) for text, n in sorted(repairs.items()))
    yield sample("paper_requests", spent["requests"])
    yield sample("paper_tokens", spent["input_tokens"], "input")
    yield sample("paper_tokens", spent["output_tokens"], "output")
    if not spent["unpriced"]:
        yield sample("paper_usd", spent["usd"])
        if total["usd_per_success"] is not None:
            yield sample("paper_success_usd", total["usd_per_success"])


# --- CloudWatch ---

EXECUTION = {
    "training_loss": "None",
    "test_accuracy": "Percent",
    "execution_time_seconds": "Seconds",
    "execution_success": "None",
    "peak_memory_mb": "Megabytes",
    "estimated_cost_usd": "None",
}
"""Metric -> CloudWatch's unit. The dimensions are InstanceType and Replies; never job or paper."""

SMALLEST, LARGEST = 8.515920e-109, 1.174271e108
"""The range of values of CloudWatch (MetricDatum), beside 0."""

EXECUTIONS = 150
"""Of one request: with six metrics each, they fit into 1,000 data and 1 MB (PutMetricData)."""


def execution_data(
    summaries: Iterable[records.PaperSummary],
    instance_type: str,
    known: frozenset[str] = frozenset(),
) -> tuple[list[dict[str, Any]], list[str]]:
    """The data of executions that are not `known` yet, as PutMetricData takes them, and the keys of
    these executions.

    A value that is not a number is left out, and no other value with it.
    """
    data, keys = [], []
    for one in summaries:
        stage = next(s for s in one.stages if s.stage is records.PipelineStage.EXECUTE)
        key = f"{one.paper}/{stage.key}/{stage.at}"
        if stage.outcome is records.StageOutcome.NOT_RUN or key in known:
            continue
        keys.append(key)
        place = instance_type if stage.labels.get("where") == "executor" else "local"
        dimensions = {"InstanceType": place, "Replies": SCRIPTED if one.scripted else MODEL}
        common = {
            "Dimensions": [{"Name": name, "Value": text} for name, text in dimensions.items()],
            "Timestamp": datetime.fromisoformat(f"{stage.at[:16]}:00+00:00"),
        }
        for name, unit in EXECUTION.items():
            value = stage.numbers.get(name, math.nan)
            # CloudWatch rejects a whole request for one value that it does not take.
            if value == 0.0 or (math.isfinite(value) and SMALLEST <= abs(value) <= LARGEST):
                data.append({"MetricName": name, "Value": value, "Unit": unit, **common})
    return data, keys


PAPERS = MetricGroup("papers", ("replies",))

_METRICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "paper_stages": (
        "Stored papers by stage of the pipeline and outcome of the stage.",
        ("stage", "outcome"),
    ),
    "papers": (
        "Stored papers: passed every stage, failed one, or incomplete (a stage was not run).",
        ("state",),
    ),
    "paper_info": (
        "Always 1; the labels say what became of a paper: its state, and the first stage that it "
        "did not pass. Of the 100 papers that were worked on last.",
        ("paper", "title", "state", "stage"),
    ),
    "paper_findings": (
        "Stored papers with a finding of this class in the last version of their code.",
        ("finding",),
    ),
    "paper_verdicts": ("Generated models by compile target and status.", ("target", "status")),
    "paper_repairs": ("Stored papers by the number of repairs of their code.", ("repairs",)),
    "paper_requests": ("Requests to the language model for all stored papers.", ()),
    "paper_tokens": ("Tokens of these requests.", ("direction",)),
    "paper_usd": (
        "US dollars that these requests cost, by the reviewed prices; absent if one is unknown.",
        (),
    ),
    "paper_success_usd": (
        "US dollars divided by the papers that passed every stage; absent if none did.",
        (),
    ),
}
"""Metric -> what it counts, and its labels beside `replies`."""

DEFINITIONS: tuple[Definition, ...] = tuple(
    Definition(f"compilewatch_{name}", text, labels, PAPERS)
    for name, (text, labels) in _METRICS.items()
)

LABELS: dict[str, str] = {
    "replies": "where the code of papers comes from: `model`, or `scripted` (prepared replies)",
    "stage": "a stage of the papers pipeline: "
    + ", ".join(f"`{stage}`" for stage in records.PipelineStage),
    "outcome": ", ".join(f"`{outcome}`" for outcome in records.StageOutcome),
    "state": "`passed`, `failed`, `incomplete`",
    "finding": ", ".join(f"`{kind}`" for kind in records.FindingClass),
    "repairs": "`0` to `3`",
    "paper": "the paper's id: a number of arXiv or a file's name",
    "title": "the title of the paper, cut after 120 characters",
    "direction": "`input` or `output`",
}


MEANINGS: dict[str, str] = {
    "paper": "id of the paper",
    "stage": "stage of the papers pipeline: `find` to `execute`",
    "outcome": "`passed`, `failed` or `not_run`",
    "finding": "class of the first finding, such as `unfaithful`; null: nothing is wrong",
    "generation": "SHA-256 of the version of the code; null: the stage is about none",
    "scripted": "whether the code comes from prepared replies instead of a model",
}


class PaperStageEnded(Event, frozen=True, kw_only=True, tag="paper_stage_ended"):
    """A stage of a paper ended. `run` is empty, and `ts` is when the stage ended."""

    paper: str
    stage: str
    outcome: str
    finding: str | None
    generation: str | None
    scripted: bool
    detail: str


def paper_stage(result: records.StageResult) -> PaperStageEnded:
    """The event of a line of a paper's journal: the same each time it is made."""
    finding = result.findings[0] if result.findings else None
    return PaperStageEnded(
        ts=result.at,
        level="warning" if finding else "info",
        run="",
        source="papers",
        device="cpu",
        paper=result.paper,
        stage=result.stage.value,
        outcome=result.outcome.value,
        finding=finding.kind.value if finding else None,
        generation=result.generation,
        scripted=result.scripted,
        detail=finding.evidence if finding else result.detail,
    )


EVENTS: tuple[type[Event], ...] = (PaperStageEnded,)


FINDING_WORDS = {
    "wrong_in_eager": "wrong in eager mode",
    "unfaithful": "not the paper's contribution",
    "graph_break": "graph break",
    "compiler_cannot": "the compiler cannot",
}
"""Findings that must not be confused, in words."""


def render(
    summaries: Sequence[records.PaperSummary], entries: Iterable[records.ModelCall]
) -> Iterator[tuple[str, bytes]]:
    """Every file of the page as (path, content); the page comes last."""
    yield "report.css", resources.files("compilewatch.report").joinpath("report.css").read_bytes()
    templates = environment("compilewatch.extras.papers")
    templates.filters["words"] = lambda kind: FINDING_WORDS.get(kind, kind.replace("_", " "))
    text = templates.get_template("papers.html").render(
        version=compilewatch.__version__,
        papers=summaries,
        funnel=funnel(summaries),
        stages=list(records.PipelineStage),
        requests=len(tuple(entries)),
    )
    yield "index.html", text.encode()


PAPERS_JOB = "compilewatch_papers"


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
    results = [result for journal in journals.values() for result in journal]
    steps: tuple[tuple[str, object, Callable[[], str]], ...] = (
        ("pushgateway", settings.pushgateway.url, lambda: push_papers(settings, summaries)),
        ("loki", settings.loki.url, lambda: _log(settings, store, results)),
        ("cloudwatch", settings.cloudwatch.enabled, lambda: _watch(settings, store, summaries)),
    )
    failures = []
    for name, enabled, send in steps:
        try:
            if enabled:
                lines.append(send())
        except SinkError as error:
            failures.append((name, str(error)))
    return Published(lines=tuple(lines), failures=tuple(failures))


def push_papers(settings: Settings, summaries: Sequence[records.PaperSummary]) -> str:
    """Replace the groups of papers, by the origin of their code. Raises SinkError."""
    from compilewatch.sinks.prometheus import registry
    from compilewatch.sinks.pushgateway import Gateway

    gateway = Gateway(settings)
    groups = paper_groups(summaries)
    for replies, samples in groups.items():
        gateway.replace(PAPERS_JOB, {"replies": replies}, registry(samples, DEFINITIONS))
    series = sum(map(len, groups.values()))
    return f"pushgateway: {series:,} series in {len(groups)} groups at {gateway.address}"


def _log(settings: Settings, store: PaperStore, results: list[records.StageResult]) -> str:
    """Send what Loki does not have. It rejects what is older than a week, so nothing goes twice."""
    from compilewatch.sinks.loki import LokiSink

    known = store.published("loki")
    keys = {digest([one.paper, one.stage, one.key, one.at])[:32]: one for one in results}
    new = {key: one for key, one in keys.items() if key not in known}
    if not new:
        return "loki: nothing new"
    ordered = sorted(new.values(), key=lambda one: one.at)
    line = LokiSink(settings).send(msgspec.json.encode(paper_stage(one)) for one in ordered)
    store.add_published("loki", new)
    return line


def _watch(settings: Settings, store: PaperStore, summaries: list[records.PaperSummary]) -> str:
    """Send the executions that CloudWatch does not have, a request at a time."""
    own = settings.cloudwatch
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


def put(settings: CloudWatchSettings, data: Sequence[dict[str, Any]]) -> None:
    """Send data in one request. Raises SinkError."""
    from botocore import exceptions

    from compilewatch import aws

    try:
        client = aws.client(
            "cloudwatch",
            region=settings.region,
            profile=settings.profile,
            endpoint_url=settings.endpoint_url,
            attempts=3,
        )
        client.put_metric_data(Namespace=settings.namespace, MetricData=data)
    except (exceptions.BotoCoreError, exceptions.ClientError) as error:
        raise SinkError(f"CloudWatch: {aws.explain(error, settings.region)}") from None
