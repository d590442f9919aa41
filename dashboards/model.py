"""One model, and one reason of graph breaks: history, results, breaks and their lines, log."""

from compilewatch.records import Phase
from dashboards import frame, panels
from dashboards import queries as q
from dashboards.queries import Json

ONE = 'model="$model"'
BY = "target, mode"
BUILD_URL = "http://localhost:8080/job/compilewatch/lastCompletedBuild/artifact"
"""Address of the newest build's files in the Jenkins of compose.yaml; the variable changes it."""

REPORT = "${build_url:raw}/build/archive/runs/${run}/report/index.html"
REASON: Json = {
    "links": [
        *frame.cell("reason")["links"],
        frame.to_page("How to fix it", q.REGISTRY + "${__data.fields.hint}"),
    ]
}
"""The look of a column of reasons, beside a hidden column `hint`."""

LEGEND = "{{target}} {{mode}}"
ACCEPTED = [
    panels.value({"1": ("✓ accepted", "green"), "0": ("▲ rejected", "orange")}),
    *panels.missing("–"),
]


def _of(metric: str, *matchers: str) -> str:
    return f"max by ({BY}) ({q.of_mode(metric, ONE, *matchers)})"


def _whole(figure: int) -> str:
    """This figure for each target of Dynamo on which the model passes, being a single graph."""
    passed = q.of_mode("compilewatch_model_status", ONE, q.PASSED, 'target=~"dynamo.*"')
    return f"{figure} + 0 * max by ({BY}) ({passed})"


def _now() -> list[Json]:
    broken = f"sum by ({BY}) ({q.of_mode('compile_breaks_total', ONE)})"
    passed = q.of_mode("compilewatch_model_status", ONE, q.PASSED)
    status = q.of_mode("compilewatch_model_status", ONE)
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
    return frame.line(
        8,
        panels.table(
            "Now",
            "The newest result of each target, the phase in which it ended, and its measurements. "
            "Captured: operators that ran inside graphs, of all of one forward call. "
            "–: the target does not measure it.",
            columns,
            labels=("target", "mode", "status", "phase"),
            hidden=("Value #A",),
            looks={
                "target": frame.cell("target"),
                "status": panels.STATE_CELL | {"custom.width": 125},
                "mode": {"custom.width": 70},
                "phase": {"custom.width": 80},
                "fullgraph": {
                    "mappings": ACCEPTED,
                    **panels.coloured("color-text"),
                    "custom.width": 105,
                },
                "Captured": {
                    "custom.width": 95,
                    "unit": "percentunit",
                    "decimals": 1,
                    "mappings": [panels.NEARLY_ALL, *panels.missing("–")],
                },
                "Compile": {"unit": q.SECONDS},
                "Memory": {"unit": "bytes"},
            },
        ),
        panels.figures(
            "Measurements",
            "Further figures of each target's newest result; –: the target does not measure it.",
            f'label_join({rows}, "column", " ", "target", "mode")',
            row="figure",
            column="column",
        ),
        widths=(15, 9),
    )


def _about() -> list[Json]:
    who = "model, family, commit, architecture, task, source"
    downloads = q.of_group("compilewatch_model_downloads", ONE)
    return frame.line(
        4,
        panels.table(
            "About the model",
            "Its family, architecture, task and revision on the Hub; downloads in 30 days if "
            "the source reports them.",
            {
                "Known": f"max by ({who}) ({q.of_group('compilewatch_model_info', ONE)})",
                "Downloads": q.millions(f"max by (model, family, source) ({downloads})"),
            },
            labels=("model", "family", "architecture", "task", "source", "commit"),
            hidden=("Value #A",),
            looks={
                "family": {"links": [frame.to_dashboard(frame.OVERVIEW, "Its family", "family")]},
                "Downloads": {"unit": q.MILLIONS},
            },
        ),
    )


def break_table(
    title: str,
    about: str,
    match: str,
    *labels: str,
    checks: tuple[str, ...] = (),
) -> Json:
    """The lines that break, each once, with links to the line, the reason and how to fix it."""
    line = frame.to_page("The line", "${__data.fields.code:raw}")
    return panels.table(
        title,
        about,
        {"Times": q.logged(q.breaks(match, *labels, checks=checks), "instant")},
        labels=(*labels, "place", "reason", "where", "code", "hint"),
        sort="Times",
        looks={
            **{n: frame.cell(n) for n in labels},
            **dict.fromkeys(("code", "hint"), panels.HIDDEN),
            "place": {"custom.minWidth": 220, "links": [line]},
            "reason": {"custom.minWidth": 220, **REASON},
            **{n: {"custom.width": w} for n, w in (("where", 110), ("Times", 95))},
        },
    )


