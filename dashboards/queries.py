"""Queries that several dashboards share, PromQL and LogQL as text, and how Grafana sends them.

docs/metrics.md and docs/events.md explain the metrics and labels.
"""

import re
from typing import Any

from compilewatch.report.wording import REGISTRY_PAGE

Json = dict[str, Any]

SCRAPE = "2m"
"""The shortest step: as often as the Pushgateway is scraped, so that a run shows within minutes."""

PROMETHEUS = {"type": "prometheus", "uid": "${prometheus_datasource}"}
LOKI = {"type": "loki", "uid": "${loki_datasource}"}


def now(expr: str, legend: str = "") -> Json:
    """A Prometheus query for the newest value."""
    target = {"datasource": PROMETHEUS, "expr": expr, "legendFormat": legend}
    return target | {"instant": True, "range": False}


def ever(expr: str, legend: str = "") -> Json:
    """A Prometheus query for the time shown, including the newest value."""
    target = {"datasource": PROMETHEUS, "expr": at_each_step(expr), "legendFormat": legend}
    return target | {"range": True}


SELECTOR = re.compile(r"(\w+\{[^}]*\})( @ end\(\))?(?!\s*[\[\w{])")
LAST_POINT = "vector(time()) == last_over_time(vector(time())[1s:1s] @ end())"


def at_each_step(expr: str) -> str:
    """Of a query over time: have each point show what held at the end of its step.

    Grafana queries at full multiples of the step, seven hours for a number over 30 days, and
    Prometheus looks back from there: what was published since the last full multiple would not be
    shown at all. Each point therefore looks ahead by a step (a negative offset), and the last one,
    whose step has not ended, shows the newest instant within it.

    The expression is always evaluated at one instant. The newest value of each series within the
    step would mix runs: a status that a new run no longer has would count until the step ends.
    """
    newest = r"last_over_time(\1[$__rate_interval]\2 offset -$__interval)"

    def at_end(match: re.Match[str]) -> str:
        return match.expand(newest) if match[2] else match[0]

    def ahead(match: re.Match[str]) -> str:
        return match.expand(newest) if match[2] else f"{match[1]} offset -$__interval"

    latest = f"({SELECTOR.sub(at_end, expr)})[$__interval:1m] @ end() offset -$__interval"
    return f"({SELECTOR.sub(ahead, expr)}) or last_over_time({latest}) and on () ({LAST_POINT})"


def cells(expr: str) -> Json:
    """A Prometheus query for the newest values, as rows of a table."""
    return {**now(expr), "format": "table"}


def logged(expr: str, kind: str = "range") -> Json:
    """A Loki query for lines, or with `instant` for numbers computed from them."""
    return {"datasource": LOKI, "expr": expr, "queryType": kind, "maxLines": 500}


STALE_SECONDS = 26 * 3600
"""A day, and two hours for the run itself: runs are daily unless someone changes the schedule."""

MILLIONS = "suffix:M"

SECONDS, MINUTES = "suffix:s", "suffix:min"
"""Of values that are compared: Grafana's own unit writes 59 s beside 1.66 mins."""

REGISTRY = REGISTRY_PAGE.partition("gb/gb")[0]
"""The front page of PyTorch's registry of graph breaks, which lists every entry."""

PASSED = 'status="pass"'
FAILED = 'status=~"graph_break|mismatch|error"'
SPOKE = 'status=~"pass|graph_break|mismatch|error"'
OF_VERDICTS = 'target!~".+@lowering"'
"""Leaves out the environment of forecasts, also where one crashed."""


def _braced(job: str, *matchers: str) -> str:
    return "{" + ", ".join(filter(None, [job, 'source=~"$source"', *matchers])) + "}"


def of_run(metric: str, *matchers: str) -> str:
    """A metric about all targets of a source; every selector begins with the job."""
    return metric + _braced('job="compilewatch"', *matchers)


def of_group(metric: str, *matchers: str) -> str:
    """A metric about a source and a target."""
    return of_run(metric, 'target=~"$target"', *matchers)


def of_mode(metric: str, *matchers: str) -> str:
    """A metric that has a mode too."""
    return of_group(metric, 'mode=~"$mode"', *matchers)


def of_papers(metric: str, *matchers: str) -> str:
    """A metric about papers."""
    chosen = ['job="compilewatch_papers"', 'replies=~"$replies"', *matchers]
    return metric + "{" + ", ".join(chosen) + "}"


def log(*matchers: str) -> str:
    """Lines of events: a stream selector; further matchers are of labels."""
    return _braced('service_name="compilewatch"', *matchers)


def model_log(*matchers: str) -> str:
    """Lines of events about a model on the chosen targets, in the chosen modes."""
    return log('target=~"$target"', 'mode=~"$mode"', *matchers)


def at_end(expr: str) -> str:
    """Of a query over time: the same at the end of that time, at every step."""
    return expr.replace("}", "} @ end()")


