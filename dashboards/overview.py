"""Is the monitor alive, what broke, what got fixed, where is it going, and why."""

from __future__ import annotations

from grafana_foundation_sdk.models.common import StackingMode
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

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
    version_changes,
)
from dashboards.panels import Column, DataLink, Kit, Size, Text
from dashboards.queries import (
    CHOSEN,
    GROUP,
    NOT_ANSWERED,
    RAN,
    STALE_SECONDS,
    Scope,
    asked_lines,
    last_success,
    verdicts,
)

NO_BASELINE = "no baseline"
NONE_LISTED = "none, or no baseline"
FRESHNESS: dict[float, tuple[str, str]] = {0: ("fresh", "green"), 1: ("stale", "red")}

FAMILIES = "The families with most results; type a name to add one."


def alive(kit: Kit, scope: Scope) -> Section:
    """Freshness first: nothing below means anything if the monitor has stopped."""
    completed = scope.group("compilewatch_last_completion_timestamp_seconds")
    coverage = scope.group("compilewatch_coverage_ratio")
    answered = f"sum({scope.asked('compilewatch_results')})"
    regressed = scope.asked("compilewatch_changes", 'kind="regression"')
    fixed = scope.asked("compilewatch_changes", 'kind="fixed"')
    size = Size(width=4, height=5)
    stats = [
        kit.stat(
            Text(
                title="Monitor",
                description="Alive while the newest run ended no more than 26 hours ago: "
                "a day, and two hours for the run itself.",
            ),
            size,
            f"(time() - max({completed})) <= bool {STALE_SECONDS}",
            unit="none",
            meaning={1: ("alive", "green"), 0: ("stale", "red")},
        ),
        kit.stat(
            Text(
                title="Since the last whole run",
                description="Time since the latest run that answered all it was asked, of the "
                "source and target that has waited longest.",
                no_value="no whole run in this time",
            ),
            size,
            f"time() - min({last_success(scope)})",
            unit="s",
            steps=[(None, "green"), (STALE_SECONDS, "red")],
        ),
        kit.stat(
            Text(
                title="Coverage, lowest",
                description="Verdicts divided by all that was asked, in the source and target "
                "where that is lowest. What did not run is not covered.",
            ),
            size,
            f"min({coverage})",
            unit="percentunit",
            steps=[(None, "red"), (0.9, "orange"), (0.95, "green")],
        ),
        kit.stat(
            Text(
                title="Answers",
                description="Results of the latest runs: models times targets times modes.",
            ),
            size,
            answered,
        ),
        kit.stat(
            Text(
                title="Regressions",
                description="Results that are worse than in the baseline run. No value where no "
                "baseline was compared, which is not zero.",
                no_value=NO_BASELINE,
            ),
            size,
            f"sum({regressed})",
            meaning={0: ("none", "green")},
            steps=[(None, "green"), (1, "red")],
        ),
        kit.stat(
            Text(
                title="Fixed",
                description="Results that are better than in the baseline run. No value where no "
                "baseline was compared.",
                no_value=NO_BASELINE,
            ),
            size,
            f"sum({fixed})",
            meaning={0: ("none", "text")},
            steps=[(None, "text"), (1, "green")],
        ),
    ]
    return Section(title="Is the monitor alive?", lines=[stats, [_freshness(kit, scope)]])


def _freshness(kit: Kit, scope: Scope) -> Panel:
    completed = scope.group("compilewatch_last_completion_timestamp_seconds")
    coverage = scope.group("compilewatch_coverage_ratio")
    return kit.table(
        Text(
            title="Freshness by source and target",
            description="When each source was last run through each target, and how much of it "
            "gave a verdict. A run that did not answer its whole plan does not count as whole.",
        ),
        Size(width=24, height=6),
        [
            Column(
                name="State",
                expr=f"(time() - max by ({GROUP}) ({completed})) > bool {STALE_SECONDS}",
                unit="none",
                words=FRESHNESS,
            ),
            Column(
                name="Last run ended", expr=f"time() - max by ({GROUP}) ({completed})", unit="s"
            ),
            Column(
                name="Last whole run ended",
                expr=f"time() - ({last_success(scope)})",
                unit="s",
            ),
            Column(
                name="Coverage",
                expr=f"max by ({GROUP}) ({coverage})",
                unit="percentunit",
                steps=[(None, "red"), (0.9, "orange"), (0.95, "green")],
            ),
        ],
        first=("source", "target"),
        sort="Last run ended",
    )