def _why() -> list[Json]:
    counted = q.of_mode("compile_breaks_total", ONE)
    passed = f"group({q.of_mode('compilewatch_model_status', ONE, q.PASSED)})"
    most = f"max by (reason) (sum by (source, {BY}, reason) ({counted}))"
    # The metric starts again with each run: it is the count of the latest one.
    return frame.line(
        9,
        break_table(
            "Where it breaks",
            "From the log: each line with a break in the time shown, and how often one forward "
            "call reaches it. The line opens in the installed release.",
            ONE,
            checks=(ONE,),
        ),
        panels.bars(
            "Why it breaks",
            "Graph breaks of one forward call in the newest run, by reason, in the target and mode "
            "with most breaks.",
            q.now(f"sort_desc({q.or_say(most, passed, reason='no graph breaks')})", "{{reason}}"),
            above=True,
            color=panels.fixed(panels.ORANGE),
            links=frame.series("reason"),
        ),
        widths=(15, 9),
    )


def _trend(title: str, about: str, metric: str, unit: str, *matchers: str) -> Json:
    return panels.trend(title, about, q.ever(_of(metric, *matchers), LEGEND), unit=unit)


def _history() -> list[list[Json]]:
    spent = ", ".join(f'{one}="durations.{one}"' for one in Phase if one is not Phase.DONE)
    run = "{{substr 4 6 .run}}-{{substr 6 8 .run}} {{.target}} {{.mode}}"
    checked = q.model_log('event="model_checked"') + f" | {ONE} | reused_from=``"
    broken = f"sum by ({BY}) ({q.of_mode('compile_breaks_total', ONE)})"
    passed = f"max by ({BY}) ({q.of_mode('compilewatch_model_status', ONE, q.PASSED)})"
    return [
        frame.line(
            8,
            panels.phases(
                "Time in each phase",
                "From the log: seconds that each check of the time shown spent in each phase, "
                "oldest first. Reused results took no time and are not shown.",
                f"{checked} | json {spent} | label_format check=`{run}`",
                "check",
                [one for one in Phase if one is not Phase.DONE],
            ),
        ),
        frame.line(
            7,
            panels.trend(
                "Captured over time",
                "Operators that ran inside captured graphs, of all of one forward call.",
                q.ever(f"{_of('compilewatch_captured_ratio')} or {_whole(1)}", LEGEND),
                unit="percentunit",
            ),
            panels.trend(
                "Graph breaks over time",
                "Breaks of one forward call, all reasons together; 0 where it passes.",
                q.ever(f"{broken} or 0 * {passed}", LEGEND),
            ),
        ),
        frame.line(
            7,
            _trend(
                "Compile time",
                "With empty caches, by targets that measure it.",
                "compilewatch_compile_duration_seconds",
                q.SECONDS,
                'cache="cold"',
            ),
            _trend(
                "Peak memory",
                "Highest resident memory of the model's process.",
                "compilewatch_peak_memory_bytes",
                "bytes",
            ),
        ),
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
    info = f"max by (model) ({q.of_group('compilewatch_model_info', name)})"
    downloads = f"max by (model) ({q.of_group('compilewatch_model_downloads', name)})"
    failing = f"max by (model) ({q.of_mode('compilewatch_model_status', q.FAILED, name)})"
    used = f"({downloads} or 0 * {info})"
    events = f"{q.log()} | {ONE}"
    return frame.dashboard(
        frame.MODEL,
        "One model: its history, its results on each target, each break with its line and reason, "
        "the cost of the phases, its log, and the build with its files.",
        [
            frame.line(
                6,
                panels.timeline(
                    "$model over time",
                    "The result of the model on each target.",
                    q.ever(panels.codes(BY, ONE), LEGEND),
                    links=frame.series("target"),
                ),
            ),
            _now(),
            _why(),
            *_history(),
            _about(),
            frame.line(
                10,
                panels.logs(
                    "Log",
                    "All events about the model, one per line; the row below shows them as JSON.",
                    f"{events} | line_format `{SENTENCE}`",
                ),
            ),
            frame.row(
                "The log as JSON",
                frame.line(
                    12, panels.logs("Log as JSON", "The same events as they were written.", events)
                ),
            ),
        ],
        variables=[
            *frame.shared(),
            frame.family(),
            frame.variable(
                "model",
                "The model: those that do not pass first, the most downloaded first.",
                f"query_result(sort_desc({used} + on (model) 1e12 * {failing} or {used}))",
                regex='/model="([^"]+)"/',
                every=False,
            ),
            *frame.releases("run", "transformers", "torch", match=ONE),
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
        pages=[frame.page("Report of the run", REPORT)],
    )


OF_REASON = 'reason="$reason"'
BREAKS = q.of_mode("compile_breaks_total", OF_REASON)
HITS = q.of_mode("compilewatch_reason_models", OF_REASON)
DOWNLOADS = q.of_mode("compilewatch_reason_downloads", OF_REASON)
UNBROKEN = q.of_mode("compilewatch_reason_fixed_models", OF_REASON)


def _numbers() -> list[Json]:
    # In steps of an hour; of a reason that is newer than the last full hour, now.
    newest = f"timestamp({HITS})"
    first = f"(min(min_over_time({newest}[$__range:1h])) or min({newest})) * 1000"
    return frame.line(
        4,
        panels.tiles(
            "Models",
            "Affected models, in the target and mode with most of them, all sources together.",
            q.now(f"sum(max by (source) ({HITS}))"),
            steps=[(None, panels.ORANGE)],
        ),
        panels.tiles(
            "Left without breaks by a fix",
            "Models that break for this reason only: they have no graph break any more once it is "
            "fixed.",
            q.now(f"sum(max by (source) ({UNBROKEN}))"),
            steps=[(None, "green")],
        ),
        panels.tiles(
            "Downloads",
            "Downloads over 30 days of the affected models, in millions, if they are known.",
            q.now(q.millions(f"sum(max by (source) ({DOWNLOADS}))")),
            unit=q.MILLIONS,
            steps=[(None, panels.ORANGE)],
        ),
        panels.tiles(
            "Breaks",
            "Graph breaks with this reason.",
            q.now(f"sum({BREAKS})"),
            steps=[(None, panels.ORANGE)],
        ),
        panels.tiles(
            "First seen",
            "First occurrence within the time shown: choose a longer time range if it is at its "
            "beginning.",
            q.now(first),
            unit="dateTimeAsIso",
        ),
        widths=(5, 5, 5, 4, 5),
    )


def _hit() -> list[Json]:
    used = f"max by (model) ({q.of_group('compilewatch_model_downloads')})"
    hit = f"max by (model) (sum by (model, source, target, mode) ({BREAKS}))"
    look: Json = {"color": panels.fixed(panels.ORANGE), "links": frame.series("model")}
    return frame.line(
        11,
        panels.bars(
            "Models, by downloads",
            "The 15 most downloaded affected models.",
            q.now(q.millions(f"sort_desc(topk(15, {used} and on (model) {hit}))"), "{{model}}"),
            **look | {"color": panels.fixed(panels.BLUE), "unit": q.MILLIONS},
        ),
        panels.bars(
            "Models, by breaks",
            "The 15 models with most breaks of this reason in one forward call, in the target "
            "and mode with most breaks.",
            q.now(f"sort_desc(topk(15, {hit}))", "{{model}}"),
            **look,
        ),
    )


def _all() -> Json:
    models, downloads = (
        f"sum by (reason) (max by (source, reason) ({q.of_mode(name)}))"
        for name in ("compilewatch_reason_models", "compilewatch_reason_downloads")
    )
    return panels.table(
        "All reasons",
        "Every reason of the newest runs. A model counts once, in the target and mode where the "
        "reason affects most models.",
        {"Models": q.hint(models), "Downloads": q.millions(downloads)},
        labels=("reason", "hint"),
        sort="Models",
        looks={
            "reason": REASON,
            "hint": panels.HIDDEN,
            "Models": {"custom.width": 120},
            "Downloads": {"custom.width": 120, "unit": q.MILLIONS},
        },
    )


def _first() -> Json:
    unbroken, downloads, models = (
        f"sum by (reason) (max by (source, reason) ({q.of_mode(name)}))"
        for name in (
            "compilewatch_reason_fixed_models",
            "compilewatch_reason_fixed_downloads",
            "compilewatch_reason_models",
        )
    )
    return panels.table(
        "What to fix first",
        "Each reason with the models that have no graph break any more once it is fixed alone, "
        "their downloads, and the models that it breaks at all, which is the most that its fix can "
        "give together with others. The command `compilewatch leverage` ranks lines and steps.",
        {
            "Fixed": q.hint(
                q.or_say(f"{unbroken} > 0", f"group({models})", reason="no fix alone is enough")
            ),
            "Downloads": q.hint(q.millions(downloads)),
            "At most": q.hint(f"{models} and ({unbroken} > 0)"),
        },
        labels=("reason", "hint"),
        sort="Fixed",
        looks={
            "reason": REASON,
            "hint": panels.HIDDEN,
            **{name: {"custom.width": 120} for name in ("Fixed", "At most")},
            "Downloads": {"custom.width": 120, "unit": q.MILLIONS},
        },
    )


def _fixes() -> list[Json]:
    """What `compilewatch fix --all-of` verified, for all reasons together."""
    states = {
        "verified": "verified",
        "improves": "fewer breaks",
        "captured": "captured, not verified",
        "nothing": "no fix",
        "no_verdict": "no verdict",
        "not_searched": "not searched",
    }
    counted = {
        name: q.of_mode("compilewatch_fixes_models", f'fix_state="{state}"')
        for state, name in states.items()
    }
    gained = q.of_mode("compilewatch_fixes_downloads", 'fix_state="verified"')
    kinds = q.of_mode("compilewatch_fix_changes_models")
    return frame.line(
        4,
        panels.tiles(
            "Fixes",
            "Models with graph breaks, of all reasons, by what the search for a fix found, in all "
            "targets and modes together. Verified: plain PyTorch confirms a single graph. No data: "
            "no run was searched, with `compilewatch fix --all-of` or the parameter FIX.",
            *(q.now(f"sum({series})", name) for name, series in counted.items()),
        ),
        panels.tiles(
            "Downloads with a verified fix",
            "Downloads over 30 days of the models with a verified fix, in millions, in the target "
            "and mode with most of them.",
            q.now(q.millions(f"sum(max by (source) ({gained}))")),
            unit=q.MILLIONS,
            steps=[(None, "green")],
        ),
        panels.tiles(
            "Kinds of changes",
            "Models with a verified fix, by the kinds of changes in it; a fix may have several.",
            q.now(f"sum by (change_kind) ({kinds})", "{{change_kind}}"),
        ),
        widths=(12, 4, 8),
    )


def _models() -> Json:
    used = q.of_group("compilewatch_model_downloads")
    return panels.table(
        "Models with this reason",
        "Breaks in one forward call over all targets and modes, and downloads of the model.",
        {
            "Breaks": f"sum by (model, family) ({BREAKS})",
            "Downloads": q.millions(
                f"max by (model, family) ({used}) and on (model, family) {BREAKS}"
            ),
        },
        labels=("model", "family"),
        sort="Downloads",
        looks={
            "model": frame.cell("model"),
            "family": frame.cell("family"),
            "Downloads": {"unit": q.MILLIONS},
        },
    )


def reasons() -> Json:
    every = f"sum by (reason) ({q.of_mode('compilewatch_reason_models')})"
    return frame.dashboard(
        frame.REASONS,
        "One reason of graph breaks: the affected models, their downloads, the first occurrence, "
        "the trend, and the source lines.",
        [
            _numbers(),
            _hit(),
            frame.line(8, _first()),
            _fixes(),
            frame.line(
                7,
                panels.trend(
                    "Models over time",
                    "Affected models.",
                    q.ever(f"sum by (target, mode) ({HITS})", LEGEND),
                ),
                panels.trend(
                    "Downloads over time",
                    "Downloads of the affected models.",
                    q.ever(q.millions(f"sum by (target, mode) ({DOWNLOADS})"), LEGEND),
                    unit=q.MILLIONS,
                ),
            ),
            frame.line(
                10,
                break_table(
                    "Where it breaks",
                    "From the log: each line with a break of this reason in the time shown.",
                    OF_REASON,
                    "model",
                ),
            ),
            frame.row("Affected models and locations"),
            frame.line(10, _models()),
            frame.line(10, _all()),
        ],
        variables=[
            *frame.shared(),
            frame.variable(
                "reason",
                "The reason; the one that affects most models comes first.",
                f"query_result(sort_desc({every}))",
                regex='/reason="([^"]+)"/',
                every=False,
            ),
            *frame.releases("transformers", "torch"),
        ],
        since="now-30d",
    )
