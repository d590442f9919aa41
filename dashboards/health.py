"""The monitor itself (does it run, is it published), and what became of research papers."""

from compilewatch.extras.papers.records import PipelineStage
from dashboards import frame, panels
from dashboards import queries as q
from dashboards.overview import alerts
from dashboards.queries import Json

GROUP = "source, target"
LEGEND = "{{source}} {{target}}"
PUBLISHER = '{job="compilewatch_publisher"}'


def _flag(good: str, bad: str) -> Json:
    return {
        "mappings": [
            panels.value({"0": (f"✓ {good}", "green"), "1": (f"✗ {bad}", "red")}),
            *panels.missing("–"),
        ],
        **panels.coloured("color-text"),
    }


def _runs() -> list[list[Json]]:
    def age(metric: str) -> str:
        return f"time() - max by ({GROUP}) ({q.of_group(metric)})"

    ran = "environment, device, python, torch, transformers, harness_version"
    info = q.of_group("compilewatch_run_info")
    seconds = {"unit": "dtdurations", "decimals": 0}
    widths = {"run": 190, "state": 85, "device": 75, "python": 85, "harness_version": 130}
    share = {"unit": "percentunit"}
    return [
        frame.line(
            6,
            panels.table(
                "Runs",
                "How long ago the newest run of each source and target began and ended, how long "
                "ago one was complete, its results, and the share of requests with a verdict.",
                {
                    "Complete run": f"(time() - ({q.last_success()})) > bool {q.STALE_SECONDS}",
                    "Began": age("compilewatch_last_start_timestamp_seconds"),
                    "Ended": age("compilewatch_last_completion_timestamp_seconds"),
                    "Complete": f"time() - ({q.last_success()})",
                    "Results": f"sum by ({GROUP}) ({q.of_mode('compilewatch_results')})",
                    "Coverage": f"max by ({GROUP}) ({q.of_group('compilewatch_coverage_ratio')})",
                },
                labels=("source", "target"),
                sort="Ended",
                looks={
                    "target": frame.cell("target"),
                    "Complete run": _flag("fresh", "stale"),
                    **dict.fromkeys(("Began", "Ended", "Complete"), seconds),
                    "Coverage": share,
                },
            ),
        ),
        frame.line(
            6,
            panels.table(
                "Latest runs",
                "State of the newest run, and the versions it ran with.",
                {"Groups": f"max by (source, target, run, state, {ran}) ({info})"},
                labels=("source", "target", "run", "state", *ran.split(", ")),
                hidden=("Value",),
                looks={n: {"custom.width": w} for n, w in widths.items()},
            ),
        ),
    ]


def _answers() -> list[list[Json]]:
    def tile(title: str, about: str, expr: str, legend: str, steps: panels.Steps) -> Json:
        look = {"unit": "percentunit", "decimals": 1, "mappings": [panels.NEARLY_ALL]}
        return panels.tiles(title, about, q.now(expr, legend), steps=steps, **look)

    def share(title: str, about: str, metric: str, steps: panels.Steps) -> Json:
        expr = f"max by ({GROUP}) ({q.of_group(metric)})"
        return tile(title, about, expr, LEGEND, steps)

    def run(title: str, about: str, metric: str, unit: str, scale: str = "") -> Json:
        return panels.trend(
            title,
            about,
            q.ever(f"max by (source) ({q.of_run(metric)}){scale}", "{{source}}"),
            unit=unit,
        )

    def repositories(title: str, about: str, by: str, legend: str) -> Json:
        metric = "compilewatch_repositories"
        every, covered = q.of_run(metric), q.of_run(metric, 'covered="yes"')
        expr = f"sum by ({by}) ({covered}) / (sum by ({by}) ({every}) > 0)"
        return tile(title, about, expr, legend, panels.GOOD)

    unattributed = q.of_mode("compilewatch_unattributed_graph_breaks")
    return [
        frame.line(
            5,
            share(
                "Coverage",
                "Verdicts divided by planned requests. Requests that did not run are not covered.",
                "compilewatch_coverage_ratio",
                steps=panels.GOOD,
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
        ),
        frame.line(
            5,
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
        ),
        frame.line(
            7,
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
                q.MINUTES,
                " / 60",
            ),
            run(
                "Overhead",
                "Wall-clock time times jobs, divided by the time inside the models' processes: 1 "
                "is none.",
                "compilewatch_overhead_ratio",
                "none",
            ),
            panels.trend(
                "Breaks without a reason",
                "Graph breaks without a known reason; should be zero.",
                q.ever(f"sum by ({GROUP}) ({unattributed})", LEGEND),
            ),
        ),
    ]


