"""The metrics of papers, and the values of their labels, for the page docs/metrics.md."""

from __future__ import annotations

from compilewatch.extras.papers.records import FindingClass, PipelineStage, StageOutcome
from compilewatch.sinks.metric_definitions import Definition, MetricGroup

PAPERS = MetricGroup("papers", ("replies",))

DEFINITIONS: tuple[Definition, ...] = (
    Definition(
        "compilewatch_paper_stages",
        "Stored papers by stage of the pipeline and outcome of the stage.",
        ("stage", "outcome"),
        PAPERS,
    ),
    Definition(
        "compilewatch_papers",
        "Stored papers: passed every stage, failed one, or incomplete (a stage was not run).",
        ("state",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_info",
        "Always 1; the labels say what became of a paper: its state, and the first stage that it "
        "did not pass. Of the 100 papers that were worked on last.",
        ("paper", "title", "state", "stage"),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_findings",
        "Stored papers with a finding of this class in the last version of their code.",
        ("finding",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_verdicts",
        "Generated models by compile target and status.",
        ("target", "status"),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_repairs",
        "Stored papers by the number of repairs of their code.",
        ("repairs",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_requests",
        "Requests to the language model for all stored papers.",
        (),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_tokens",
        "Tokens of these requests.",
        ("direction",),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_usd",
        "US dollars that these requests cost, by the reviewed prices; absent if one is unknown.",
        (),
        PAPERS,
    ),
    Definition(
        "compilewatch_paper_success_usd",
        "US dollars divided by the papers that passed every stage; absent if none did.",
        (),
        PAPERS,
    ),
)

LABELS: dict[str, str] = {
    "replies": "where the code of papers comes from: `model`, or `scripted` (prepared replies)",
    "stage": "a stage of the papers pipeline: "
    + ", ".join(f"`{stage}`" for stage in PipelineStage),
    "outcome": ", ".join(f"`{outcome}`" for outcome in StageOutcome),
    "state": "`passed`, `failed`, `incomplete`",
    "finding": ", ".join(f"`{kind}`" for kind in FindingClass),
    "repairs": "`0` to `3`",
    "paper": "the paper's id: a number of arXiv or a file's name",
    "title": "the title of the paper, cut after 120 characters",
    "direction": "`input` or `output`",
}
