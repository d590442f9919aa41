"""Selectors and queries that several dashboards share: PromQL and LogQL as text.

What the metrics and labels mean stands in docs/metrics.md and docs/events.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from compilewatch.records import Status
from compilewatch.sinks.wording import REGISTRY_PAGE

STALE_SECONDS = 26 * 3600
"""A day, and two hours for the run itself: runs are daily unless someone changes the schedule."""

REGISTRY = REGISTRY_PAGE.partition("gb/gb")[0]
"""The front page of PyTorch's registry of graph breaks, which lists every entry."""

CAPTURED = "pass|graph_break|mismatch"
"""Statuses that are verdicts in every phase; an error is one only while compiling or comparing."""

NOT_ANSWERED = "timeout|oom|crashed|skipped|unsupported"

RAN = "pass|graph_break|mismatch|error|timeout|oom|crashed"


def _braced(*matchers: str) -> str:
    return "{" + ", ".join(filter(None, matchers)) + "}"


def selector(metric: str, *matchers: str) -> str:
    """`metric{job="compilewatch", …}`; empty matchers are left out."""
    return metric + _braced('job="compilewatch"', *matchers)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a dashboard is restricted to: matchers for the labels that metrics are grouped by."""

    source: str = ""
    target: str = ""
    mode: str = ""

    def run(self, metric: str, *matchers: str) -> str:
        """Of a metric about a whole run: no target, no mode."""
        return selector(metric, self.source, *matchers)

    def group(self, metric: str, *matchers: str) -> str:
        """Of a metric about a source and a target."""
        return selector(metric, self.source, self.target, *matchers)

    def asked(self, metric: str, *matchers: str) -> str:
        """Of a metric that has a mode too."""
        return selector(metric, self.source, self.target, self.mode, *matchers)


GROUP = "source, target"


def last_success(scope: Scope) -> str:
    """When each source and target was last answered whole, as far back as the time shown.

    The latest run says so only if it was whole itself; one that has vanished is left out.
    """
    succeeded = scope.group("compilewatch_last_success_timestamp_seconds")
    completed = scope.group("compilewatch_last_completion_timestamp_seconds")
    return (
        f"max by ({GROUP}) (last_over_time({succeeded}[$__range])) "
        f"and max by ({GROUP}) ({completed})"
    )


EVERYTHING = Scope()
CHOSEN = Scope(source='source=~"$source"', target='target=~"$target"', mode='mode=~"$mode"')


def hint(expression: str) -> str:
    """Adds the label `hint`: REGISTRY + hint is the registry's page on the reason, or its front."""
    page = REGISTRY_PAGE.removeprefix(REGISTRY).format(number="$1")
    front = f'label_replace({expression}, "hint", "index.html", "reason", ".*")'
    return f'label_replace({front}, "hint", "{page}", "reason", "GB([0-9]+) .*")'


def verdicts(scope: Scope) -> dict[str, str]:
    """Legend -> how many verdicts say so; together they are all verdicts.

    What is no captured result is an error of the compiler. Both ways of saying that read each
    series once or twice only: over months the time goes into samples.
    """
    captured = scope.asked("compilewatch_results", f'status=~"{CAPTURED}"')
    every = f"sum({scope.asked('compilewatch_verdicts')})"
    return {
        "{{status}}": f"sum by (status) ({captured})",
        "compile error": f"{every} - sum({captured}) or {every}",
    }


def pass_share(selected_pass: str, selected_all: str, by: str) -> str:
    """Passes divided by results; a measured zero where there are results but no pass."""
    whole = f"sum by ({by}) ({selected_all})"
    return f"(sum by ({by}) ({selected_pass}) or 0 * {whole}) / {whole}"


def status_codes(scope: Scope, *matchers: str) -> str:
    """A number for each status, in the order of `Status`, from 1: for a timeline of states."""
    parts = []
    for code, status in enumerate(Status, start=1):
        one = scope.asked("compilewatch_model_status", f'status="{status}"', *matchers)
        parts.append(f"max by (source, target, mode) ({one}) * {code}")
    return " or ".join(parts)


def lines(*labels: str) -> str:
    """A LogQL stream selector of compilewatch's events, of the chosen sources."""
    return _braced('service_name="compilewatch"', 'source=~"$source"', *labels)


def asked_lines(*labels: str) -> str:
    """The same, of events about a model on the chosen targets and modes."""
    return lines('target=~"$target"', 'mode=~"$mode"', *labels)