def _delivery() -> list[list[Json]]:
    has_target = 'target!=""'
    pushed, rejected = (
        f"max by ({GROUP}) ({q.of_group(name, has_target)})"
        for name in ("push_time_seconds", "push_failure_time_seconds")
    )
    sinks = {
        "In the spool": "compilewatch_spooled_publications",
        "Failed last time": "compilewatch_failed_publications",
    }
    lines = (
        "max by (event, sink, model, detail, run) (max_over_time("
        + q.log('event=~"sink_failed|run_interrupted|expectation_stale"')
        + " | label_format at=`{{__timestamp__ | unixEpoch}}` | unwrap at [$__range]))"
    )
    ended = q.log('event="run_finished"')
    problems = q.or_say(lines, f"sum(count_over_time({ended} [$__range]))", event="none")
    sent = f"compilewatch_last_publication_timestamp_seconds{PUBLISHER}"
    return [
        frame.line(
            6,
            panels.table(
                "Pushgateway",
                "How long ago each group was pushed, and whether the Pushgateway has rejected one "
                "since.",
                {"Last push": f"{rejected} > bool {pushed}", "Pushed": f"time() - {pushed}"},
                labels=("source", "target"),
                sort="Pushed",
                looks={
                    "Last push": _flag("accepted", "rejected"),
                    "Pushed": {"unit": "dtdurations", "decimals": 0},
                },
            ),
            panels.table(
                "Sinks",
                "By sink: publications that wait in the spool for the next publish, those that "
                "failed in the last one, and when one was last sent.",
                {
                    **{n: f"max by (sink) ({metric}{PUBLISHER})" for n, metric in sinks.items()},
                    "Last sent": f"time() - max by (sink) ({sent})",
                },
                labels=("sink",),
                looks={"Last sent": {"unit": "dtdurations", "decimals": 0}},
            ),
        ),
        frame.line(
            8,
            alerts(),
            panels.table(
                "Problems of the monitor",
                "From the log, in the time shown: sinks that failed, runs that were interrupted, "
                "expectations that no longer hold. *none* only if the log has a run without them.",
                {"when": q.logged(f"1000 * ({problems})", "instant")},
                labels=("event", "sink", "model", "detail", "run"),
                sort="when",
                looks={
                    "when": panels.WHEN,
                    "event": {"custom.width": 130},
                    "detail": {"custom.minWidth": 200},
                },
            ),
        ),
    ]


def health() -> Json:
    return frame.dashboard(
        frame.HEALTH,
        "The monitor itself: last runs, coverage, untestable share, reuse, durations, delivery.",
        [*_runs(), *_answers(), *_delivery()],
        variables=frame.shared(),
    )


STATE_OF_PAPER: Json = {
    "mappings": [
        panels.value(
            {
                "passed": ("✓ passed", panels.GREEN),
                "failed": ("✗ failed", panels.RED),
                "incomplete": ("○ incomplete", panels.GREY),
            }
        )
    ],
    **panels.coloured("color-background"),
}
"""The look of a column of states."""


def _passed(stage: PipelineStage) -> Json:
    """Papers that passed a stage; 0 where it was reached and none did."""
    this = f'stage="{stage}"'
    every, passed = (
        f"sum by (stage) ({q.of_papers('compilewatch_paper_stages', this, *outcome)})"
        for outcome in ((), ('outcome="passed"',))
    )
    return q.now(f"{passed} or 0 * {every}", "{{stage}}")


