"""Models without graph breaks, changes, and the most important reasons, families and models."""

from __future__ import annotations

from dashboards.frame import (
    COLUMNS,
    HEALTH,
    MODEL,
    OVERVIEW,
    REASONS,
    TARGETS,
    dashboard,
    family,
    from_series,
    same_page,
    shared,
    to_dashboard,
    variable,
)
from dashboards.gate import gate, gate_run, new_breaks
from dashboards.panels import GOOD, Steps, bars, fixed, override, thresholds, tiles, timeline, trend
from dashboards.queries import (
    FAILED,
    MILLIONS,
    PASSED,
    STALE_SECONDS,
    at_end,
    downloads_without_breaks,
    last_success,
    log,
    millions,
    model_log,
    models_without_breaks,
    of_group,
    of_mode,
    or_say,
    share_of_models,
)
from dashboards.sources import Json, ever, logged, now
from dashboards.states import BY_CODE, GREY, NEARLY_ALL, ORANGE, codes, value
from dashboards.tables import STATE_CELL, WHEN, matrix, table

CHOSEN = 'family=~"$family"'
DOWNLOADS = f"max by (model) ({of_group('compilewatch_model_downloads', CHOSEN)})"
FAILING = of_mode("compilewatch_model_status", FAILED, CHOSEN)
TO_TARGET = from_series(TARGETS, "This target", "target")

WORST = (
    f"topk(20, {DOWNLOADS} and on (model) {FAILING} "
    f"or 0 * max by (model) ({FAILING}) unless on (model) {DOWNLOADS})"
)
"""The 20 most downloaded models that do not pass; models with unknown downloads come last."""


def news() -> list[Json]:
    """What is worse than it was, and the alerts: the first line answers what broke."""
    worse = of_mode("compilewatch_regressed_models")
    better = of_mode("compilewatch_changes", 'kind="fixed"')
    since = of_mode("compilewatch_regressed_since_timestamp_seconds", CHOSEN)
    by = "model, where, status"
    named = f'label_join({since}, "where", " ", "target", "mode")'
    used = f"0 * max by ({by}) ({named}) + on (model) group_left () {DOWNLOADS}"
    none = [value({"0": ("0", GREY)})]
    good: Steps = [(None, "text"), (1, "green")]
    return [
        tiles(
            "Worse and better",
            "Results that are worse than in their last good state, and results that are better "
            "than in the run before. No data: there is no earlier run, which is not zero.",
            (5, 8),
            now(f"sum({worse})", "▼ worse"),
            now(f"sum({better})", "▲ better"),
            mappings=none,
            steps=[(None, "text"), (1, "red")],
            overrides=[override("▲ better", {"thresholds": thresholds(good)})],
            links=[same_page("The list", LIST)],
        ),
        table(
            "Worse than in the last good state",
            "Models with a worse verdict than one of the last 20 runs, and since when; of each "
            "target the 20 most downloaded ones. What meets an expectation is not listed.",
            (13, 8),
            {
                "since": or_say(
                    f"1000 * max by ({by}) ({named})", f"group({worse})", model="none is worse"
                ),
                "downloads": millions(used),
            },
            labels=("model", "where", "status"),
            sort="downloads",
            looks={
                "model": {"links": [to_dashboard(MODEL, "This model", "model")]},
                "where": {"custom.width": 120},
                "status": {"custom.width": 120, **STATE_CELL},
                "since": WHEN,
                "downloads": {"unit": MILLIONS, "custom.width": 125},
            },
        ),
        alerts(6, 8),
    ]


LIST = 2
"""The id of the list of worse models."""


def alerts(width: int, height: int) -> Json:
    """Prometheus' alerts, of which only those with evidence that the rules run can be none."""
    named = 'label_replace(ALERTS{alertname=~"Compilewatch.*"}, "alert", "$1", "alertname", '
    named += '"Compilewatch(.*)")'
    by = "alert, alertstate, severity, source, target"
    return table(
        "Alerts",
        "Prometheus alerts about compilewatch, including pending ones.",
        (width, height),
        {
            "Alerts": or_say(
                f"count by ({by}) ({named})",
                "group(compilewatch:last_success_timestamp_seconds)",
                alert="none",
            )
        },
        labels=("alert", "alertstate", "severity", "source", "target"),
        hidden=("Value", "source", "severity") if width < COLUMNS // 2 else ("Value",),
        looks={"alert": {"custom.minWidth": 132}, "alertstate": {"custom.width": 82}},
    )


