"""Models without graph breaks, changes, and the most important reasons, families and models.

The public overview is the same without variables, links and logs: what Grafana can share with
anybody. Externally shared dashboards take neither variables nor annotations of a data source; links
would lead to pages that need a login, and logs hold more than the public should see.
"""

import json
import re

from dashboards import frame, panels
from dashboards import queries as q
from dashboards.queries import Json


def gate() -> list[Json]:
    """What a team's own list means for the baseline of its repository."""
    states = {"new": "new", "known": "known", "resolved": "resolved"}
    states["third_party"] = "in other packages"
    counted = {
        name: q.of_run("compilewatch_gate_breaks", f'baseline_state="{state}"')
        for state, name in states.items()
    }
    changed = q.of_run("compilewatch_gate_baseline_timestamp_seconds")
    return frame.line(
        4,
        panels.tiles(
            "Gate",
            "Graph breaks of a team's own list, in its own code: those that the baseline of its "
            "repository does not hold, those that it holds, those that are resolved, and those in "
            "other packages. No data: no such list with settings of the gate was published.",
            *(q.now(f"sum({series})", name) for name, series in counted.items()),
            overrides=[
                panels.override(
                    "new", {"thresholds": panels.thresholds([(None, "text"), (1, "red")])}
                ),
            ],
        ),
        panels.tiles(
            "Age of the baseline",
            "Time since the baseline of the gate was last committed. No data: there is none.",
            q.now(f"time() - max({changed})"),
            unit="dtdurations",
            # One unit alone would show eleven days as a week.
            decimals=1,
        ),
        widths=(16, 8),
    )


def new_breaks() -> Json:
    """The new graph breaks that the gate counts, from the log, because metrics name no lines."""
    labels = ("place", "function", "reason", "models")
    run = "run=`$gate_run`"
    lines = q.log('event="gate_break"') + f" | {run}"
    breaks = f"max by ({', '.join(labels)}) (count_over_time({lines} [$__range]))"
    ended = q.log('event="run_finished"') + f" | {run}"
    evidence = f"sum(count_over_time({ended} [$__range]))"
    return panels.table(
        "New graph breaks in own code",
        "From the log of the newest run that was judged, if the time shown includes it: what the "
        "baseline does not hold.",
        {"lines": q.logged(q.or_say(breaks, evidence, place="none is new"), "instant")},
        labels=labels,
        hidden=("Value", "Value #A"),
        looks={"place": {"custom.minWidth": 250}, "reason": {"custom.minWidth": 300}},
    )


def gate_run() -> Json:
    """The newest run that the gate judged, as a hidden variable."""
    began = q.of_run("compilewatch_last_start_timestamp_seconds")
    runs = f"{began} * on (source, target) group_right () {q.of_run('compilewatch_run_info')}"
    judged = q.of_run("compilewatch_gate_breaks")
    return frame.variable(
        "gate_run",
        "The newest run that the gate judged.",
        f"query_result(topk(1, {runs} and on (source) {judged}))",
        every=False,
        regex='/[{,]run="([^"]+)/',
        hide=True,
    )


CHOSEN = 'family=~"$family"'
DOWNLOADS = f"max by (model) ({q.of_group('compilewatch_model_downloads', CHOSEN)})"
FAILING = q.of_mode("compilewatch_model_status", q.FAILED, CHOSEN)
TO_TARGET = frame.from_series(frame.TARGETS, "This target", "target")

WORST = (
    f"topk(20, {DOWNLOADS} and on (model) {FAILING} "
    f"or 0 * max by (model) ({FAILING}) unless on (model) {DOWNLOADS})"
)
"""The 20 most downloaded models that do not pass; models with unknown downloads come last."""


