"""Papers: the funnel from found to executed, failures, cost, and verdicts of generated models."""

from __future__ import annotations

from dashboards.frame import PAPERS, dashboard, data_source, variable
from dashboards.panels import Json, bars, ever, now, tiles, trend
from dashboards.queries import of_papers

STAGES = of_papers("compilewatch_paper_stages")
NOT_PASSED = of_papers("compilewatch_paper_stages", 'outcome!="passed"')
PASSED = of_papers("compilewatch_paper_stages", 'outcome="passed"')


def papers() -> Json:
    usd = of_papers("compilewatch_paper_usd")
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
                    ever(f"sum by (state) ({of_papers('compilewatch_papers')})", "{{state}}"),
                ),
                tiles(
                    "Cost",
                    "US dollars for all requests to the language model, by the reviewed prices.",
                    (6, 5),
                    ever(f"sum ({usd})"),
                    empty="unknown",
                ),
                tiles(
                    "Cost per success",
                    "US dollars divided by the papers that passed every stage.",
                    (6, 5),
                    ever(f"max ({per_success})"),
                    empty="no success, or unknown",
                ),
            ],
            [
                bars(
                    "Funnel",
                    "Papers that passed each stage, in the order of the stages.",
                    (12, 11),
                    now(f"sort_desc(sum by (stage) ({PASSED}))", "{{stage}}"),
                ),
                bars(
                    "Failures by class",
                    "Papers with a finding of each class. Wrong in eager mode, unfaithful and what "
                    "a compiler cannot do are different things.",
                    (12, 11),
                    now(
                        f"sort_desc(sum by (finding) ({of_papers('compilewatch_paper_findings')}))",
                        "{{finding}}",
                    ),
                    empty="none, or not run",
                ),
            ],
            [
                trend(
                    "Verdicts of generated models",
                    "Generated models by compile target and status.",
                    (12, 9),
                    ever(
                        f"sum by (target, status) ({of_papers('compilewatch_paper_verdicts')})",
                        "{{target}} {{status}}",
                    ),
                    drawn="bars",
                ),
                trend(
                    "Stages that were not passed",
                    "Papers by stage, failed or not run.",
                    (12, 9),
                    ever(
                        f"sum by (stage, outcome) ({NOT_PASSED})",
                        "{{stage}} {{outcome}}",
                    ),
                    drawn="bars",
                    empty="none, or not run",
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