def headline() -> list[Json]:
    """The share without graph breaks with its numbers, and the age of the data."""
    share: Json = {
        "unit": "percentunit",
        "max": 1,
        "decimals": 1,
        "steps": GOOD,
        "color": {"mode": "thresholds"},
        "mappings": [NEARLY_ALL],
        "links": [TO_TARGET],
    }
    age = (
        f"max by (target, mode) ((time() - ({last_success()})) "
        "* on (source, target) group_right () "
        f"group by (source, target, mode) ({of_mode('compilewatch_results')}))"
    )
    return [
        bars(
            "Models without graph breaks",
            "Passes divided by verdicts (pass, graph break, mismatch, compiler error), by "
            "target and mode, worst first. Green from 95 %, orange from 75 %, red below.",
            (9, 7),
            now(models_without_breaks(), "{{target}} {{mode}}: {{part}} of {{whole}}"),
            **share,
        ),
        bars(
            "Weighted by downloads",
            "The same share, weighted by downloads in 30 days: what users experience. Over models "
            "that pass, break, mismatch or fail; millions of downloads.",
            (9, 7),
            now(downloads_without_breaks(), "{{target}} {{mode}}: {{part}} of {{whole}} M"),
            **share,
        ),
        bars(
            "Last complete run",
            "Time since the newest complete run of each target and mode, the oldest first. Red "
            "after 26 hours: a day, and two hours for the run itself.",
            (6, 7),
            now(f"sort_desc({age})", "{{target}} {{mode}}"),
            unit="dtdurations",
            decimals=0,
            steps=[(None, "green"), (STALE_SECONDS, "red")],
            color={"mode": "thresholds"},
            links=[from_series(HEALTH, "Health of the monitor", "target")],
        ),
    ]


def costs() -> list[Json]:
    """The reasons and families with the most affected models."""

    ran = f"group({of_mode('compilewatch_verdicts')})"
    known = f"count(count by (model) ({of_group('compilewatch_model_info')}))"
    all_downloads = f"sum(max by (model) ({of_group('compilewatch_model_downloads')}))"

    def reasons(what: str, about: str, whole: str, scale: str = "", **look: str) -> Json:
        # A model that breaks on three targets is one model: the largest group of a source counts.
        metric = of_mode(f"compilewatch_reason_{what}")
        most = f"topk(7, sum by (reason) (max by (source, reason) ({metric})))"
        return bars(
            f"Reasons, by {what}",
            f"The seven reasons of graph breaks that {about}. A model counts once, in the target "
            "and mode where the reason affects most models. A full bar is all models.",
            (9, 10),
            now(f"sort_desc({or_say(most, ran, reason='no graph breaks')}){scale}", "{{reason}}"),
            whole=now(whole + scale),
            above=True,
            color=fixed(ORANGE),
            links=[from_series(REASONS, "This reason", "reason")],
            **look,
        )

    stopped = f"count by (family) (count by (family, model) ({FAILING}))"
    downloads = of_group("compilewatch_model_downloads", CHOSEN)
    used = f"sum by (family) (max by (family, model) ({downloads}) and on (model) {FAILING})"
    most = f"topk(7, {stopped} + ({used} / 1e12 or 0 * {stopped}))"
    return [
        reasons("models", "affect most models", known),
        reasons("downloads", "affect the most downloads", all_downloads, " / 1e6", unit=MILLIONS),
        bars(
            "Families, by models",
            "The families with most models that do not pass on some target, the most downloaded "
            "first among equals.",
            (6, 10),
            now(f"sort_desc({or_say(most, ran, family='all pass')})", "{{family}}"),
            whole=now(known),
            above=True,
            decimals=0,
            links=[from_series(OVERVIEW, "Models of this family", "family")],
        ),
    ]


def share_over_time(width: int, height: int) -> Json:
    """The first number of the headline, over time."""
    return trend(
        "Share without graph breaks",
        "Passes divided by verdicts, by target and mode. Lines that coincide have different "
        "widths. Dashed marks: new versions.",
        (width, height),
        ever(share_of_models(), "{{target}} {{mode}}"),
        unit="percentunit",
        min=None,
        max=1,
        links=[TO_TARGET],
    )