def or_say(expr: str, evidence: str, **labels: str) -> str:
    """A query, or a row with these labels and the value 0 if it finds nothing.

    The row appears only if `evidence` has a value: an empty response alone says nothing, because an
    outage causes one, too. PromQL and LogQL spell this alike.
    """
    row = f"0 * {evidence}"
    for name, text in labels.items():
        row = f'label_replace({row}, "{name}", "{text}", "", "")'
    return f"{expr} or on () {row}"


def shares(part: str, every: str, by: str) -> tuple[str, str]:
    """Two sums, the first a measured zero if only the second exists."""
    total = f"sum by ({by}) ({every})"
    return f"(sum by ({by}) ({part}) or 0 * {total})", total


def share(part: str, every: str, by: str) -> str:
    """One sum divided by another."""
    return " / ".join(shares(part, every, by))


def counted_share(part: str, every: str, scale: str = "") -> str:
    """The same by target and mode, with both sums as the labels `part` and `whole`."""
    by = "target, mode"
    some, total = shares(part, every, by)
    joined = "".join(
        f' * on ({by}) group_left ({name}) count_values by ({by}) ("{name}", round({value}{scale}))'
        for name, value in (("part", some), ("whole", f"({total})"))
    )
    return f"sort(({some} / {total}){joined})"


def share_of_models(by: str = "target, mode") -> str:
    """Of all verdicts, those without graph breaks."""
    passed = of_mode("compilewatch_results", PASSED)
    return share(passed, of_mode("compilewatch_verdicts"), by)


def models_without_breaks() -> str:
    """The share of models by target and mode, worst first, with the numbers as labels."""
    passed, verdicts = of_mode("compilewatch_results", PASSED), of_mode("compilewatch_verdicts")
    return counted_share(passed, verdicts)


def downloads_without_breaks() -> str:
    """The same share of downloads, with millions as labels."""
    downloads = "compilewatch_downloads"
    every = of_mode(downloads, SPOKE, OF_VERDICTS)
    return counted_share(of_mode(downloads, PASSED), every, " / 1e6")


def millions(expr: str) -> str:
    """For the unit `MILLIONS`: Grafana's own short numbers are written as 509 Mil."""
    return f"({expr}) / 1e6"


def share_of_downloads(by: str = "target, mode") -> str:
    """The same, weighted by downloads."""
    downloads = "compilewatch_downloads"
    return share(of_mode(downloads, PASSED), of_mode(downloads, SPOKE, OF_VERDICTS), by)


def last_success() -> str:
    """When each source and target last had a complete run, as far back as the time shown.

    The latest run reports it only if it was complete itself; a deleted group is left out.
    """
    succeeded = of_group("compilewatch_last_success_timestamp_seconds")
    completed = of_group("compilewatch_last_completion_timestamp_seconds")
    return (
        f"max by (source, target) (last_over_time({succeeded}[$__range])) "
        f"and max by (source, target) ({completed})"
    )


def hint(expression: str) -> str:
    """Adds the label `hint`: REGISTRY + hint is the registry's page on the reason, or its front."""
    page = REGISTRY_PAGE.removeprefix(REGISTRY).format(number="$1")
    front = f'label_replace({expression}, "hint", "index.html", "reason", ".*")'
    return f'label_replace({front}, "hint", "{page}", "reason", "GB([0-9]+) .*")'


def breaks(match: str, *labels: str, checks: tuple[str, ...] = ()) -> str:
    """Each break once, however many runs in the time shown met it: its place, source and page.

    A line of Transformers or PyTorch is shown at the release that the newest run had; others, such
    as a team's own, have no page. `checks` narrows the checks that are evidence of no break.
    """
    source = (
        '{{if hasPrefix "transformers/" .file}}https://github.com/huggingface/transformers/blob/'
        'v$transformers/src/{{.file}}#L{{.line}}{{else if hasPrefix "torch/" .file}}'
        "https://github.com/pytorch/pytorch/blob/v$torch/{{.file}}#L{{.line}}{{else}}#{{end}}"
    )
    place = '{{regexReplaceAll "^.*/" .file ""}}:{{.line}} in {{.function}}'
    page = '{{if hasPrefix "GB" .reason}}gb/gb{{substr 2 6 .reason}}.html{{else}}index.html{{end}}'
    by = ", ".join([*labels, "where", "place", "reason", "code", "hint"])
    selected = model_log('event="graph_break"')
    lines = (
        f"max by ({by}) (max_over_time({selected} | {match}"
        " | label_format where=`{{.target}} {{.mode}}`"
        f", place=`{place}`, code=`{source}`, hint=`{page}`"
        " | unwrap occurrences [$__range]))"
    )
    # A reused result does not log its breaks again, so that only other checks are evidence.
    checked = " | ".join([model_log('event="model_checked"'), "reused_from=``", *checks])
    evidence = f"sum(count_over_time({checked} [$__range]))"
    return or_say(lines, evidence, place="no graph break", code="#", hint="index.html")