def papers() -> Json:
    usd = q.of_papers("compilewatch_paper_usd")
    classes = f"sum by (finding) ({q.of_papers('compilewatch_paper_findings')})"
    stored = f"(sum ({q.of_papers('compilewatch_papers')}) > 0)"
    every = q.of_papers("compilewatch_paper_info")
    info = f'label_replace({every}, "link", "#", "", "")'
    linked = (
        f'label_replace({info}, "link", "https://arxiv.org/abs/$1", '
        '"paper", "([0-9]{4}[.][0-9]{4,5}(v[0-9]+)?)")'
    )
    per_success = q.of_papers("compilewatch_paper_success_usd")
    return frame.dashboard(
        frame.PAPERS,
        "Research papers: what became of them, why code failed, and what it cost.",
        [
            frame.line(
                5,
                panels.tiles(
                    "Papers",
                    "Stored papers: passed every stage, failed one, or incomplete.",
                    q.now(f"sum by (state) ({q.of_papers('compilewatch_papers')})", "{{state}}"),
                ),
                panels.tiles(
                    "Cost",
                    "US dollars for all requests to the language model, by the reviewed prices.",
                    q.now(f"sum ({usd})"),
                    unit="currencyUSD",
                ),
                panels.tiles(
                    "Cost per success",
                    "US dollars divided by the papers that passed every stage.",
                    q.now(f"max ({per_success})"),
                    unit="currencyUSD",
                ),
                widths=(12, 6, 6),
            ),
            frame.line(
                11,
                panels.bars(
                    "Funnel",
                    "Papers that passed each stage, in the order of the stages; a full bar is all "
                    "papers.",
                    *map(_passed, PipelineStage),
                    whole=q.now(f"sum ({q.of_papers('compilewatch_papers')})"),
                    color=panels.fixed(panels.GREEN),
                    decimals=0,
                ),
                panels.bars(
                    "Failures by class",
                    "Papers with a finding of each class. Wrong in eager mode, unfaithful and what "
                    "a compiler cannot do are different things.",
                    q.now(f"sort_desc({q.or_say(classes, stored, finding='none')})", "{{finding}}"),
                    decimals=0,
                ),
            ),
            frame.line(
                9,
                panels.stacks(
                    "Verdicts of generated models",
                    "Generated models by compile target and status.",
                    f"sum by (target, status) ({q.of_papers('compilewatch_paper_verdicts')})",
                    row="target",
                    column="status",
                ),
                panels.table(
                    "The papers",
                    "The papers that were worked on last, and the first stage that each did not "
                    "pass. "
                    "Papers of arXiv link to it; `make papers` prints the address of the report.",
                    {"papers": f"max by (paper, title, state, stage, link) ({linked})"},
                    labels=("paper", "title", "state", "stage", "link"),
                    hidden=("Value",),
                    looks={
                        "paper": {
                            "custom.width": 170,
                            "links": [frame.to_page("At arXiv", "${__data.fields.link:raw}")],
                        },
                        "title": {"custom.minWidth": 220},
                        "state": {"custom.width": 100, **STATE_OF_PAPER},
                        "stage": {"custom.width": 100},
                        "link": panels.HIDDEN,
                    },
                ),
                widths=(8, 16),
            ),
            frame.line(
                8,
                panels.trend(
                    "Tokens",
                    "Tokens of all requests, by direction.",
                    q.ever(
                        f"sum by (direction) ({q.of_papers('compilewatch_paper_tokens')})",
                        "{{direction}}",
                    ),
                ),
                panels.trend(
                    "Requests",
                    "Requests to the language model.",
                    q.ever(
                        f"sum by (replies) ({q.of_papers('compilewatch_paper_requests')})",
                        "{{replies}}",
                    ),
                ),
                panels.trend(
                    "Repairs needed",
                    "Papers by the number of repairs of their code.",
                    q.ever(
                        f"sum by (repairs) ({q.of_papers('compilewatch_paper_repairs')})",
                        "{{repairs}} repairs",
                    ),
                    drawn="bars",
                ),
            ),
        ],
        variables=[
            frame.data_source("prometheus"),
            frame.variable(
                "replies",
                "Where the code comes from: a model, or prepared replies.",
                'label_values(compilewatch_papers{job="compilewatch_papers"}, replies)',
            ),
        ],
    )
