"""One model: its history, its results on each target, its breaks and their lines, its log."""

from __future__ import annotations

from compilewatch.records import Phase
from dashboards.frame import (
    MODEL,
    OVERVIEW,
    REASONS,
    TARGETS,
    dashboard,
    family,
    from_series,
    page,
    releases,
    row,
    shared,
    to_dashboard,
    to_page,
    variable,
)
from dashboards.panels import bars, fixed, logs, phases, timeline, trend
from dashboards.queries import (
    FAILED,
    MILLIONS,
    PASSED,
    REGISTRY,
    SECONDS,
    breaks,
    log,
    millions,
    model_log,
    of_group,
    of_mode,
    or_say,
)
from dashboards.sources import Json, ever, logged, now
from dashboards.states import NEARLY_ALL, ORANGE, codes, missing, value
from dashboards.tables import HIDDEN, STATE_CELL, coloured, figures, table

ONE = 'model="$model"'
BY = "target, mode"
BUILD_URL = "http://localhost:8080/job/compilewatch/lastCompletedBuild/artifact"
"""Address of the newest build's files in the Jenkins of compose.yaml; the variable changes it."""

REPORT = "${build_url:raw}/build/archive/runs/${run}/report/index.html"
LEGEND = "{{target}} {{mode}}"
ACCEPTED = [value({"1": ("✓ accepted", "green"), "0": ("▲ rejected", "orange")}), *missing("–")]


def _of(metric: str, *matchers: str) -> str:
    return f"max by ({BY}) ({of_mode(metric, ONE, *matchers)})"


def _whole(figure: int) -> str:
    """This figure for each target of Dynamo on which the model passes, being a single graph."""
    passed = of_mode("compilewatch_model_status", ONE, PASSED, 'target=~"dynamo.*"')
    return f"{figure} + 0 * max by ({BY}) ({passed})"


def _now() -> list[Json]:
    broken = f"sum by ({BY}) ({of_mode('compile_breaks_total', ONE)})"
    passed = of_mode("compilewatch_model_status", ONE, PASSED)
    status = of_mode("compilewatch_model_status", ONE)
    columns = {
        "Result": f"max by ({BY}, status, phase) ({status})",
        "Captured": f"{_of('compilewatch_captured_ratio')} or {_whole(1)}",
        "Breaks": f"{broken} or 0 * max by ({BY}) ({passed})",
        "fullgraph": _of("compilewatch_fullgraph_accepted"),
        "Compile": _of("compilewatch_compile_duration_seconds", 'cache="cold"'),
        "Memory": _of("compilewatch_peak_memory_bytes"),
    }
    # Rows, because a target measures few of them: columns would mostly be empty.
    measured = {
        "eager operators": f"{_of('compilewatch_eager_operators')} or {_whole(0)}",
        "graphs": f"{_of('compilewatch_graphs')} or {_whole(1)}",
        "operations": _of("compilewatch_ops"),
        "guards": _of("compilewatch_guards"),
        "speed-up": _of("compilewatch_speedup_ratio"),
        "recompiles": _of("compilewatch_recompiles"),
        "calls outside of XLA": _of("compilewatch_fallbacks"),
        "size of the NEFF, MB": f"{_of('compilewatch_neff_bytes')} / 1e6",
    }
    rows = " or ".join(
        f'label_replace({expr}, "figure", "{name}", "", "")' for name, expr in measured.items()
    )
    return [
        table(
            "Now",
            "The newest result of each target, the phase in which it ended, and its measurements. "
            "Captured: operators that ran inside graphs, of all of one forward call. "
            "–: the target does not measure it.",
            (15, 8),
            columns,
            labels=("target", "mode", "status", "phase"),
            hidden=("Value #A",),
            looks={
                "target": {"links": [to_dashboard(TARGETS, "This target", "target")]},
                "status": STATE_CELL | {"custom.width": 125},
                "mode": {"custom.width": 70},
                "phase": {"custom.width": 80},
                "fullgraph": {"mappings": ACCEPTED, **coloured("color-text"), "custom.width": 105},
                "Captured": {
                    "custom.width": 95,
                    "unit": "percentunit",
                    "decimals": 1,
                    "mappings": [NEARLY_ALL, *missing("–")],
                },
                "Compile": {"unit": SECONDS},
                "Memory": {"unit": "bytes"},
            },
        ),
        figures(
            "Measurements",
            "Further figures of each target's newest result; –: the target does not measure it.",
            (9, 8),
            f'label_join({rows}, "column", " ", "target", "mode")',
            row="figure",
            column="column",
        ),
    ]


