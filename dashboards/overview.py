"""Models without graph breaks, changes, and the most important reasons, families and models."""

from __future__ import annotations

from dashboards.frame import (
    HEALTH,
    MODEL,
    OVERVIEW,
    REASONS,
    TARGETS,
    dashboard,
    family,
    from_series,
    row,
    shared,
    to_dashboard,
    variable,
)
from dashboards.panels import (
    GOOD,
    Json,
    Steps,
    bars,
    ever,
    now,
    override,
    thresholds,
    tiles,
    timeline,
    trend,
)
from dashboards.queries import (
    FAILED,
    STALE_SECONDS,
    at_end,
    last_success,
    model_log,
    of_group,
    of_mode,
    share_of_downloads,
    share_of_models,
)
from dashboards.states import BY_CODE, GREY, codes, value
from dashboards.tables import STATE_CELL, line_table, matrix, table

CHOSEN = 'family=~"$family"'
DOWNLOADS = f"max by (model) ({of_group('compilewatch_model_downloads', CHOSEN)})"
FAILING = of_mode("compilewatch_model_status", FAILED, CHOSEN)
TO_TARGET = from_series(TARGETS, "This target", "target")

WORST = (
    f"topk(20, {DOWNLOADS} and on (model) {FAILING} "
    f"or 0 * max by (model) ({FAILING}) unless on (model) {DOWNLOADS})"
)
"""The 20 most downloaded models that do not pass; models with unknown downloads come last."""


def headline() -> list[Json]:
    """The share without graph breaks, the changes, and the age of the data."""
    regressed, fixed = (
        f"sum({of_mode('compilewatch_changes', kind)})"
        for kind in ('kind="regression"', 'kind="fixed"')
    )
    none = [value({"0": ("0", GREY)})]
    better: Steps = [(None, "text"), (1, "green")]
    return [
        tiles(
            "Models without graph breaks",
            "Passes divided by verdicts (pass, graph break, mismatch, compiler error), by "
            "target and mode. Green from 95 %, orange from 75 %, red below.",
            (8, 5),
            ever(share_of_models(), "{{target}} {{mode}}"),
            unit="percentunit",
            decimals=1,
            steps=GOOD,
            links=[TO_TARGET],
        ),
        tiles(
            "Weighted by downloads",
            "The same share, weighted by downloads in 30 days: what users experience. Over models "
            "that pass, break, mismatch or fail.",
            (8, 5),
            ever(share_of_downloads(), "{{target}} {{mode}}"),
            unit="percentunit",
            empty="downloads unknown",
            decimals=1,
            steps=GOOD,
            links=[TO_TARGET],
        ),
        tiles(
            "Since the baseline",
            "Results that are worse and better than in the baseline run. No value: the run has no "
            "baseline, which is not zero.",
            (4, 5),
            now(regressed, "▼ worse"),
            now(fixed, "▲ better"),
            trend=False,
            empty="no baseline",
            mappings=none,
            steps=[(None, "text"), (1, "red")],
            overrides=[override("▲ better", {"thresholds": thresholds(better)})],
        ),
        tiles(
            "Last complete run",
            "Time since the newest complete run, of the source and target with the oldest one. "
            "Red after 26 hours: a day, and two hours for the run itself.",
            (4, 5),
            now(f"time() - min({last_success()})"),
            trend=False,
            unit="s",
            decimals=0,
            empty="none in this time",
            steps=[(None, "green"), (STALE_SECONDS, "red")],
            links=[to_dashboard(HEALTH, "Health of the monitor")],
        ),
    ]


def costs() -> list[Json]:
    """The reasons and families with the most affected models."""

    def reasons(what: str, about: str, **look: str) -> Json:
        # A model that breaks on three targets is one model: the largest group of a source counts.
        metric = of_mode(f"compilewatch_reason_{what}")
        return bars(
            f"Reasons, by {what}",
            f"The seven reasons of graph breaks that {about}. A model counts once, in the target "
            "and mode where the reason affects most models.",
            (9, 10),
            now(
                f"sort_desc(topk(7, sum by (reason) (max by (source, reason) ({metric}))))",
                "{{reason}}",
            ),
            links=[from_series(REASONS, "This reason", "reason")],
            **look,
        )

    stopped = f"count by (family) (count by (family, model) ({FAILING}))"
    downloads = of_group("compilewatch_model_downloads", CHOSEN)
    used = f"sum by (family) (max by (family, model) ({downloads}) and on (model) {FAILING})"
    return [
        reasons("models", "affect most models", empty="no breaks, or not run"),
        reasons("downloads", "affect the most downloads", empty="downloads unknown"),
        bars(
            "Families, by models",
            "The families with most models that do not pass on some target, the most downloaded "
            "first among equals.",
            (6, 10),
            now(f"sort_desc(topk(7, {stopped} + ({used} / 1e12 or 0 * {stopped})))", "{{family}}"),
            decimals=0,
            empty="all pass, or not run",
            links=[from_series(OVERVIEW, "Models of this family", "family")],
        ),
    ]


def share_over_time(width: int, height: int) -> Json:
    """The first number of the headline, over time."""
    return trend(
        "Share without graph breaks",
        "Passes divided by verdicts, by target and mode. Dashed marks: new versions.",
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
    return timeline(
        "Models that do not pass, most downloaded first",
        "The worst result over the chosen targets and modes for each of the 20 most downloaded "
        "models that do not pass now.",
        (14, 12),
        ever(f"{codes('model', shown)} * on (model) group_right () {rank}", "{{model}}"),
        empty="all pass, or not run",
        links=[from_series(MODEL, "This model", "model")],
    )


def changed_families() -> Json:
    """The number of changed results, from metrics."""
    changes = of_mode("compilewatch_family_changes", CHOSEN)
    return table(
        "Changed families",
        "Results that differ from the baseline run, by family and kind.",
        (5, 8),
        {"Results": f"sum by (family, kind) ({changes})"},
        labels=("family", "kind"),
        sort="Results",
        empty="no change, or no baseline",
        looks={"family": {"links": [to_dashboard(OVERVIEW, "Models of this family", "family")]}},
    )


def changed_models() -> Json:
    """The changed results, from the log, because metrics do not name models."""
    what = '{{if eq .event "regression"}}worse{{else}}{{.kind}}{{end}}'
    fields = ("model", "where", "what", "before", "after", "detail")
    return line_table(
        "Changed models",
        "From the log, in the time shown: each result that differs from the baseline run, and "
        "torch's words.",
        (19, 8),
        model_log('event=~"regression|change"') + f" | {CHOSEN} | label_format what=`{what}`"
        ", where=`{{.target}} {{.mode}}`",
        fields,
        empty="no change, or no baseline",
        looks={
            "Time": {"custom.width": 175, "unit": "dateTimeAsIso"},
            "model": {"links": [to_dashboard(MODEL, "This model", "model")], "custom.width": 200},
            "where": {"custom.width": 110},
            "what": {"custom.width": 80},
            "before": {"custom.width": 120, **STATE_CELL},
            "after": {"custom.width": 120, **STATE_CELL},
        },
    )


def overview() -> Json:
    return dashboard(
        OVERVIEW,
        "The share of models without graph breaks, by models and by downloads; what changed; the "
        "most important reasons, families and models.",
        [
            headline(),
            costs(),
            [failing(), share_over_time(10, 12)],
            [models(18)],
            row("What changed since the baseline?"),
            [changed_families(), changed_models()],
        ],
        since="now-7d",
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
        ],
    )