def models(height: int) -> Json:
    """The model × target matrix, models that do not pass first."""
    by = "model, target, mode"
    state = codes(by, CHOSEN)
    known = f"max by (model) ({of_group('compilewatch_model_info', CHOSEN)})"
    ordered = f"{state} + on (model) group_left () ({DOWNLOADS} / 1e12 or 0 * {known})"
    return matrix(
        "Models by target",
        "The result of each model on each target: models that do not pass first, the most "
        "downloaded first among equals.",
        (24, height),
        f'sort_desc(label_join({ordered}, "column", " ", "target", "mode"))',
        row="model",
        column="column",
        mappings=BY_CODE,
        link=to_dashboard(MODEL, "This model", "model"),
    )


def failing() -> Json:
    """History of the models that do not pass."""
    shown = 'model=~"$failing"'
    status, downloads = "compilewatch_model_status", "compilewatch_model_downloads"
    used = at_end(
        f"max by (model) ({of_group(downloads, shown)}) "
        f"or 0 * max by (model) ({of_mode(status, shown)})"
    )
    # The label `above` has a fixed number of digits, and series come in the order of their labels.
    rank = f'count_values by (model) ("above", 1e12 - ({used}))'
    history = f"{codes('model', shown)} * on (model) group_right () {rank}"
    passes, fails = (of_mode("compilewatch_results", status) for status in (PASSED, FAILED))
    # 1 is the state of a pass.
    all_pass = f"(group({passes}) unless on () (sum({fails}) > 0)) + 1"
    return timeline(
        "Models that do not pass, most downloaded first",
        "The worst result over the chosen targets and modes for each of the 20 most downloaded "
        "models that do not pass now.",
        (14, 12),
        ever(or_say(history, all_pass, model="all models pass"), "{{model}}"),
        links=[from_series(MODEL, "This model", "model")],
    )


def changed_families() -> Json:
    """The number of changed results, from metrics."""
    changes = f"sum by (family, kind) ({of_mode('compilewatch_family_changes', CHOSEN)})"
    compared = f"group({of_mode('compilewatch_changes')})"
    return table(
        "Changed families",
        "Results that differ from those of the run before, by family and kind.",
        (6, 9),
        {"results": or_say(changes, compared, family="none changed")},
        labels=("family", "kind"),
        sort="results",
        looks={
            "family": {"links": [to_dashboard(OVERVIEW, "Models of this family", "family")]},
            "kind": {"custom.width": 100},
            "results": {"custom.width": 100},
        },
    )


def changed_models() -> Json:
    """The changed results, from the log, because metrics do not name models."""
    what = '{{if eq .event "regression"}}worse{{else}}{{.kind}}{{end}}'
    labels = ("model", "where", "what", "before", "after", "detail")
    changes = (
        f"max by ({', '.join(labels)}) (max_over_time("
        + model_log('event=~"regression|change"')
        + f" | {CHOSEN} | label_format what=`{what}`, where=`{{{{.target}}}} {{{{.mode}}}}`"
        + ", at=`{{__timestamp__ | unixEpoch}}` | unwrap at [$__range]))"
    )
    ended = log('event="run_finished"') + " | baseline!=``"
    evidence = f"sum(count_over_time({ended} [$__range]))"
    return table(
        "Changed results",
        "From the log, in the time shown: each result that differs from that of the run before, "
        "and torch's words.",
        (18, 9),
        {"when": logged(f"1000 * ({or_say(changes, evidence, model='none changed')})", "instant")},
        labels=labels,
        sort="when",
        looks={
            "when": WHEN,
            "model": {"links": [to_dashboard(MODEL, "This model", "model")], "custom.width": 240},
            "where": {"custom.width": 120},
            "what": {"custom.width": 90},
            "before": {"custom.width": 130, **STATE_CELL},
            "after": {"custom.width": 130, **STATE_CELL},
            "detail": {"custom.minWidth": 300},
        },
    )


def overview() -> Json:
    return dashboard(
        OVERVIEW,
        "What is worse than it was, and alerts; the share of models without graph breaks, by "
        "models and by downloads; the most important reasons, families and models.",
        [
            news(),
            headline(),
            [failing(), share_over_time(10, 12)],
            costs(),
            [models(18)],
            [changed_families(), changed_models()],
            gate(),
            new_breaks(6),
        ],
        variables=[
            *shared(),
            family(),
            variable(
                "failing",
                "The models of the timeline.",
                f"query_result({WORST})",
                regex='/model="([^"]+)"/',
                hide=True,
            ),
            gate_run(),
        ],
    )
