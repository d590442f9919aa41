"""One reason: the affected models and source lines, since when, and the trend."""

from __future__ import annotations

from dashboards.frame import (
    MODEL,
    OVERVIEW,
    REASONS,
    dashboard,
    from_series,
    releases,
    row,
    shared,
    to_dashboard,
    to_page,
    variable,
)
from dashboards.model import break_table
from dashboards.panels import BLUE, bars, fixed, tiles, trend
from dashboards.queries import MILLIONS, REGISTRY, hint, millions, of_group, of_mode, or_say
from dashboards.sources import Json, ever, now
from dashboards.states import ORANGE
from dashboards.tables import HIDDEN, table

ONE = 'reason="$reason"'
BREAKS = of_mode("compile_breaks_total", ONE)
HITS = of_mode("compilewatch_reason_models", ONE)
DOWNLOADS = of_mode("compilewatch_reason_downloads", ONE)
UNBROKEN = of_mode("compilewatch_reason_fixed_models", ONE)
LEGEND = "{{target}} {{mode}}"


def _numbers() -> list[Json]:
    # In steps of an hour; of a reason that is newer than the last full hour, now.
    newest = f"timestamp({HITS})"
    first = f"(min(min_over_time({newest}[$__range:1h])) or min({newest})) * 1000"
    return [
        tiles(
            "Models",
            "Affected models, in the target and mode with most of them, all sources together.",
            (5, 4),
            now(f"sum(max by (source) ({HITS}))"),
            steps=[(None, ORANGE)],
        ),
        tiles(
            "Left without breaks by a fix",
            "Models that break for this reason only: they have no graph break any more once it is "
            "fixed.",
            (5, 4),
            now(f"sum(max by (source) ({UNBROKEN}))"),
            steps=[(None, "green")],
        ),
        tiles(
            "Downloads",
            "Downloads over 30 days of the affected models, in millions, if they are known.",
            (5, 4),
            now(millions(f"sum(max by (source) ({DOWNLOADS}))")),
            unit=MILLIONS,
            steps=[(None, ORANGE)],
        ),
        tiles(
            "Breaks",
            "Graph breaks with this reason.",
            (4, 4),
            now(f"sum({BREAKS})"),
            steps=[(None, ORANGE)],
        ),
        tiles(
            "First seen",
            "First occurrence within the time shown: choose a longer time range if it is at its "
            "beginning.",
            (5, 4),
            now(first),
            unit="dateTimeAsIso",
        ),
    ]


def _hit() -> list[Json]:
    used = f"max by (model) ({of_group('compilewatch_model_downloads')})"
    hit = f"max by (model) (sum by (model, source, target, mode) ({BREAKS}))"
    look: Json = {"color": fixed(ORANGE), "links": [from_series(MODEL, "This model", "model")]}
    return [
        bars(
            "Models, by downloads",
            "The 15 most downloaded affected models.",
            (12, 11),
            now(millions(f"sort_desc(topk(15, {used} and on (model) {hit}))"), "{{model}}"),
            **look | {"color": fixed(BLUE), "unit": MILLIONS},
        ),
        bars(
            "Models, by breaks",
            "The 15 models with most breaks of this reason in one forward call, in the target "
            "and mode with most breaks.",
            (12, 11),
            now(f"sort_desc(topk(15, {hit}))", "{{model}}"),
            **look,
        ),
    ]


def _all() -> Json:
    models, downloads = (
        f"sum by (reason) (max by (source, reason) ({of_mode(name)}))"
        for name in ("compilewatch_reason_models", "compilewatch_reason_downloads")
    )
    return table(
        "All reasons",
        "Every reason of the newest runs. A model counts once, in the target and mode where the "
        "reason affects most models.",
        (24, 10),
        {"Models": hint(models), "Downloads": millions(downloads)},
        labels=("reason", "hint"),
        sort="Models",
        looks={
            "reason": {
                "links": [
                    to_dashboard(REASONS, "This reason", "reason"),
                    to_page("How to fix it", REGISTRY + "${__data.fields.hint}"),
                ]
            },
            "hint": HIDDEN,
            "Models": {"custom.width": 120},
            "Downloads": {"custom.width": 120, "unit": MILLIONS},
        },
    )