def news() -> list[Json]:
    """What is worse than it was, and the alerts: the first line answers what broke."""
    worse = q.of_mode("compilewatch_regressed_models")
    better = q.of_mode("compilewatch_changes", 'kind="fixed"')
    since = q.of_mode("compilewatch_regressed_since_timestamp_seconds", CHOSEN)
    by = "model, where, status"
    named = f'label_join({since}, "where", " ", "target", "mode")'
    used = f"0 * max by ({by}) ({named}) + on (model) group_left () {DOWNLOADS}"
    none = [panels.value({"0": ("0", panels.GREY)})]
    good: panels.Steps = [(None, "text"), (1, "green")]
    return frame.line(
        8,
        panels.tiles(
            "Worse and better",
            "Results that are worse than in their last good state, and results that are better "
            "than in the run before. No data: there is no earlier run, which is not zero.",
            q.now(f"sum({worse})", "▼ worse"),
            q.now(f"sum({better})", "▲ better"),
            mappings=none,
            steps=[(None, "text"), (1, "red")],
            overrides=[panels.override("▲ better", {"thresholds": panels.thresholds(good)})],
            links=[frame.same_page("The list", LIST)],
        ),
        panels.table(
            "Worse than in the last good state",
            "Models with a worse verdict than one of the last 20 runs, and since when; of each "
            "target the 20 most downloaded ones. What meets an expectation is not listed.",
            {
                "since": q.or_say(
                    f"1000 * max by ({by}) ({named})", f"group({worse})", model="none is worse"
                ),
                "downloads": q.millions(used),
            },
            labels=("model", "where", "status"),
            sort="downloads",
            looks={
                "model": frame.cell("model"),
                "where": {"custom.width": 120},
                "status": {"custom.width": 120, **panels.STATE_CELL},
                "since": panels.WHEN,
                "downloads": {"unit": q.MILLIONS, "custom.width": 125},
            },
        ),
        alerts("source", "severity"),
        widths=(5, 13, 6),
    )


LIST = 2
"""The id of the list of worse models."""


def alerts(*hidden: str) -> Json:
    """Prometheus' alerts, of which only those with evidence that the rules run can be none."""
    named = 'label_replace(ALERTS{alertname=~"Compilewatch.*"}, "alert", "$1", "alertname", '
    named += '"Compilewatch(.*)")'
    by = "alert, alertstate, severity, source, target"
    return panels.table(
        "Alerts",
        "Prometheus alerts about compilewatch, including pending ones.",
        {
            "Alerts": q.or_say(
                f"count by ({by}) ({named})",
                "group(compilewatch:last_success_timestamp_seconds)",
                alert="none",
            )
        },
        labels=("alert", "alertstate", "severity", "source", "target"),
        hidden=("Value", *hidden),
        looks={"alert": {"custom.minWidth": 132}, "alertstate": {"custom.width": 82}},
    )


def headline() -> list[Json]:
    """The share without graph breaks with its numbers, and the age of the data."""
    share: Json = {
        "unit": "percentunit",
        "max": 1,
        "decimals": 1,
        "steps": panels.GOOD,
        "color": {"mode": "thresholds"},
        "mappings": [panels.NEARLY_ALL],
        "links": [TO_TARGET],
    }
    age = (
        f"max by (target, mode) ((time() - ({q.last_success()})) "
        "* on (source, target) group_right () "
        f"group by (source, target, mode) ({q.of_mode('compilewatch_results')}))"
    )
    return frame.line(
        7,
        panels.bars(
            "Models without graph breaks",
            "Passes divided by verdicts (pass, graph break, mismatch, compiler error), by "
            "target and mode, worst first. Green from 95 %, orange from 75 %, red below.",
            q.now(q.models_without_breaks(), "{{target}} {{mode}}: {{part}} of {{whole}}"),
            **share,
        ),
        panels.bars(
            "Weighted by downloads",
            "The same share, weighted by downloads in 30 days: what users experience. Over models "
            "that pass, break, mismatch or fail; millions of downloads.",
            q.now(q.downloads_without_breaks(), "{{target}} {{mode}}: {{part}} of {{whole}} M"),
            **share,
        ),
        panels.bars(
            "Last complete run",
            "Time since the newest complete run of each target and mode, the oldest first. Red "
            "after 26 hours: a day, and two hours for the run itself.",
            q.now(f"sort_desc({age})", "{{target}} {{mode}}"),
            unit="dtdurations",
            decimals=0,
            steps=[(None, "green"), (q.STALE_SECONDS, "red")],
            color={"mode": "thresholds"},
            links=[frame.from_series(frame.HEALTH, "Health of the monitor", "target")],
        ),
        widths=(9, 9, 6),
    )


