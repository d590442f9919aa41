"""The row of the Overview about the gate: a team's own list and the baseline of its repository."""

from __future__ import annotations

from dashboards.frame import variable
from dashboards.panels import override, thresholds, tiles
from dashboards.queries import log, of_run, or_say
from dashboards.sources import Json, logged, now
from dashboards.tables import table


def gate() -> list[Json]:
    """What a team's own list means for the baseline of its repository."""
    states = {"new": "new", "known": "known", "resolved": "resolved"}
    states["third_party"] = "in other packages"
    counted = {
        name: of_run("compilewatch_gate_breaks", f'baseline_state="{state}"')
        for state, name in states.items()
    }
    changed = of_run("compilewatch_gate_baseline_timestamp_seconds")
    return [
        tiles(
            "Gate",
            "Graph breaks of a team's own list, in its own code: those that the baseline of its "
            "repository does not hold, those that it holds, those that are resolved, and those in "
            "other packages. No data: no such list with settings of the gate was published.",
            (16, 4),
            *(now(f"sum({series})", name) for name, series in counted.items()),
            steps=[(None, "text")],
            overrides=[
                override("new", {"thresholds": thresholds([(None, "text"), (1, "red")])}),
            ],
        ),
        tiles(
            "Age of the baseline",
            "Time since the baseline of the gate was last committed. No data: there is none.",
            (8, 4),
            now(f"time() - max({changed})"),
            unit="dtdurations",
            # One unit alone would show eleven days as a week.
            decimals=1,
            steps=[(None, "text")],
        ),
    ]


def new_breaks(height: int) -> Json:
    """The new graph breaks that the gate counts, from the log, because metrics name no lines."""
    labels = ("place", "function", "reason", "models")
    run = "run=`$gate_run`"
    lines = log('event="gate_break"') + f" | {run}"
    breaks = f"max by ({', '.join(labels)}) (count_over_time({lines} [$__range]))"
    ended = log('event="run_finished"') + f" | {run}"
    evidence = f"sum(count_over_time({ended} [$__range]))"
    return table(
        "New graph breaks in own code",
        "From the log of the newest run that was judged, if the time shown includes it: what the "
        "baseline does not hold.",
        (24, height),
        {"lines": logged(or_say(breaks, evidence, place="none is new"), "instant")},
        labels=labels,
        hidden=("Value", "Value #A"),
        looks={"place": {"custom.minWidth": 250}, "reason": {"custom.minWidth": 300}},
    )


def gate_run() -> Json:
    """The newest run that the gate judged, as a hidden variable."""
    began = of_run("compilewatch_last_start_timestamp_seconds")
    runs = f"{began} * on (source, target) group_right () {of_run('compilewatch_run_info')}"
    judged = of_run("compilewatch_gate_breaks")
    return variable(
        "gate_run",
        "The newest run that the gate judged.",
        f"query_result(topk(1, {runs} and on (source) {judged}))",
        every=False,
        regex='/[{,]run="([^"]+)/',
        hide=True,
    )
