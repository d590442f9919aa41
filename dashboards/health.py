"""The monitor itself: does it run, does it produce results, are they published."""

from __future__ import annotations

from typing import Any

from dashboards.frame import HEALTH, TARGETS, dashboard, shared, to_dashboard
from dashboards.overview import alerts
from dashboards.panels import GOOD, tiles, trend
from dashboards.queries import (
    MINUTES,
    STALE_SECONDS,
    last_success,
    log,
    of_group,
    of_mode,
    of_run,
    or_say,
)
from dashboards.sources import Json, ever, logged, now
from dashboards.states import NEARLY_ALL, missing, value
from dashboards.tables import WHEN, coloured, table

GROUP = "source, target"
LEGEND = "{{source}} {{target}}"
PUBLISHER = '{job="compilewatch_publisher"}'


def _flag(good: str, bad: str) -> Json:
    return {
        "mappings": [value({"0": (f"✓ {good}", "green"), "1": (f"✗ {bad}", "red")}), *missing("–")],
        **coloured("color-text"),
    }


def _runs() -> list[list[Json]]:
    def age(metric: str) -> str:
        return f"time() - max by ({GROUP}) ({of_group(metric)})"

    ran = "environment, device, python, torch, transformers, harness_version"
    info = of_group("compilewatch_run_info")
    seconds = {"unit": "dtdurations", "decimals": 0}
    widths = {"run": 190, "state": 85, "device": 75, "python": 85, "harness_version": 130}
    share = {"unit": "percentunit"}
    return [
        [
            table(
                "Runs",
                "How long ago the newest run of each source and target began and ended, how long "
                "ago one was complete, its results, and the share of requests with a verdict.",
                (24, 6),
                {
                    "Complete run": f"(time() - ({last_success()})) > bool {STALE_SECONDS}",
                    "Began": age("compilewatch_last_start_timestamp_seconds"),
                    "Ended": age("compilewatch_last_completion_timestamp_seconds"),
                    "Complete": f"time() - ({last_success()})",
                    "Results": f"sum by ({GROUP}) ({of_mode('compilewatch_results')})",
                    "Coverage": f"max by ({GROUP}) ({of_group('compilewatch_coverage_ratio')})",
                },
                labels=("source", "target"),
                sort="Ended",
                looks={
                    "target": {"links": [to_dashboard(TARGETS, "This target", "target")]},
                    "Complete run": _flag("fresh", "stale"),
                    **dict.fromkeys(("Began", "Ended", "Complete"), seconds),
                    "Coverage": share,
                },
            )
        ],
        [
            table(
                "Latest runs",
                "State of the newest run, and the versions it ran with.",
                (24, 6),
                {"Groups": f"max by (source, target, run, state, {ran}) ({info})"},
                labels=("source", "target", "run", "state", *ran.split(", ")),
                hidden=("Value",),
                looks={n: {"custom.width": w} for n, w in widths.items()},
            )
        ],
    ]


