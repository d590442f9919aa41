"""One model: what each target says of it, its breaks and their lines, its history, its logs."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import TextBoxVariable
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, VariableOption

from compilewatch.records import Phase, Status
from dashboards.frame import (
    MODEL,
    OVERVIEW,
    REASONS,
    TARGETS,
    TEMPLATED,
    Section,
    dashboard,
    label_variable,
    navigation,
    shared_variables,
    to_dashboard,
    to_page,
    version_changes,
)
from dashboards.panels import COLOURS, Column, Size, Text
from dashboards.queries import CHOSEN, REGISTRY, asked_lines, hint, lines, status_codes

ONE = 'model="$model"'
ASKED = "source, target, mode"
OF_MODEL = '| model="$model"'
BROKEN = asked_lines('event="graph_break"')
KIT = TEMPLATED

STATUS_WORDS = {
    status.value: (status.value.replace("_", " "), COLOURS[status.value.replace("_", " ")])
    for status in Status
}
CODE_WORDS = {code: STATUS_WORDS[status.value] for code, status in enumerate(Status, start=1)}

BUILD_URL = "http://localhost:8080/job/compilewatch/lastCompletedBuild/artifact"
"""Where Jenkins of compose.yaml keeps the newest build's files; the variable takes another."""

REPORT = "${build_url:raw}/build/archive/runs/${__data.fields.run}/report/index.html"


def _targets() -> Section:
    def column(name: str, metric: str, unit: str = "short", *matchers: str) -> Column:
        return Column(
            name=name,
            expr=f"max by ({ASKED}) ({CHOSEN.asked(metric, ONE, *matchers)})",
            unit=unit,
        )

    status = CHOSEN.asked("compilewatch_model_status", ONE)
    accepted = CHOSEN.asked("compilewatch_fullgraph_accepted", ONE)
    return Section(
        title="$model: what does each target say?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Targets",
                        description="Status and the phase it was reached in: an error in create "
                        "is not the compiler's. Empty: not measured by this target.",
                    ),
                    Size(width=24, height=9),
                    [
                        Column(
                            name="Asked",
                            expr=f"max by ({ASKED}, status, phase) ({status})",
                            unit="none",
                        ),
                        Column(
                            name="fullgraph=True",
                            expr=f"max by ({ASKED}) ({accepted})",
                            unit="none",
                            words={1: ("accepted", "green"), 0: ("refused", "orange")},
                        ),
                        column("Graphs", "compilewatch_graphs"),
                        Column(
                            name="Graph breaks",
                            expr=f"sum by ({ASKED}) ({CHOSEN.asked('compile_breaks_total', ONE)})",
                        ),
                        column("Operations", "compilewatch_ops"),
                        column("Guards", "compilewatch_guards"),
                        column(
                            "Cold compile",
                            "compilewatch_compile_duration_seconds",
                            "s",
                            'cache="cold"',
                        ),
                        column("Speed-up", "compilewatch_speedup_ratio", "none"),
                        column("Recompiles", "compilewatch_recompiles"),
                        column("Fallbacks", "compilewatch_fallbacks"),
                        column("Peak memory", "compilewatch_peak_memory_bytes", "bytes"),
                        column("NEFF", "compilewatch_neff_bytes", "bytes"),
                    ],
                    first=("source", "target", "mode", "status", "phase"),
                    hidden=("Value #A",),
                    links={"target": [to_dashboard(TARGETS, "This target", "target")]},
                    meanings={"status": STATUS_WORDS},
                )
            ],
            [
                KIT.table(
                    Text(
                        title="About the model",
                        description="Its family, architecture, task and revision on the Hub; "
                        "downloads of 30 days where the source knows them.",
                    ),
                    Size(width=24, height=4),
                    [
                        Column(
                            name="Downloads",
                            expr="max by (source, family, model) "
                            f"({CHOSEN.group('compilewatch_model_downloads', ONE)})",
                        ),
                        Column(
                            name="Known",
                            expr="max by (source, family, model, commit, architecture, task) "
                            f"({CHOSEN.group('compilewatch_model_info', ONE)})",
                        ),
                    ],
                    first=("model", "family", "architecture", "task", "source", "commit"),
                    hidden=("Value #B",),
                    links={"family": [to_dashboard(OVERVIEW, "Models of this family", "family")]},
                )
            ],
        ],
    )


