"""The table of all metrics, from which docs/metrics.md is generated."""

from __future__ import annotations

from typing import NamedTuple

from compilewatch import extras, plugins


class MetricGroup(NamedTuple):
    """What a metric describes: with which Pushgateway group it is replaced.

    `labels` are those of the group's grouping key, which come first in every sample.
    """

    name: str
    labels: tuple[str, ...]


TARGET = MetricGroup("target", ("source", "target"))
RUN = MetricGroup("run", ("source",))
PUBLISHER = MetricGroup("publisher", ())


class Definition(NamedTuple):
    """One metric.

    `help` is the text of `# HELP` and of docs/metrics.md. `own_labels` are the labels that the
    metric has besides those of its group, in the order in which they are written.
    """

    name: str
    help: str
    own_labels: tuple[str, ...] = ()
    group: MetricGroup = TARGET

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of a sample: those of the group, then the metric's own."""
        return (*self.group.labels, *self.own_labels)


MODEL = ("model", "family", "mode")

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compile_breaks_total",
        "Graph breaks of the latest run by reason; absent for a model without graph breaks.",
        ("model", "family", "commit", "reason", "mode"),
    ),
    Definition(
        "compilewatch_model_status",
        "1 for the status of the model in the latest run and the phase in which it ended.",
        (*MODEL, "status", "phase"),
    ),
    Definition(
        "compilewatch_model_info",
        "Always 1; the labels identify the model. commit is its Hub revision, empty if it has "
        "none.",
        ("model", "family", "commit", "architecture", "task", "part", "quantization"),
    ),
    Definition(
        "compilewatch_model_downloads",
        "Downloads over 30 days as reported by the source; absent if unknown. The components of a "
        "repository have its figure each.",
        ("model", "family"),
    ),
    Definition(
        "compilewatch_fullgraph_accepted",
        "1 if torch.compile(fullgraph=True) accepts the model, 0 if it does not.",
        MODEL,
    ),
    Definition(
        "compilewatch_captured_ratio",
        "Operators of one forward call that ran inside captured graphs, divided by all; only of "
        "models with graph breaks, absent where operators were not counted.",
        MODEL,
    ),
    Definition(
        "compilewatch_eager_operators",
        "Operators of one forward call that ran eagerly, outside of captured graphs; only of "
        "models with graph breaks.",
        MODEL,
    ),
    Definition(
        "compilewatch_graphs",
        "Graphs captured from one forward call; absent for a model without graph breaks, which is "
        "a single graph.",
        MODEL,
    ),
    Definition(
        "compilewatch_ops",
        "Operations in all captured graphs; for xla, the number of HLO instructions.",
        MODEL,
    ),
    Definition("compilewatch_guards", "Guards of all captured graphs.", MODEL),
    Definition(
        "compilewatch_compile_duration_seconds",
        "Time to compile with empty (cold) or filled (warm) caches. A reused result keeps the "
        "value that was measured when it was evaluated. For inductor, the time includes one run "
        "of the model.",
        (*MODEL, "cache"),
    ),
    Definition(
        "compilewatch_peak_memory_bytes",
        "Peak resident memory of the process that evaluated the model.",
        MODEL,
    ),
    Definition(
        "compilewatch_speedup_ratio",
        "Latency in eager mode divided by the latency of the compiled model.",
        MODEL,
    ),
    Definition(
        "compilewatch_recompiles", "Graphs recompiled for inputs with a larger batch.", MODEL
    ),
    Definition(
        "compilewatch_fallbacks", "Calls of operators that ran outside XLA; 0 if none did.", MODEL
    ),
    Definition(
        "compilewatch_expected_to_fail_on_neuron",
        "Operators of the captured graph that neuronx-cc is documented to reject. This is a "
        "prediction, not a verdict.",
        MODEL,
    ),
    Definition(
        "compilewatch_neff_bytes", "Size of the NEFF, the executable for a NeuronCore.", MODEL
    ),
    Definition(
        "compilewatch_neuron_failure",
        "1 for the class of the error because of which neuronx-cc produced no NEFF.",
        (*MODEL, "error_class"),
    ),
    Definition(
        "compilewatch_family_results",
        "Results of a family by status; skipped and unsupported do not count as passed.",
        ("family", "mode", "status"),
    ),
    Definition(
        "compilewatch_family_changes",
        "Differences of a family from the baseline; absent if there are none.",
        ("family", "mode", "kind"),
    ),
    Definition(
        "compilewatch_reason_models",
        "Models with a graph break for a reason; a model counts once for each of its reasons.",
        ("reason", "mode"),
    ),
    Definition(
        "compilewatch_reason_downloads",
        "Downloads over 30 days of the models with a graph break for a reason; absent if unknown.",
        ("reason", "mode"),
    ),
    Definition(
        "compilewatch_reason_fixed_models",
        "Models that have a graph break for this reason only: a fix of it leaves them without "
        "graph breaks.",
        ("reason", "mode"),
    ),
    Definition(
        "compilewatch_reason_fixed_downloads",
        "Downloads over 30 days of the models that have a graph break for this reason only; absent "
        "if unknown.",
        ("reason", "mode"),
    ),
    Definition(
        "compilewatch_results",
        "Results by status; skipped and unsupported do not count as passed.",
        ("mode", "status"),
    ),
    Definition(
        "compilewatch_verdicts",
        "Results that are a verdict: pass, graph break, mismatch or compile error.",
        ("mode",),
    ),
    Definition(
        "compilewatch_downloads",
        "Downloads over 30 days of the models with a status; absent if unknown.",
        ("mode", "status"),
    ),
    Definition(
        "compilewatch_changes",
        "Differences from the baseline; absent if the run was not compared with a baseline.",
        ("mode", "kind"),
    ),
    Definition(
        "compilewatch_regressed_models",
        "Models that are worse than in their last good state, over the last 20 runs; absent "
        "without an earlier run.",
        ("mode",),
    ),
    Definition(
        "compilewatch_regressed_since_timestamp_seconds",
        "When the first run started in which the model was worse than in its last good state; of "
        "the 20 most downloaded such models of a target.",
        (*MODEL, "status"),
    ),
    Definition(
        "compilewatch_operators",
        "Operators of one forward call of every model, by where they ran: in captured graphs or "
        "eagerly. Absent for targets that do not count them.",
        ("mode", "where"),
    ),
    Definition(
        "compilewatch_unattributed_graph_breaks",
        "Graph breaks for which PyTorch gives no reason.",
        ("mode",),
    ),
    Definition(
        "compilewatch_phase_duration_seconds",
        "Wall-clock time of a phase, summed over all models. Reused results count with the time "
        "that was measured when they were evaluated.",
        ("mode", "phase"),
    ),
    Definition(
        "compilewatch_coverage_ratio",
        "Verdicts (pass, graph break, mismatch, compile error) divided by planned requests.",
    ),
    Definition(
        "compilewatch_untestable_ratio",
        "Requests without a verdict (failed, skipped, missing) divided by planned requests.",
    ),
    Definition(
        "compilewatch_reused_ratio", "Results reused from an earlier run, divided by all results."
    ),
    Definition(
        "compilewatch_run_info",
        "Always 1; the labels describe the run and its software. One series per environment.",
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
    Definition("compilewatch_last_start_timestamp_seconds", "When the latest run started."),
    Definition(
        "compilewatch_last_completion_timestamp_seconds",
        "When the latest run ended, complete or not.",
    ),
    Definition(
        "compilewatch_last_success_timestamp_seconds",
        "When the latest run ended, if it is complete; absent otherwise.",
    ),
    Definition(
        "compilewatch_first_failing_layer",
        "Models by the first target (column of the matrix) that they fail on; 0 if a target was "
        "evaluated and is the first to fail for no model.",
        ("layer", "mode", "environment"),
        RUN,
    ),
    Definition(
        "compilewatch_planned_requests",
        "Requests in the plan of the run: models times targets. A run of another selection does "
        "not replace it without pushgateway.replace.",
        ("selection",),
        RUN,
    ),
    Definition(
        "compilewatch_repositories",
        "Repositories of the Hub in the run, by the part of them that is evaluated and whether "
        "every evaluated part has a verdict; part is empty where nothing can be built. Absent for "
        "a run without repositories.",
        ("part", "covered"),
        RUN,
    ),
    Definition(
        "compilewatch_overhead_ratio",
        "Wall-clock time times jobs, divided by the time spent inside children.",
        group=RUN,
    ),
    Definition("compilewatch_run_duration_seconds", "Wall-clock time of the run.", group=RUN),
    Definition(
        "compilewatch_spooled_publications",
        "Runs that wait to be published because a sink was unavailable or rejected them.",
        ("sink",),
        PUBLISHER,
    ),
    Definition(
        "compilewatch_failed_publications",
        "Runs that the last publication could not deliver to a sink.",
        ("sink",),
        PUBLISHER,
    ),
    Definition(
        "compilewatch_last_publication_timestamp_seconds",
        "When a sink last accepted a run; absent if it never did.",
        ("sink",),
        PUBLISHER,
    ),
)


def all_definitions() -> tuple[Definition, ...]:
    """Return the metrics of the core, then those of the extras of this installation."""
    return (*DEFINITIONS, *(d for ref in extras.providers("metrics") for d in plugins.load(ref)))