def costs() -> list[Json]:
    """The reasons and families with the most affected models."""

    ran = f"group({q.of_mode('compilewatch_verdicts')})"
    known = f"count(count by (model) ({q.of_group('compilewatch_model_info')}))"
    all_downloads = f"sum(max by (model) ({q.of_group('compilewatch_model_downloads')}))"

    def reasons(what: str, about: str, whole: str, scale: str = "", **look: str) -> Json:
        # A model that breaks on three targets is one model: the largest group of a source counts.
        metric = q.of_mode(f"compilewatch_reason_{what}")
        most = f"topk(7, sum by (reason) (max by (source, reason) ({metric})))"
        return panels.bars(
            f"Reasons, by {what}",
            f"The seven reasons of graph breaks that {about}. A model counts once, in the target "
            "and mode where the reason affects most models. A full bar is all models.",
            q.now(
                f"sort_desc({q.or_say(most, ran, reason='no graph breaks')}){scale}", "{{reason}}"
            ),
            whole=q.now(whole + scale),
            above=True,
            color=panels.fixed(panels.ORANGE),
            links=frame.series("reason"),
            **look,
        )

    stopped = f"count by (family) (count by (family, model) ({FAILING}))"
    downloads = q.of_group("compilewatch_model_downloads", CHOSEN)
    used = f"sum by (family) (max by (family, model) ({downloads}) and on (model) {FAILING})"
    most = f"topk(7, {stopped} + ({used} / 1e12 or 0 * {stopped}))"
    return frame.line(
        10,
        reasons("models", "affect most models", known),
        reasons("downloads", "affect the most downloads", all_downloads, " / 1e6", unit=q.MILLIONS),
        panels.bars(
            "Families, by models",
            "The families with most models that do not pass on some target, the most downloaded "
            "first among equals.",
            q.now(f"sort_desc({q.or_say(most, ran, family='all pass')})", "{{family}}"),
            whole=q.now(known),
            above=True,
            decimals=0,
            links=frame.series("family"),
        ),
        widths=(9, 9, 6),
    )


def share_over_time() -> Json:
    """The first number of the headline, over time."""
    return panels.trend(
        "Share without graph breaks",
        "Passes divided by verdicts, by target and mode. Lines that coincide have different "
        "widths. Dashed marks: new versions.",
        q.ever(q.share_of_models(), "{{target}} {{mode}}"),
        unit="percentunit",
        min=None,
        max=1,
        links=[TO_TARGET],
    )


def models() -> Json:
    """The model × target matrix, models that do not pass first."""
    by = "model, target, mode"
    state = panels.codes(by, CHOSEN)
    known = f"max by (model) ({q.of_group('compilewatch_model_info', CHOSEN)})"
    ordered = f"{state} + on (model) group_left () ({DOWNLOADS} / 1e12 or 0 * {known})"
    return panels.matrix(
        "Models by target",
        "The result of each model on each target: models that do not pass first, the most "
        "downloaded first among equals.",
        f'sort_desc(label_join({ordered}, "column", " ", "target", "mode"))',
        row="model",
        column="column",
        mappings=panels.BY_CODE,
        link=frame.to_dashboard(frame.MODEL, "This model", "model"),
    )