def _about() -> list[Json]:
    who = "model, family, commit, architecture, task, source"
    downloads = of_group("compilewatch_model_downloads", ONE)
    return [
        table(
            "About the model",
            "Its family, architecture, task and revision on the Hub; downloads in 30 days if "
            "the source reports them.",
            (24, 4),
            {
                "Known": f"max by ({who}) ({of_group('compilewatch_model_info', ONE)})",
                "Downloads": millions(f"max by (model, family, source) ({downloads})"),
            },
            labels=("model", "family", "architecture", "task", "source", "commit"),
            hidden=("Value #A",),
            looks={
                "family": {"links": [to_dashboard(OVERVIEW, "Its family", "family")]},
                "Downloads": {"unit": MILLIONS},
            },
        )
    ]


def break_table(
    title: str,
    about: str,
    size: tuple[int, int],
    match: str,
    *labels: str,
    checks: tuple[str, ...] = (),
) -> Json:
    """The lines that break, each once, with links to the line, the reason and how to fix it."""
    line = to_page("The line", "${__data.fields.code:raw}")
    return table(
        title,
        about,
        size,
        {"Times": logged(breaks(match, *labels, checks=checks), "instant")},
        labels=(*labels, "place", "reason", "where", "code", "hint"),
        sort="Times",
        looks={
            **{n: {"links": [to_dashboard(MODEL, "This model", n)]} for n in labels},
            **dict.fromkeys(("code", "hint"), HIDDEN),
            "place": {"custom.minWidth": 220, "links": [line]},
            "reason": {
                "custom.minWidth": 220,
                "links": [
                    to_dashboard(REASONS, "This reason", "reason"),
                    to_page("How to fix it", REGISTRY + "${__data.fields.hint}"),
                ],
            },
            **{n: {"custom.width": w} for n, w in (("where", 110), ("Times", 95))},
        },
    )


def _why() -> list[Json]:
    counted = of_mode("compile_breaks_total", ONE)
    passed = f"group({of_mode('compilewatch_model_status', ONE, PASSED)})"
    most = f"max by (reason) (sum by (source, {BY}, reason) ({counted}))"
    # The metric starts again with each run: it is the count of the latest one.
    return [
        break_table(
            "Where it breaks",
            "From the log: each line with a break in the time shown, and how often one forward "
            "call reaches it. The line opens in the installed release.",
            (15, 9),
            ONE,
            checks=(ONE,),
        ),
        bars(
            "Why it breaks",
            "Graph breaks of one forward call in the newest run, by reason, in the target and mode "
            "with most breaks.",
            (9, 9),
            now(f"sort_desc({or_say(most, passed, reason='no graph breaks')})", "{{reason}}"),
            above=True,
            color=fixed(ORANGE),
            links=[from_series(REASONS, "This reason", "reason")],
        ),
    ]


def _trend(title: str, about: str, metric: str, unit: str, *matchers: str) -> Json:
    return trend(title, about, (12, 7), ever(_of(metric, *matchers), LEGEND), unit=unit)


