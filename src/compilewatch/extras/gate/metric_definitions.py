"""The metrics of the gate, and the values of their labels, for docs/metrics.md."""

from __future__ import annotations

from compilewatch.sinks.metric_definitions import RUN, Definition

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_gate_breaks",
        "Places of graph breaks that a run of a team's list met, by what its baseline says of "
        "them; absent for a repository without settings of the gate.",
        ("baseline_state",),
        RUN,
    ),
    Definition(
        "compilewatch_gate_baseline_timestamp_seconds",
        "When the baseline was last committed; absent without one.",
        (),
        RUN,
    ),
)

LABELS: dict[str, str] = {
    "baseline_state": "`new`, `known` and `resolved` in own code, `third_party` in other packages",
}