def failing() -> Json:
    """History of the models that do not pass."""
    shown = 'model=~"$failing"'
    status, downloads = "compilewatch_model_status", "compilewatch_model_downloads"
    used = q.at_end(
        f"max by (model) ({q.of_group(downloads, shown)}) "
        f"or 0 * max by (model) ({q.of_mode(status, shown)})"
    )
    # The label `above` has a fixed number of digits, and series come in the order of their labels.
    rank = f'count_values by (model) ("above", 1e12 - ({used}))'
    history = f"{panels.codes('model', shown, forecasts=False)} * on (model) group_right () {rank}"
    passes, fails = (q.of_mode("compilewatch_results", status) for status in (q.PASSED, q.FAILED))
    # 1 is the state of a pass.
    all_pass = f"(group({passes}) unless on () (sum({fails}) > 0)) + 1"
    return panels.timeline(
        "Models that do not pass, most downloaded first",
        "The worst result over the chosen targets and modes for each of the 20 most downloaded "
        "models that do not pass now.",
        q.ever(q.or_say(history, all_pass, model="all models pass"), "{{model}}"),
        links=frame.series("model"),
    )


def changed_families() -> Json:
    """The number of changed results, from metrics."""
    changes = f"sum by (family, kind) ({q.of_mode('compilewatch_family_changes', CHOSEN)})"
    compared = f"group({q.of_mode('compilewatch_changes')})"
    return panels.table(
        "Changed families",
        "Results that differ from those of the run before, by family and kind.",
        {"results": q.or_say(changes, compared, family="none changed")},
        labels=("family", "kind"),
        sort="results",
        looks={
            "family": frame.cell("family"),
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
        + q.model_log('event=~"regression|change"')
        + f" | {CHOSEN} | label_format what=`{what}`, where=`{{{{.target}}}} {{{{.mode}}}}`"
        + ", at=`{{__timestamp__ | unixEpoch}}` | unwrap at [$__range]))"
    )
    ended = q.log('event="run_finished"') + " | baseline!=``"
    evidence = f"sum(count_over_time({ended} [$__range]))"
    return panels.table(
        "Changed results",
        "From the log, in the time shown: each result that differs from that of the run before, "
        "and torch's words.",
        {
            "when": q.logged(
                f"1000 * ({q.or_say(changes, evidence, model='none changed')})", "instant"
            )
        },
        labels=labels,
        sort="when",
        looks={
            "when": panels.WHEN,
            "model": {**frame.cell("model"), "custom.width": 240},
            "where": {"custom.width": 120},
            "what": {"custom.width": 90},
            "before": {"custom.width": 130, **panels.STATE_CELL},
            "after": {"custom.width": 130, **panels.STATE_CELL},
            "detail": {"custom.minWidth": 300},
        },
    )


def overview() -> Json:
    return frame.dashboard(
        frame.OVERVIEW,
        "What is worse than it was, and alerts; the share of models without graph breaks, by "
        "models and by downloads; the most important reasons, families and models.",
        [
            news(),
            headline(),
            frame.line(12, failing(), share_over_time(), widths=(14, 10)),
            costs(),
            frame.line(18, models()),
            frame.line(9, changed_families(), changed_models(), widths=(6, 18)),
            gate(),
            frame.line(6, new_breaks()),
        ],
        variables=[
            *frame.shared(),
            frame.family(),
            frame.variable(
                "failing",
                "The models of the timeline.",
                f"query_result({WORST})",
                regex='/model="([^"]+)"/',
                hide=True,
            ),
            gate_run(),
        ],
    )


def public() -> Json:
    page = frame.dashboard(
        frame.PUBLIC,
        "PyTorch compile compatibility of all monitored models: state, trend and reasons.",
        [
            headline(),
            costs(),
            frame.line(9, share_over_time()),
            frame.line(18, models()),
        ],
        since="now-30d",
    )
    # Every selector names the job first, so that what was chosen can be left out.
    text = re.sub(r', \w+=~\\"\$\w+\\"', "", json.dumps(page | {"links": [], "annotations": {}}))
    # The ids that stack/grafana provisions.
    text = re.sub(r"\$\{(\w+)_datasource\}", r"\1", text)
    without: Json = json.loads(re.sub(r'"links": \[\{.*?\}\]', '"links": []', text))
    for panel in without["panels"]:
        for column in panel["fieldConfig"]["overrides"]:
            column["properties"] = [one for one in column["properties"] if one["id"] != "links"]
    return without