def _breaks() -> Section:
    # Grafana reads `sum by(model, commit, reason) (compile_breaks_total)` as the counts of the
    # latest run: the metric starts again with each.
    breaks = CHOSEN.asked("compile_breaks_total", ONE)
    return Section(
        title="Why does it break, and where?",
        lines=[
            [
                KIT.table(
                    Text(
                        title="Graph breaks by reason",
                        description="How often each reason breaks one forward call. The hint "
                        "opens PyTorch's page on the reason, or its list where there is none.",
                        no_value="no breaks, or not run",
                    ),
                    Size(width=24, height=7),
                    [
                        Column(
                            name="Breaks",
                            expr=hint(f"sum by ({ASKED}, commit, reason) ({breaks})"),
                        )
                    ],
                    first=("reason", "hint", "source", "target", "mode", "commit"),
                    sort="Breaks",
                    links={
                        "reason": [to_dashboard(REASONS, "This reason", "reason")],
                        "hint": [to_page("How to fix it", REGISTRY + "${__data.fields.hint}")],
                    },
                )
            ],
            [
                KIT.log_table(
                    Text(
                        title="Places",
                        description="From the log, in the time shown: file, line and function of "
                        "each break, torch's own words, and the run that found it. The run opens "
                        "the report that the build archived (see the variable build url).",
                        no_value="no breaks, or not run in this time",
                    ),
                    Size(width=24, height=9),
                    f"{BROKEN} {OF_MODEL}",
                    (
                        *("target", "mode", "reason", "file", "line", "function"),
                        *("occurrences", "detail", "run"),
                    ),
                    links={
                        "reason": [to_dashboard(REASONS, "This reason", "reason")],
                        "run": [to_page("Report of the build", REPORT)],
                    },
                )
            ],
        ],
    )


def _history() -> Section:
    def trend(title: str, description: str, metric: str, unit: str, by: str = ASKED) -> Panel:
        legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
        how = "sum" if metric.endswith("_total") else "max"
        return KIT.trend(
            Text(title=title, description=description),
            Size(width=12),
            {legend: f"{how} by ({by}) ({CHOSEN.asked(metric, ONE)})"},
            unit=unit,
        )

    cached = f"{ASKED}, cache"
    rows = [
        [
            KIT.timeline(
                Text(
                    title="Status over time",
                    description="What each target said, by source and mode.",
                ),
                Size(width=24, height=7),
                status_codes(CHOSEN, ONE),
                "{{source}} {{target}} {{mode}}",
                CODE_WORDS,
            )
        ],
        [
            trend(
                "Graph breaks over time",
                "Breaks of one forward call, all reasons together. No line where there are none.",
                "compile_breaks_total",
                "short",
            ),
            trend(
                "Graphs over time",
                "Graphs captured from one forward call: 1 is the model as a whole.",
                "compilewatch_graphs",
                "short",
            ),
        ],
        [
            trend(
                "Compile time",
                "With empty (cold) and filled (warm) caches, by targets that measure it.",
                "compilewatch_compile_duration_seconds",
                "s",
                cached,
            ),
            trend(
                "Peak memory",
                "Highest resident memory of the model's process.",
                "compilewatch_peak_memory_bytes",
                "bytes",
            ),
        ],
    ]
    return Section(title="How did it get here?", lines=rows)


def _logs() -> Section:
    phases = [phase.value for phase in Phase if phase is not Phase.DONE]
    checked = asked_lines('event="model_checked"')
    spent = {
        f"{phase} {{{{target}}}} {{{{mode}}}}": f"max by (target, mode) (max_over_time({checked} "
        f'{OF_MODEL} | json spent="durations.{phase}" | spent != `` | unwrap spent '
        "| __error__=`` [$__auto]))"
        for phase in phases
    }
    return Section(
        title="What did it do?",
        lines=[
            [
                KIT.log_trend(
                    Text(
                        title="Time in each phase",
                        description="From the log: seconds that a check spent in each phase, one "
                        "check at each point. A reused answer spends none.",
                    ),
                    Size(width=24),
                    spent,
                    "s",
                )
            ],
            [
                KIT.logs(
                    Text(
                        title="Log of the model",
                        description="All events about the model: checked, broken, changed.",
                    ),
                    Size(width=24, height=12),
                    f"{lines()} {OF_MODEL}",
                )
            ],
        ],
    )


def model() -> Dashboard:
    info = CHOSEN.group("compilewatch_model_info", 'family=~"$family"')
    return dashboard(
        MODEL,
        "One model: its row of targets, each break with reason, line and hint, its history, what "
        "the phases cost, its log, and the build that has the files.",
        [_targets(), _breaks(), _history(), _logs()],
        variables=[
            *shared_variables(),
            label_variable(
                "family",
                "Narrows the list of models.",
                f"label_values({CHOSEN.group('compilewatch_model_info')}, family)",
            ),
            label_variable("model", "The model.", f"label_values({info}, model)", every=False),
            TextBoxVariable("build_url")
            .label("Build url")
            .description("Where the build keeps its files: the artifact page of a Jenkins build.")
            .default_value(BUILD_URL)
            .current(VariableOption(text=BUILD_URL, value=BUILD_URL))
            .build(),
        ],
        annotations=[version_changes(CHOSEN)],
        links=navigation(MODEL, Build_artifacts="${build_url:raw}/"),
    )