def _history() -> list[list[Json]]:
    spent = ", ".join(f'{one}="durations.{one}"' for one in Phase if one is not Phase.DONE)
    run = "{{substr 4 6 .run}}-{{substr 6 8 .run}} {{.target}} {{.mode}}"
    checked = model_log('event="model_checked"') + f" | {ONE} | reused_from=``"
    broken = f"sum by ({BY}) ({of_mode('compile_breaks_total', ONE)})"
    passed = f"max by ({BY}) ({of_mode('compilewatch_model_status', ONE, PASSED)})"
    return [
        [
            phases(
                "Time in each phase",
                "From the log: seconds that each check of the time shown spent in each phase, "
                "oldest first. Reused results took no time and are not shown.",
                (24, 8),
                f"{checked} | json {spent} | label_format check=`{run}`",
                "check",
                [one for one in Phase if one is not Phase.DONE],
            ),
        ],
        [
            trend(
                "Captured over time",
                "Operators that ran inside captured graphs, of all of one forward call.",
                (12, 7),
                ever(f"{_of('compilewatch_captured_ratio')} or {_whole(1)}", LEGEND),
                unit="percentunit",
            ),
            trend(
                "Graph breaks over time",
                "Breaks of one forward call, all reasons together; 0 where it passes.",
                (12, 7),
                ever(f"{broken} or 0 * {passed}", LEGEND),
            ),
        ],
        [
            _trend(
                "Compile time",
                "With empty caches, by targets that measure it.",
                "compilewatch_compile_duration_seconds",
                SECONDS,
                'cache="cold"',
            ),
            _trend(
                "Peak memory",
                "Highest resident memory of the model's process.",
                "compilewatch_peak_memory_bytes",
                "bytes",
            ),
        ],
    ]


SAID = '{{.detail | replace "\\n" " " | trunc 300}}'
SENTENCE = (
    '{{if eq .event "model_checked"}}{{.target}} {{.mode}}: {{.status}} in {{.phase}}, '
    f"{{{{.duration_seconds}}}} s{{{{if .reused_from}}}}, reused{{{{end}}}} {SAID}"
    '{{else if eq .event "graph_break"}}{{.target}} {{.mode}}: break at '
    '{{regexReplaceAll "^.*/" .file ""}}:{{.line}} in {{.function}}, ×{{.occurrences}}: '
    "{{.reason}}{{else}}{{.target}} {{.mode}}: {{.event}} {{.kind}} {{.before}} → {{.after}} "
    f"{SAID}{{{{end}}}}"
)
"""An event in words; a message of torch may have many lines, which become one."""


def model() -> Json:
    name = 'family=~"$family"'
    info = f"max by (model) ({of_group('compilewatch_model_info', name)})"
    downloads = f"max by (model) ({of_group('compilewatch_model_downloads', name)})"
    failing = f"max by (model) ({of_mode('compilewatch_model_status', FAILED, name)})"
    used = f"({downloads} or 0 * {info})"
    events = f"{log()} | {ONE}"
    return dashboard(
        MODEL,
        "One model: its history, its results on each target, each break with its line and reason, "
        "the cost of the phases, its log, and the build with its files.",
        [
            [
                timeline(
                    "$model over time",
                    "The result of the model on each target.",
                    (24, 6),
                    ever(codes(BY, ONE), LEGEND),
                    links=[from_series(TARGETS, "This target", "target")],
                )
            ],
            _now(),
            _why(),
            *_history(),
            _about(),
            [
                logs(
                    "Log",
                    "All events about the model, one per line; the row below shows them as JSON.",
                    (24, 10),
                    f"{events} | line_format `{SENTENCE}`",
                )
            ],
            row(
                "The log as JSON",
                logs("Log as JSON", "The same events as they were written.", (24, 12), events),
            ),
        ],
        variables=[
            *shared(),
            family(),
            variable(
                "model",
                "The model: those that do not pass first, the most downloaded first.",
                f"query_result(sort_desc({used} + on (model) 1e12 * {failing} or {used}))",
                regex='/model="([^"]+)"/',
                every=False,
            ),
            *releases("run", "transformers", "torch", match=ONE),
            {
                "type": "textbox",
                "name": "build_url",
                "label": "Build url",
                "hide": 2,
                "description": "Address of the build's files: the artifacts of a Jenkins build.",
                "query": BUILD_URL,
                "current": {"text": BUILD_URL, "value": BUILD_URL},
            },
        ],
        pages=[page("Report of the run", REPORT)],
    )
