"""The monitor itself: does it run, does it answer, does what it finds arrive."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from dashboards.frame import (
    HEALTH,
    TEMPLATED,
    Section,
    dashboard,
    navigation,
    shared_variables,
    version_changes,
)
from dashboards.panels import Column, Size, Text
from dashboards.queries import CHOSEN, GROUP, STALE_SECONDS, last_success, lines

KIT = TEMPLATED
LEGEND = "{{source}} {{target}}"


def _runs() -> Section:
    def age(metric: str) -> str:
        return f"time() - max by ({GROUP}) ({CHOSEN.group(metric)})"

    environment = "environment, device, python, torch, torch_git, transformers, harness_version"
    return Section(
        title="Does it run?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Runs",
                        description="How long ago the latest run of each source and target began "
                        "and ended, how long ago one was answered whole, and its answers.",
                    ),
                    Size(width=24, height=8),
                    [
                        Column(
                            name="Whole run",
                            expr=f"(time() - ({last_success(CHOSEN)})) > bool {STALE_SECONDS}",
                            unit="none",
                            words={0: ("fresh", "green"), 1: ("stale", "red")},
                        ),
                        Column(
                            name="Began",
                            expr=age("compilewatch_last_start_timestamp_seconds"),
                            unit="s",
                        ),
                        Column(
                            name="Ended",
                            expr=age("compilewatch_last_completion_timestamp_seconds"),
                            unit="s",
                        ),
                        Column(name="Whole", expr=f"time() - ({last_success(CHOSEN)})", unit="s"),
                        Column(
                            name="Answers",
                            expr=f"sum by ({GROUP}) ({CHOSEN.asked('compilewatch_results')})",
                        ),
                    ],
                    first=("source", "target"),
                    sort="Ended",
                )
            ],
            [
                KIT.table(
                    Text(
                        title="What ran",
                        description="State of the latest run, and the versions it ran with.",
                    ),
                    Size(width=24, height=8),
                    [
                        Column(
                            name="Groups",
                            expr=f"max by (source, target, run, state, {environment}) "
                            f"({CHOSEN.group('compilewatch_run_info')})",
                        )
                    ],
                    first=("source", "target", "run", "state", *environment.split(", ")),
                    hidden=("Value",),
                )
            ],
        ],
    )


def _answers() -> Section:
    def share(title: str, description: str, metric: str) -> Panel:
        return KIT.trend(
            Text(title=title, description=description),
            Size(width=8),
            {LEGEND: f"max by ({GROUP}) ({CHOSEN.group(metric)})"},
            unit="percentunit",
            highest=1,
        )

    def of_run(title: str, description: str, metric: str, unit: str) -> Panel:
        return KIT.trend(
            Text(title=title, description=description),
            Size(width=6),
            {"{{source}}": f"max by (source) ({CHOSEN.run(metric)})"},
            unit=unit,
        )

    unattributed = CHOSEN.asked("compilewatch_unattributed_graph_breaks")
    return Section(
        title="Does it answer?",
        lines=[
            [
                share(
                    "Coverage",
                    "Verdicts divided by all that was asked. What did not run is not covered.",
                    "compilewatch_coverage_ratio",
                ),
                share(
                    "Untestable",
                    "Results without a verdict divided by all results: rising means that the "
                    "monitor, not the compiler, has a problem.",
                    "compilewatch_untestable_ratio",
                ),
                share(
                    "Reused",
                    "Results answered by an earlier run, of all results: falls where torch, "
                    "transformers or the harness changed.",
                    "compilewatch_reused_ratio",
                ),
            ],
            [
                of_run(
                    "Asked",
                    "Models times targets that the latest run of each source was to answer.",
                    "compilewatch_planned_requests",
                    "short",
                ),
                of_run(
                    "Duration of runs",
                    "Wall-clock time of the latest run of each source.",
                    "compilewatch_run_duration_seconds",
                    "s",
                ),
                of_run(
                    "Overhead",
                    "Wall-clock time times jobs, divided by the time inside the models' "
                    "processes: 1 is none.",
                    "compilewatch_overhead_ratio",
                    "none",
                ),
                KIT.trend(
                    Text(
                        title="Breaks without a reason",
                        description="Graph breaks that no reason was found for; should be zero.",
                    ),
                    Size(width=6),
                    {LEGEND: f"sum by ({GROUP}) ({unattributed})"},
                ),
            ],
        ],
    )


def _delivery() -> Section:
    pushed, refused = (
        f"max by ({GROUP}) ({CHOSEN.group(name)})"
        for name in ("push_time_seconds", "push_failure_time_seconds")
    )
    of_publisher = 'job="compilewatch_publisher"'
    sinks = [
        Column(name=name, expr=f"max by (sink) ({metric}{{{of_publisher}}})", unit="short")
        for name, metric in (
            ("In the spool", "compilewatch_spooled_publications"),
            ("Failed last time", "compilewatch_failed_publications"),
        )
    ]
    published = f"compilewatch_last_publication_timestamp_seconds{{{of_publisher}}}"
    return Section(
        title="Does it arrive?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Pushgateway",
                        description="How long ago each group was pushed, and whether the "
                        "Pushgateway has refused one since.",
                    ),
                    Size(width=12),
                    [
                        Column(
                            name="Last push",
                            expr=f"{refused} > bool {pushed}",
                            unit="none",
                            words={0: ("accepted", "green"), 1: ("refused", "red")},
                        ),
                        Column(name="Pushed", expr=f"time() - {pushed}", unit="s"),
                    ],
                    first=("source", "target"),
                    sort="Pushed",
                ),
                KIT.table(
                    Text(
                        title="Sinks",
                        description="By sink: publications that wait in the spool for the next "
                        "publish, those that failed in the last one, and when one last went out.",
                        no_value="never published",
                    ),
                    Size(width=12),
                    [
                        *sinks,
                        Column(
                            name="Last sent",
                            expr=f"time() - max by (sink) ({published})",
                            unit="s",
                        ),
                    ],
                    first=("sink",),
                ),
            ],
            [
                KIT.table(
                    Text(
                        title="Alerts",
                        description="Alerts of Prometheus about compilewatch, pending ones too.",
                        no_value="none",
                    ),
                    Size(width=12),
                    [
                        Column(
                            name="Alerts",
                            expr="count by (alertname, severity, alertstate, source, target) "
                            '(ALERTS{alertname=~"Compilewatch.*"})',
                        )
                    ],
                    first=("alertname", "severity", "alertstate", "source", "target"),
                ),
                KIT.logs(
                    Text(
                        title="Trouble of the monitor",
                        description="From the log: sinks that failed, runs that were interrupted, "
                        "expectations that no longer hold.",
                        no_value="none",
                    ),
                    Size(width=12),
                    lines('event=~"sink_failed|run_interrupted|expectation_stale"'),
                ),
            ],
        ],
    )


def health() -> Dashboard:
    return dashboard(
        HEALTH,
        "The monitor itself: last runs, coverage, untestable share, reuse, durations, delivery.",
        [_runs(), _answers(), _delivery()],
        variables=shared_variables(),
        annotations=[version_changes(CHOSEN)],
        links=navigation(HEALTH),
    )