def _answers() -> list[list[Json]]:
    def share(title: str, about: str, metric: str, **look: Any) -> Json:
        asked = now(f"max by ({GROUP}) ({of_group(metric)})", LEGEND)
        return tiles(
            title,
            about,
            (8, 5),
            asked,
            unit="percentunit",
            decimals=1,
            mappings=[NEARLY_ALL],
            **look,
        )

    def run(title: str, about: str, metric: str, unit: str, scale: str = "") -> Json:
        return trend(
            title,
            about,
            (6, 7),
            ever(f"max by (source) ({of_run(metric)}){scale}", "{{source}}"),
            unit=unit,
        )

    def repositories(title: str, about: str, by: str, legend: str) -> Json:
        metric = "compilewatch_repositories"
        every, covered = of_run(metric), of_run(metric, 'covered="yes"')
        asked = now(f"sum by ({by}) ({covered}) / (sum by ({by}) ({every}) > 0)", legend)
        look = {"unit": "percentunit", "decimals": 1, "mappings": [NEARLY_ALL]}
        return tiles(title, about, (12, 5), asked, steps=GOOD, **look)

    unattributed = of_mode("compilewatch_unattributed_graph_breaks")
    return [
        [
            share(
                "Coverage",
                "Verdicts divided by planned requests. Requests that did not run are not covered.",
                "compilewatch_coverage_ratio",
                steps=GOOD,
            ),
            share(
                "Untestable",
                "Requests without a verdict divided by planned requests: a rising share points "
                "to the monitor, not the compiler.",
                "compilewatch_untestable_ratio",
                steps=[(None, "green"), (0.05, "orange"), (0.25, "red")],
            ),
            share(
                "Reused",
                "Results reused from an earlier run, divided by all results: falls when torch, "
                "transformers or the harness changes.",
                "compilewatch_reused_ratio",
                steps=[(None, "blue")],
            ),
        ],
        [
            repositories(
                "Repositories covered",
                "Repositories of the Hub with a verdict on every evaluated part, divided by those "
                "asked for. No data: the newest run has none.",
                "source",
                "{{source}}",
            ),
            repositories(
                "Repositories covered by part",
                "The same by what is evaluated of a repository; without a part, nothing of it can "
                "be built.",
                "source, part",
                "{{source}} {{part}}",
            ),
        ],
        [
            run(
                "Planned requests",
                "Models times targets that the newest run of each source planned.",
                "compilewatch_planned_requests",
                "short",
            ),
            run(
                "Duration of runs",
                "Wall-clock time of the newest run of each source.",
                "compilewatch_run_duration_seconds",
                MINUTES,
                " / 60",
            ),
            run(
                "Overhead",
                "Wall-clock time times jobs, divided by the time inside the models' processes: 1 "
                "is none.",
                "compilewatch_overhead_ratio",
                "none",
            ),
            trend(
                "Breaks without a reason",
                "Graph breaks without a known reason; should be zero.",
                (6, 7),
                ever(f"sum by ({GROUP}) ({unattributed})", LEGEND),
            ),
        ],
    ]


def _delivery() -> list[list[Json]]:
    has_target = 'target!=""'
    pushed, rejected = (
        f"max by ({GROUP}) ({of_group(name, has_target)})"
        for name in ("push_time_seconds", "push_failure_time_seconds")
    )
    sinks = {
        "In the spool": "compilewatch_spooled_publications",
        "Failed last time": "compilewatch_failed_publications",
    }
    lines = (
        "max by (event, sink, model, detail, run) (max_over_time("
        + log('event=~"sink_failed|run_interrupted|expectation_stale"')
        + " | label_format at=`{{__timestamp__ | unixEpoch}}` | unwrap at [$__range]))"
    )
    ended = log('event="run_finished"')
    problems = or_say(lines, f"sum(count_over_time({ended} [$__range]))", event="none")
    sent = f"compilewatch_last_publication_timestamp_seconds{PUBLISHER}"
    return [
        [
            table(
                "Pushgateway",
                "How long ago each group was pushed, and whether the Pushgateway has rejected one "
                "since.",
                (12, 6),
                {"Last push": f"{rejected} > bool {pushed}", "Pushed": f"time() - {pushed}"},
                labels=("source", "target"),
                sort="Pushed",
                looks={
                    "Last push": _flag("accepted", "rejected"),
                    "Pushed": {"unit": "dtdurations", "decimals": 0},
                },
            ),
            table(
                "Sinks",
                "By sink: publications that wait in the spool for the next publish, those that "
                "failed in the last one, and when one was last sent.",
                (12, 6),
                {
                    **{n: f"max by (sink) ({metric}{PUBLISHER})" for n, metric in sinks.items()},
                    "Last sent": f"time() - max by (sink) ({sent})",
                },
                labels=("sink",),
                looks={"Last sent": {"unit": "dtdurations", "decimals": 0}},
            ),
        ],
        [
            alerts(12, 8),
            table(
                "Problems of the monitor",
                "From the log, in the time shown: sinks that failed, runs that were interrupted, "
                "expectations that no longer hold. *none* only if the log has a run without them.",
                (12, 8),
                {"when": logged(f"1000 * ({problems})", "instant")},
                labels=("event", "sink", "model", "detail", "run"),
                sort="when",
                looks={
                    "when": WHEN,
                    "event": {"custom.width": 130},
                    "detail": {"custom.minWidth": 200},
                },
            ),
        ],
    ]


def health() -> Json:
    return dashboard(
        HEALTH,
        "The monitor itself: last runs, coverage, untestable share, reuse, durations, delivery.",
        [*_runs(), *_answers(), *_delivery()],
        variables=shared(),
    )
