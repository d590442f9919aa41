"""The table of every metric, and docs/metrics.md made from it."""

from __future__ import annotations

from typing import NamedTuple

from compilewatch.analysis.rows import Layer
from compilewatch.records import ChangeKind, Phase, Status
from compilewatch.worker.neuron.error_classes import KINDS


class Definition(NamedTuple):
    """One metric: what `# HELP` and docs/metrics.md say, and the labels in order."""

    name: str
    help: str
    labels: tuple[str, ...]


ASKED = ("model", "family", "target", "mode")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compile_breaks_total",
        "Graph breaks of the latest run by reason; nothing for a model without breaks.",
        ("model", "family", "commit", "reason", "target", "mode"),
    ),
    Definition(
        "compilewatch_model_status",
        "1 for the status that the latest run gave, with the phase it was reached in.",
        (*ASKED, "status", "phase"),
    ),
    Definition(
        "compilewatch_model_info",
        "1, with what identifies the model; commit is its Hub revision, empty where it has none.",
        ("model", "family", "commit", "source", "architecture", "task"),
    ),
    Definition(
        "compilewatch_model_downloads",
        "Downloads over 30 days that the source reported; nothing where unknown.",
        ("model", "family"),
    ),
    Definition(
        "compilewatch_model_parameters", "Parameters of the model as built.", ("model", "family")
    ),
    Definition(
        "compilewatch_fullgraph_accepted",
        "1 where torch.compile(fullgraph=True) accepts the model, 0 where it does not.",
        ASKED,
    ),
    Definition("compilewatch_graphs", "Graphs captured from one forward call.", ASKED),
    Definition(
        "compilewatch_graph_breaks", "Graph breaks hit, all occurrences; 0 where none.", ASKED
    ),
    Definition(
        "compilewatch_distinct_graph_breaks", "Distinct graph breaks: a cause at a place.", ASKED
    ),
    Definition(
        "compilewatch_unattributed_graph_breaks", "Graph breaks that have no reason.", ASKED
    ),
    Definition("compilewatch_ops", "Operations in all captured graphs.", ASKED),
    Definition("compilewatch_guards", "Guards of all captured graphs.", ASKED),
    Definition(
        "compilewatch_phase_duration_seconds",
        "Wall-clock time of a phase; of the run that measured it, where the answer is reused.",
        (*ASKED, "phase"),
    ),
    Definition(
        "compilewatch_peak_memory_bytes", "Peak resident memory of the model's process.", ASKED
    ),
    Definition(
        "compilewatch_compiler_duration_seconds",
        "Time to compile with empty (cold) or filled (warm) caches; one run included in inductor.",
        (*ASKED, "cache"),
    ),
    Definition(
        "compilewatch_speedup_ratio", "Eager latency divided by that of compiled code.", ASKED
    ),
    Definition(
        "compilewatch_recompiles", "Graphs compiled anew for inputs with a larger batch.", ASKED
    ),
    Definition(
        "compilewatch_fallbacks",
        "Calls of operators that ran outside XLA; 0 where there were none.",
        ASKED,
    ),
    Definition("compilewatch_hlo_instructions", "Instructions of the captured HLO module.", ASKED),
    Definition(
        "compilewatch_expected_to_fail_on_neuron",
        "Operators of the captured graph that neuronx-cc is documented to reject; no verdict.",
        ASKED,
    ),
    Definition("compilewatch_neff_bytes", "Size of the executable for a NeuronCore.", ASKED),
    Definition(
        "compilewatch_neuron_failure",
        "1 for the class of error for which neuronx-cc gave no executable.",
        (*ASKED, "error_class"),
    ),
    Definition(
        "compilewatch_first_failing_layer",
        "Models by the first layer that fails; 0 for one that was asked and is never it.",
        ("layer", "mode", "environment"),
    ),
    Definition(
        "compilewatch_results",
        "Results by status; skipped and unsupported are not passed.",
        ("family", "target", "mode", "status"),
    ),
    Definition(
        "compilewatch_changes",
        "Differences from the baseline; nothing at all where no baseline was compared.",
        ("family", "target", "mode", "kind"),
    ),
    Definition(
        "compilewatch_planned_requests", "Models times targets that the run was to answer.", ()
    ),
    Definition(
        "compilewatch_coverage_ratio",
        "Verdicts (pass, graph break, mismatch, compile error) of all asked; skipped left out.",
        (),
    ),
    Definition(
        "compilewatch_untestable_ratio",
        "Results without a verdict, skipped ones included, of all results.",
        (),
    ),
    Definition(
        "compilewatch_reused_ratio", "Results answered from an earlier run, of all results.", ()
    ),
    Definition(
        "compilewatch_overhead_ratio",
        "Wall-clock time times jobs, divided by the time inside models' processes.",
        (),
    ),
    Definition(
        "compilewatch_run_info",
        "1, with what ran; one series per environment.",
        (
            "run",
            "source",
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
    Definition("compilewatch_run_duration_seconds", "Wall-clock time of the run.", ()),
    Definition("compilewatch_last_start_timestamp_seconds", "When the latest run began.", ()),
    Definition(
        "compilewatch_last_completion_timestamp_seconds",
        "When the latest run ended, completely or not.",
        (),
    ),
    Definition(
        "compilewatch_last_success_timestamp_seconds",
        "When the latest run ended, if it answered its whole plan; nothing otherwise.",
        (),
    ),
)


def metrics_page() -> str:
    """docs/metrics.md, from `DEFINITIONS` and `LABELS`."""
    lines = [
        "# Metrics",
        "",
        "Every run writes `metrics.prom` in the Prometheus text format. A value describes the",
        "run it stands in; nothing accumulates from run to run. A number that was not measured",
        "is not there, which is not zero.",
        "",
        "`compile_breaks_total` has the type counter because of its name, and starts again with",
        "every run: `sum by (model, commit, reason) (compile_breaks_total)` is right, `rate()`",
        "is not. All others are gauges.",
        "",
        "| Metric | Labels | Meaning |",
        "|---|---|---|",
    ]
    for definition in DEFINITIONS:
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        lines.append(f"| `{definition.name}` | {labels} | {definition.help} |")
    lines += ["", "## Labels", "", "| Label | Values |", "|---|---|"]
    lines += [f"| `{label}` | {meaning} |" for label, meaning in LABELS.items()]
    return "\n".join(lines) + "\n"


LABELS: dict[str, str] = {
    "model": "`org/model` or a class name, as in the plan",
    "family": "the model family: Transformers' `model_type`",
    "commit": "the model's revision on the Hub, empty for a model without one",
    "reason": "registry id and type (`GB0170 Data-dependent branching`) or a short code",
    "target": "`dynamo`; with `:backend` where one was asked for, `@environment` where it is "
    "not the target's home",
    "mode": "`eval` or `train`, with `/dynamic` for dynamic shapes",
    "status": ", ".join(f"`{status}`" for status in Status),
    "phase": ", ".join(f"`{phase}`" for phase in Phase),
    "kind": ", ".join(f"`{kind}`" for kind in ChangeKind),
    "cache": "`cold` or `warm`",
    "error_class": "the class of a compiler's error: "
    + ", ".join(f"`{kind}`" for kind in sorted(KINDS)),
    "layer": ", ".join(f"`{layer}`" for layer in Layer),
    "environment": "the environment's name; of first failing layers empty where each target was "
    "asked in its home",
}
