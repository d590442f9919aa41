"""The table of every metric, and docs/metrics.md made from it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from compilewatch.analysis.rows import Layer
from compilewatch.neuron.error_classes import KINDS
from compilewatch.records import ChangeKind, Phase, Status


class Group(StrEnum):
    """What a metric is about, hence the Pushgateway group it is replaced with."""

    TARGET = "target"
    RUN = "run"
    PUBLISHER = "publisher"


GROUP_LABELS: dict[Group, tuple[str, ...]] = {
    Group.TARGET: ("source", "target"),
    Group.RUN: ("source",),
    Group.PUBLISHER: (),
}
"""The grouping key of each; its labels come first in every sample."""


class Definition(NamedTuple):
    """One metric: what `# HELP` and docs/metrics.md say, its own labels in order, its group."""

    name: str
    help: str
    own_labels: tuple[str, ...] = ()
    group: Group = Group.TARGET

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of a sample, those of the group first."""
        return (*GROUP_LABELS[self.group], *self.own_labels)


MODEL = ("model", "family", "mode")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compile_breaks_total",
        "Graph breaks of the latest run by reason; nothing for a model without breaks.",
        ("model", "family", "commit", "reason", "mode"),
    ),
    Definition(
        "compilewatch_model_status",
        "1 for the status that the latest run gave, with the phase it was reached in.",
        (*MODEL, "status", "phase"),
    ),
    Definition(
        "compilewatch_model_info",
        "1, with what identifies the model; commit is its Hub revision, empty where it has none.",
        ("model", "family", "commit", "architecture", "task"),
    ),
    Definition(
        "compilewatch_model_downloads",
        "Downloads over 30 days that the source reported; nothing where unknown.",
        ("model", "family"),
    ),
    Definition(
        "compilewatch_fullgraph_accepted",
        "1 where torch.compile(fullgraph=True) accepts the model, 0 where it does not.",
        MODEL,
    ),
    Definition(
        "compilewatch_graphs",
        "Graphs captured from one forward call; nothing for export and neuron, which take one.",
        MODEL,
    ),
    Definition(
        "compilewatch_ops", "Operations in all captured graphs; of xla, HLO instructions.", MODEL
    ),
    Definition("compilewatch_guards", "Guards of all captured graphs.", MODEL),
    Definition(
        "compilewatch_compile_duration_seconds",
        "Time to compile with empty (cold) or filled (warm) caches; of the run that measured it, "
        "where the answer is reused. In inductor one run of the model is included.",
        (*MODEL, "cache"),
    ),
    Definition(
        "compilewatch_peak_memory_bytes", "Peak resident memory of the model's process.", MODEL
    ),
    Definition(
        "compilewatch_speedup_ratio", "Eager latency divided by that of compiled code.", MODEL
    ),
    Definition(
        "compilewatch_recompiles", "Graphs compiled anew for inputs with a larger batch.", MODEL
    ),
    Definition(
        "compilewatch_fallbacks",
        "Calls of operators that ran outside XLA; 0 where there were none.",
        MODEL,
    ),
    Definition(
        "compilewatch_expected_to_fail_on_neuron",
        "Operators of the captured graph that neuronx-cc is documented to reject; no verdict.",
        MODEL,
    ),
    Definition("compilewatch_neff_bytes", "Size of the executable for a NeuronCore.", MODEL),
    Definition(
        "compilewatch_neuron_failure",
        "1 for the class of error for which neuronx-cc gave no executable.",
        (*MODEL, "error_class"),
    ),
    Definition(
        "compilewatch_family_results",
        "Results of a family by status; skipped and unsupported are not passed.",
        ("family", "mode", "status"),
    ),
    Definition(
        "compilewatch_family_changes",
        "Differences of a family from the baseline; nothing where there are none.",
        ("family", "mode", "kind"),
    ),
    Definition(
        "compilewatch_reason_models",
        "Models that break for a reason; one counts once for each of its reasons.",
        ("reason", "mode"),
    ),
    Definition(
        "compilewatch_reason_downloads",
        "Downloads over 30 days of the models that break for a reason; nothing where unknown.",
        ("reason", "mode"),
    ),
    Definition(
        "compilewatch_results",
        "Results by status; skipped and unsupported are not passed.",
        ("mode", "status"),
    ),
    Definition(
        "compilewatch_verdicts",
        "Results that are a verdict: pass, graph break, mismatch, compile error.",
        ("mode",),
    ),
    Definition(
        "compilewatch_downloads",
        "Downloads over 30 days of the models with a status; nothing where unknown.",
        ("mode", "status"),
    ),
    Definition(
        "compilewatch_changes",
        "Differences from the baseline; nothing at all where no baseline was compared.",
        ("mode", "kind"),
    ),
    Definition(
        "compilewatch_unattributed_graph_breaks", "Graph breaks that have no reason.", ("mode",)
    ),
    Definition(
        "compilewatch_phase_duration_seconds",
        "Wall-clock time of a phase over all models; of the runs that measured it.",
        ("mode", "phase"),
    ),
    Definition(
        "compilewatch_coverage_ratio",
        "Verdicts (pass, graph break, mismatch, compile error) of all planned requests.",
    ),
    Definition(
        "compilewatch_untestable_ratio",
        "Requests without a verdict (failed, skipped, missing) of all planned requests.",
    ),
    Definition(
        "compilewatch_reused_ratio", "Results answered from an earlier run, of all results."
    ),
    Definition(
        "compilewatch_run_info",
        "1, with what ran; one series per environment.",
        (
            "run",
            "state",
            "environment",
            "device",
            "python",
            "torch",
            "torch_git",
            "transformers",
            "harness_version",
        ),
    ),
    Definition("compilewatch_last_start_timestamp_seconds", "When the latest run began."),
    Definition(
        "compilewatch_last_completion_timestamp_seconds",
        "When the latest run ended, completely or not.",
    ),
    Definition(
        "compilewatch_last_success_timestamp_seconds",
        "When the latest run ended, if it answered its whole plan; nothing otherwise.",
    ),
    Definition(
        "compilewatch_first_failing_layer",
        "Models by the first layer that fails; 0 for one that was asked and is never it.",
        ("layer", "mode", "environment"),
        Group.RUN,
    ),
    Definition(
        "compilewatch_planned_requests",
        "Models times targets that the run was to answer.",
        group=Group.RUN,
    ),
    Definition(
        "compilewatch_overhead_ratio",
        "Wall-clock time times jobs, divided by the time inside models' processes.",
        group=Group.RUN,
    ),
    Definition("compilewatch_run_duration_seconds", "Wall-clock time of the run.", group=Group.RUN),
    Definition(
        "compilewatch_spooled_publications",
        "Runs that wait to be published because a sink was down or refused them.",
        ("sink",),
        Group.PUBLISHER,
    ),
    Definition(
        "compilewatch_failed_publications",
        "Runs that the last publish could not hand to a sink.",
        ("sink",),
        Group.PUBLISHER,
    ),
    Definition(
        "compilewatch_last_publication_timestamp_seconds",
        "When a sink last took a run; nothing for one that never did.",
        ("sink",),
        Group.PUBLISHER,
    ),
)


