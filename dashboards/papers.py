"""Papers: the funnel from found to executed, failures, cost, and verdicts of generated models."""

from __future__ import annotations

from compilewatch.extras.papers.records import PipelineStage
from dashboards.frame import PAPERS, dashboard, data_source, to_page, variable
from dashboards.panels import bars, fixed, stacks, tiles, trend
from dashboards.queries import of_papers, or_say
from dashboards.sources import Json, ever, now
from dashboards.states import GREEN, GREY, RED, value
from dashboards.tables import HIDDEN, coloured, table

STATE_OF_PAPER: Json = {
    "mappings": [
        value(
            {
                "passed": ("✓ passed", GREEN),
                "failed": ("✗ failed", RED),
                "incomplete": ("○ incomplete", GREY),
            }
        )
    ],
    **coloured("color-background"),
}
"""The look of a column of states."""


def _passed(stage: PipelineStage) -> Json:
    """Papers that passed a stage; 0 where it was reached and none did."""
    this = f'stage="{stage}"'
    every, passed = (
        f"sum by (stage) ({of_papers('compilewatch_paper_stages', this, *outcome)})"
        for outcome in ((), ('outcome="passed"',))
    )
    return now(f"{passed} or 0 * {every}", "{{stage}}")


def papers() -> Json:
    usd = of_papers("compilewatch_paper_usd")
    classes = f"sum by (finding) ({of_papers('compilewatch_paper_findings')})"
    stored = f"(sum ({of_papers('compilewatch_papers')}) > 0)"
    every = of_papers("compilewatch_paper_info")
    info = f'label_replace({every}, "link", "#", "", "")'
    linked = (
        f'label_replace({info}, "link", "https://arxiv.org/abs/$1", '
        '"paper", "([0-9]{4}[.][0-9]{4,5}(v[0-9]+)?)")'
    )
    per_success = of_papers("compilewatch_paper_success_usd")
    return dashboard(
        PAPERS,
        "Research papers: what became of them, why code failed, and what it cost.",
        [
            [
                tiles(
                    "Papers",
                    "Stored papers: passed every stage, failed one, or incomplete.",
                    (12, 5),
                    now(f"sum by (state) ({of_papers('compilewatch_papers')})", "{{state}}"),
                ),
                tiles(
                    "Cost",
                    "US dollars for all requests to the language model, by the reviewed prices.",
                    (6, 5),
                    now(f"sum ({usd})"),
                    unit="currencyUSD",
                ),
                tiles(
                    "Cost per success",
                    "US dollars divided by the papers that passed every stage.",
                    (6, 5),
                    now(f"max ({per_success})"),
                    unit="currencyUSD",
                ),
            ],
            [
                bars(
                    "Funnel",
                    "Papers that passed each stage, in the order of the stages; a full bar is all "
                    "papers.",
                    (12, 11),
                    *map(_passed, PipelineStage),
                    whole=now(f"sum ({of_papers('compilewatch_papers')})"),
                    color=fixed(GREEN),
                    decimals=0,
                ),
                bars(
                    "Failures by class",
                    "Papers with a finding of each class. Wrong in eager mode, unfaithful and what "
                    "a compiler cannot do are different things.",
                    (12, 11),
                    now(f"sort_desc({or_say(classes, stored, finding='none')})", "{{finding}}"),
                    decimals=0,
                ),
            ],
            [
                stacks(
                    "Verdicts of generated models",
                    "Generated models by compile target and status.",
                    (8, 9),
                    f"sum by (target, status) ({of_papers('compilewatch_paper_verdicts')})",
                    row="target",
                    column="status",
                ),
                table(
                    "The papers",
                    "The papers that were worked on last, and the first stage that each did not "
                    "pass. "
                    "Papers of arXiv link to it; `make papers` prints the address of the report.",
                    (16, 9),
                    {"papers": f"max by (paper, title, state, stage, link) ({linked})"},
                    labels=("paper", "title", "state", "stage", "link"),
                    hidden=("Value",),
                    looks={
                        "paper": {
                            "custom.width": 170,
                            "links": [to_page("At arXiv", "${__data.fields.link:raw}")],
                        },
                        "title": {"custom.minWidth": 220},
                        "state": {"custom.width": 100, **STATE_OF_PAPER},
                        "stage": {"custom.width": 100},
                        "link": HIDDEN,
                    },
                ),
            ],
            [
                trend(
                    "Tokens",
                    "Tokens of all requests, by direction.",
                    (8, 8),
                    ever(
                        f"sum by (direction) ({of_papers('compilewatch_paper_tokens')})",
                        "{{direction}}",
                    ),
                ),
                trend(
                    "Requests",
                    "Requests to the language model.",
                    (8, 8),
                    ever(
                        f"sum by (replies) ({of_papers('compilewatch_paper_requests')})",
                        "{{replies}}",
                    ),
                ),
                trend(
                    "Repairs needed",
                    "Papers by the number of repairs of their code.",
                    (8, 8),
                    ever(
                        f"sum by (repairs) ({of_papers('compilewatch_paper_repairs')})",
                        "{{repairs}} repairs",
                    ),
                    drawn="bars",
                ),
            ],
        ],
        variables=[
            data_source("prometheus"),
            variable(
                "replies",
                "Where the code comes from: a model, or prepared replies.",
                'label_values(compilewatch_papers{job="compilewatch_papers"}, replies)',
            ),
        ],
    )