def _first() -> Json:
    unbroken, downloads, models = (
        f"sum by (reason) (max by (source, reason) ({of_mode(name)}))"
        for name in (
            "compilewatch_reason_fixed_models",
            "compilewatch_reason_fixed_downloads",
            "compilewatch_reason_models",
        )
    )
    return table(
        "What to fix first",
        "Each reason with the models that have no graph break any more once it is fixed alone, "
        "their downloads, and the models that it breaks at all, which is the most that its fix can "
        "give together with others. The command `compilewatch leverage` ranks lines and steps.",
        (24, 8),
        {
            "Fixed": hint(
                or_say(f"{unbroken} > 0", f"group({models})", reason="no fix alone is enough")
            ),
            "Downloads": hint(millions(downloads)),
            "At most": hint(f"{models} and ({unbroken} > 0)"),
        },
        labels=("reason", "hint"),
        sort="Fixed",
        looks={
            "reason": {
                "links": [
                    to_dashboard(REASONS, "This reason", "reason"),
                    to_page("How to fix it", REGISTRY + "${__data.fields.hint}"),
                ]
            },
            "hint": HIDDEN,
            **{name: {"custom.width": 120} for name in ("Fixed", "At most")},
            "Downloads": {"custom.width": 120, "unit": MILLIONS},
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
        name: of_mode("compilewatch_fixes_models", f'fix_state="{state}"')
        for state, name in states.items()
    }
    gained = of_mode("compilewatch_fixes_downloads", 'fix_state="verified"')
    kinds = of_mode("compilewatch_fix_changes_models")
    return [
        tiles(
            "Fixes",
            "Models with graph breaks, of all reasons, by what the search for a fix found, in all "
            "targets and modes together. Verified: plain PyTorch confirms a single graph. No data: "
            "no run was searched, with `compilewatch fix --all-of` or the parameter FIX.",
            (12, 4),
            *(now(f"sum({series})", name) for name, series in counted.items()),
            steps=[(None, "text")],
        ),
        tiles(
            "Downloads with a verified fix",
            "Downloads over 30 days of the models with a verified fix, in millions, in the target "
            "and mode with most of them.",
            (4, 4),
            now(millions(f"sum(max by (source) ({gained}))")),
            unit=MILLIONS,
            steps=[(None, "green")],
        ),
        tiles(
            "Kinds of changes",
            "Models with a verified fix, by the kinds of changes in it; a fix may have several.",
            (8, 4),
            now(f"sum by (change_kind) ({kinds})", "{{change_kind}}"),
            steps=[(None, "text")],
        ),
    ]


def _models() -> Json:
    used = of_group("compilewatch_model_downloads")
    return table(
        "Models with this reason",
        "Breaks in one forward call over all targets and modes, and downloads of the model.",
        (24, 10),
        {
            "Breaks": f"sum by (model, family) ({BREAKS})",
            "Downloads": millions(
                f"max by (model, family) ({used}) and on (model, family) {BREAKS}"
            ),
        },
        labels=("model", "family"),
        sort="Downloads",
        looks={
            "model": {"links": [to_dashboard(MODEL, "This model", "model")]},
            "family": {"links": [to_dashboard(OVERVIEW, "Models of this family", "family")]},
            "Downloads": {"unit": MILLIONS},
        },
    )


def reasons() -> Json:
    every = f"sum by (reason) ({of_mode('compilewatch_reason_models')})"
    return dashboard(
        REASONS,
        "One reason of graph breaks: the affected models, their downloads, the first occurrence, "
        "the trend, and the source lines.",
        [
            _numbers(),
            _hit(),
            [_first()],
            _fixes(),
            [
                trend(
                    "Models over time",
                    "Affected models.",
                    (12, 7),
                    ever(f"sum by (target, mode) ({HITS})", LEGEND),
                ),
                trend(
                    "Downloads over time",
                    "Downloads of the affected models.",
                    (12, 7),
                    ever(millions(f"sum by (target, mode) ({DOWNLOADS})"), LEGEND),
                    unit=MILLIONS,
                ),
            ],
            [
                break_table(
                    "Where it breaks",
                    "From the log: each line with a break of this reason in the time shown.",
                    (24, 10),
                    ONE,
                    "model",
                )
            ],
            row("Affected models and locations"),
            [_models()],
            [_all()],
        ],
        variables=[
            *shared(),
            variable(
                "reason",
                "The reason; the one that affects most models comes first.",
                f"query_result(sort_desc({every}))",
                regex='/reason="([^"]+)"/',
                every=False,
            ),
            *releases("transformers", "torch"),
        ],
        since="now-30d",
    )
