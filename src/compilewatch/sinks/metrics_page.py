"""docs/metrics.md, made from the table of metric definitions and the meanings of their labels."""

from __future__ import annotations

from compilewatch import extras, plugins
from compilewatch.analysis.rows import LAYERS
from compilewatch.neuron.error_classes import KINDS
from compilewatch.records import ChangeKind, Part, Phase, Quantization, Status
from compilewatch.sinks.prometheus import all_definitions

LABELS: dict[str, str] = {
    "source": "where the models came from: `library`, `hub`, `manifest`",
    "model": "`org/model` or a class name, as in the plan",
    "family": "the model family: Transformers' `model_type`",
    "commit": "the model's revision on the Hub, empty for a model without one",
    "part": "the part of a Hub repository: "
    + ", ".join(f"`{part}`" for part in Part)
    + "; empty for a model of another source",
    "quantization": "how the checkpoint is quantised: "
    + ", ".join(f"`{kind}`" for kind in Quantization)
    + "; empty if it is not. Without its weights, the class is evaluated unquantised",
    "covered": "`yes` (a verdict on every evaluated part) or `no`",
    "reason": "the break's ID and type in PyTorch's registry (`GB0170 Data-dependent branching`), "
    "or a short code",
    "target": "a target such as `dynamo`; followed by `:backend` if a backend was selected, and by "
    "`@environment` if it is not the target's default environment",
    "mode": "`eval` or `train`, with `/dynamic` for dynamic shapes",
    "status": ", ".join(f"`{status}`" for status in Status),
    "phase": ", ".join(f"`{phase}`" for phase in Phase),
    "sink": "`pushgateway`, `loki`, `s3`",
    "selection": "which models the run selects, with a digest: `default`, `top 100`, `2 by name`",
    "kind": ", ".join(f"`{kind}`" for kind in ChangeKind),
    "cache": "`cold` or `warm`",
    "where": "`captured` (inside a graph) or `eager`",
    "error_class": "the class of a compiler error: "
    + ", ".join(f"`{kind}`" for kind in sorted(KINDS)),
    "layer": ", ".join(f"`{layer}`" for layer in LAYERS),
    "environment": "the name of the environment; in `compilewatch_first_failing_layer`, empty if "
    "each target ran in its default environment",
}


def all_labels() -> dict[str, str]:
    """Return the labels of the core's metrics and of those of the extras, with their values."""
    labels = dict(LABELS)
    for reference in extras.providers("metric_labels"):
        labels |= plugins.load(reference)
    return labels


def metrics_page() -> str:
    """Return docs/metrics.md, made from the definitions and `LABELS`."""
    lines = [
        "# Metrics",
        "",
        "Every run writes `metrics.prom` in the Prometheus text format and pushes the same metrics",
        "to a Pushgateway if `pushgateway.url` is set. A value describes the run that it belongs",
        "to; nothing accumulates from run to run. A number that was not measured is absent, not",
        "zero.",
        "",
        "A push replaces all metrics of a group, so that models and targets that are no longer",
        "evaluated disappear. There is one group for each source and target (`target`) and one for",
        "each source (`run`: metrics about all targets of its latest run), both with the job",
        "`compilewatch`. One more group has the job `compilewatch_publisher` (`publisher`: the",
        "state of publication itself; not in the file), and two have the job `compilewatch_papers`",
        "(`papers`: what became of the stored papers, by the origin of the code).",
        "",
        "`compile_breaks_total` has the type counter because of its name, but starts again with",
        "every run: query it with `sum by (model, commit, reason) (compile_breaks_total)`, not",
        "with `rate()`. All other metrics are gauges.",
        "",
        "| Metric | Group | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    for definition in all_definitions():
        labels = ", ".join(f"`{label}`" for label in definition.labels)
        lines.append(
            f"| `{definition.name}` | {definition.group.name} | {labels} | {definition.help} |"
        )
    lines += ["", "## Labels", "", "| Label | Values |", "|---|---|"]
    lines += [f"| `{label}` | {meaning} |" for label, meaning in all_labels().items()]
    return "\n".join(lines) + "\n"