def changes(kit: Kit, scope: Scope, *, linked: bool) -> Section:
    """Regressions, then fixes; with the models themselves, from the log, where it may be asked."""
    both = [
        [
            _changed(kit, scope, "regression", "Regressions by family", "worse", linked=linked),
            _changed(kit, scope, "fixed", "Fixed by family", "better", linked=linked),
        ]
    ]
    if linked:
        both.append([_regressed_models(kit)])
    return Section(title="What changed since the baseline?", lines=both)


def _changed(kit: Kit, scope: Scope, kind: str, title: str, word: str, *, linked: bool) -> Panel:
    by = "family, source, target, mode"
    selected = scope.asked("compilewatch_family_changes", f'kind="{kind}"')
    links: dict[str, list[DataLink]] = {}
    if linked:
        links = {
            "family": [to_dashboard(OVERVIEW, "Models of this family", "family")],
            "target": [to_dashboard(TARGETS, "This target", "target")],
        }
    return kit.table(
        Text(
            title=title,
            description=f"How many results are {word} than in the baseline run. Empty where "
            "nothing changed and where no baseline was compared: the number above says which.",
            no_value=NONE_LISTED,
        ),
        Size(width=12),
        [Column(name="Results", expr=f"sum by ({by}) ({selected})")],
        first=tuple(by.split(", ")),
        sort="Results",
        links=links,
    )


def _regressed_models(kit: Kit) -> Panel:
    return kit.log_table(
        Text(
            title="Regressed models",
            description="From the log, in the time shown: which model, what it was and is, and "
            "torch's words.",
            no_value=NONE_LISTED,
        ),
        Size(width=24),
        asked_lines('event="regression"') + ' | family=~"$family"',
        ("model", "family", "target", "mode", "before", "after", "detail", "run"),
        links={"model": [to_dashboard(MODEL, "This model", "model")]},
    )


def trend(kit: Kit, scope: Scope) -> Section:
    """Shares of verdicts over time, and what gave none."""
    unanswered = scope.asked("compilewatch_results", f'status=~"{NOT_ANSWERED}"')
    return Section(
        title="Where is it going?",
        lines=[
            [
                kit.trend(
                    Text(
                        title="Verdicts",
                        description="Shares of all verdicts: captured whole, captured in pieces, "
                        "wrong results, refused by the compiler. A change of the number of models "
                        "does not show; what gave no verdict stands beside.",
                    ),
                    Size(width=12, height=9),
                    verdicts(scope),
                    stacked=StackingMode.PERCENT,
                ),
                kit.trend(
                    Text(
                        title="Without a verdict",
                        description="Results that say nothing of the compiler: out of time or "
                        "memory, crashed, skipped or unsupported. Errors before the compiler was "
                        "asked are in Monitor health's untestable share.",
                        no_value="none, or not run",
                    ),
                    Size(width=12, height=9),
                    {"{{status}}": f"sum by (status) ({unanswered})"},
                    stacked=True,
                ),
            ],
        ],
    )


def families(kit: Kit) -> Section:
    """The same for each of the few families that the variable `families` holds.

    One panel a family: a query over all of them would read ten times as many samples at once.
    """
    results = CHOSEN.asked("compilewatch_family_results", 'family=~"$families"', f'status=~"{RAN}"')
    panel = kit.trend(
        Text(
            title="$families",
            description="Shares of the family's results that ran, by status; skipped and "
            "unsupported ones left out. Families are chosen above: the ten with most results "
            "unless others are.",
        ),
        Size(width=24, height=6),
        {"{{status}}": f"sum by (status) ({results})"},
        stacked=StackingMode.PERCENT,
    )
    panel.repeat, panel.repeat_direction, panel.max_per_row = "families", "h", 5
    return Section(title="Which families?", lines=[[panel]])