def metrics_page() -> str:
    """docs/metrics.md, from `DEFINITIONS` and `LABELS`."""
    lines = [
        "# Metrics",
        "",
        "Every run writes `metrics.prom` in the Prometheus text format, and is pushed to a",
        "Pushgateway where `pushgateway.url` is set. A value describes the run it stands in;",
        "nothing accumulates from run to run. A number that was not measured is not there,",
        "which is not zero.",
        "",
        "A push replaces whole groups, so that what is no longer asked disappears: one group for",
        "each source and target (`target`), one for each source (`run`: what concerns all targets",
        "of its latest run), both with the job `compilewatch`, and one of the job",
        "`compilewatch_publisher` (`publisher`: how publishing itself went; not in the file).",
        "",
        "`compile_breaks_total` has the type counter because of its name, and starts again with",
        "every run: `sum by (model, commit, reason) (compile_breaks_total)` is right, `rate()`",
        "is not. All others are gauges.",
        "",
        "| Metric | Group | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    for definition in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        lines.append(f"| `{definition.name}` | {definition.group} | {labels} | {definition.help} |")
    lines += ["", "## Labels", "", "| Label | Values |", "|---|---|"]
    lines += [f"| `{label}` | {meaning} |" for label, meaning in LABELS.items()]
    return "\n".join(lines) + "\n"


LABELS: dict[str, str] = {
    "source": "where the models came from: `library`, `hub`, `manifest`",
    "model": "`org/model` or a class name, as in the plan",
    "family": "the model family: Transformers' `model_type`",
    "commit": "the model's revision on the Hub, empty for a model without one",
    "reason": "registry id and type (`GB0170 Data-dependent branching`) or a short code",
    "target": "`dynamo`; with `:backend` where one was asked for, `@environment` where it is "
    "not the target's home",
    "mode": "`eval` or `train`, with `/dynamic` for dynamic shapes",
    "status": ", ".join(f"`{status}`" for status in Status),
    "phase": ", ".join(f"`{phase}`" for phase in Phase),
    "sink": "`pushgateway`, `loki`, `s3`",
    "kind": ", ".join(f"`{kind}`" for kind in ChangeKind),
    "cache": "`cold` or `warm`",
    "error_class": "the class of a compiler's error: "
    + ", ".join(f"`{kind}`" for kind in sorted(KINDS)),
    "layer": ", ".join(f"`{layer}`" for layer in Layer),
    "environment": "the environment's name; of first failing layers empty where each target was "
    "asked in its home",
}