def reasons(kit: Kit, scope: Scope, *, linked: bool) -> Section:
    """The same reasons twice: by how many models they stop, and by how much those are used."""
    # A model that breaks on three targets is one model: the largest group of a source counts.
    models, downloads = (
        f"sum by (reason) (max by (source, reason) ({scope.asked(name)}))"
        for name in ("compilewatch_reason_models", "compilewatch_reason_downloads")
    )
    links = {"reason": [to_dashboard(REASONS, "This reason", "reason")]} if linked else {}
    by_models, by_downloads = (
        kit.table(
            Text(
                title=f"Top reasons by {what}",
                description=f"Why models break, the ten that matter most by {what}. A model is "
                "counted once, in the target and mode where the reason hits most; downloads are "
                "of 30 days, as the source reported them.",
            ),
            Size(width=12, height=9),
            [Column(name=name, expr=f"topk(10, {expr})")],
            first=("reason",),
            sort=name,
            links=links,
        )
        for what, name, expr in (
            ("models", "Models", models),
            ("downloads", "Downloads", downloads),
        )
    )
    return Section(title="Why?", lines=[[by_models, by_downloads]])


def models(kit: Kit, scope: Scope, *matchers: str, linked: bool) -> Section:
    """Every model of the chosen families, most used first."""
    by = "model, family"
    status = "compilewatch_model_status"
    passed = scope.asked(status, 'status="pass"', *matchers)
    failed = scope.asked(status, 'status=~"graph_break|mismatch|error"', *matchers)
    unanswered = scope.asked(status, f'status=~"{NOT_ANSWERED}"', *matchers)
    breaks = scope.asked("compile_breaks_total", *matchers)
    downloads = scope.group("compilewatch_model_downloads", *matchers)
    links: dict[str, list[DataLink]] = {}
    if linked:
        links = {
            "model": [to_dashboard(MODEL, "This model", "model")],
            "family": [to_dashboard(OVERVIEW, "Models of this family", "family")],
        }
    return Section(
        title="Which models?",
        lines=[
            [
                kit.table(
                    Text(
                        title="Models",
                        description="Results of each model over targets and modes: passed, not "
                        "passed (graph break, mismatch or error), without an answer; and its "
                        "graph breaks. An empty cell: no result of that kind.",
                        no_value="–",
                    ),
                    Size(width=24, height=12),
                    [
                        Column(name="Downloads", expr=f"max by ({by}) ({downloads})"),
                        Column(name="Passed", expr=f"count by ({by}) ({passed})"),
                        Column(name="Not passed", expr=f"count by ({by}) ({failed})"),
                        Column(name="No answer", expr=f"count by ({by}) ({unanswered})"),
                        Column(name="Graph breaks", expr=f"sum by ({by}) ({breaks})"),
                    ],
                    first=("model", "family"),
                    sort="Downloads",
                    links=links,
                )
            ]
        ],
    )


def overview() -> Dashboard:
    kit, scope = TEMPLATED, CHOSEN
    results = scope.asked("compilewatch_family_results")
    return dashboard(
        OVERVIEW,
        "Morning page: is the monitor alive, what regressed, what got fixed, the trend, the top "
        "reasons; one click deeper the model, its breaks, its lines, its logs, its build.",
        [
            alive(kit, scope),
            changes(kit, scope, linked=True),
            trend(kit, scope),
            families(kit),
            reasons(kit, scope, linked=True),
            models(kit, scope, 'family=~"$family"', linked=True),
        ],
        variables=[
            *shared_variables(),
            label_variable(
                "families",
                f"Of the trend by family. {FAMILIES}",
                f"query_result(topk(10, sum by (family) ({results})))",
                regex='/family="([^"]+)"/',
            ),
            label_variable(
                "family",
                "Of the table of models and the log of regressions.",
                f"label_values({results}, family)",
            ),
        ],
        annotations=[version_changes(scope)],
        links=navigation(OVERVIEW),
    )
