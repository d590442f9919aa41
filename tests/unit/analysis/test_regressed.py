from __future__ import annotations

import pytest

from compilewatch.analysis.comparison import is_comparable, regressed
from compilewatch.records import Change, ChangeKind, Earlier, Phase, Result, RunView, Status, Target
from tests import factories

BROKEN = factories.result("A", breaks=(factories.graph_break(),), downloads=5)
RUNS = [f"2026010{day}-030405-0001" for day in range(1, 5)]


def since(view: RunView) -> dict[str, str]:
    return {one.result.request.model.name: one.since for one in regressed(view)}


def after(*statuses: Status, result: Result = BROKEN, **fields: object) -> RunView:
    """A view of one result with these statuses in earlier runs, oldest first."""
    points = tuple(
        Earlier(run, status, Phase.SETUP if status is Status.TIMEOUT else Phase.COMPILE)
        for run, status in zip(RUNS, statuses, strict=False)
    )
    return factories.view(result, history={(result.request.model.name, "dynamo"): points}, **fields)


PASS, BREAK, TIMEOUT = Status.PASS, Status.GRAPH_BREAK, Status.TIMEOUT
LOST = factories.result("A", TIMEOUT)
ACCEPTED = factories.result("A", breaks=(factories.graph_break(),), expectation="known")


@pytest.mark.parametrize(
    ("result", "earlier", "run"),
    [
        (BROKEN, [PASS], factories.run().id),
        (BROKEN, [PASS, BREAK], RUNS[1]),
        (BROKEN, [PASS, BREAK, BREAK], RUNS[1]),
        (BROKEN, [BREAK, Status.ERROR], None),  # never better
        (BROKEN, [], None),
        (factories.result("A"), [PASS, BREAK], None),  # passes again
        (BROKEN, [PASS, TIMEOUT, BREAK], RUNS[2]),  # a timeout says nothing
        (BROKEN, [TIMEOUT], None),
        (LOST, [PASS], None),
        (ACCEPTED, [PASS], None),
    ],
)
def test_a_model_is_regressed_since_the_run_after_its_last_better_verdict(
    result: Result, earlier: list[Status], run: str | None
) -> None:
    assert since(after(*earlier, result=result)) == ({"A": run} if run else {})


def test_a_regression_against_the_baseline_counts_without_a_history() -> None:
    change = Change(
        kind=ChangeKind.REGRESSION,
        model="A",
        target=Target(),
        before=Status.PASS,
        after=Status.GRAPH_BREAK,
        reason="r",
    )
    view = factories.view(BROKEN, changes=(change,), baseline=factories.run(RUNS[0]))
    assert since(view) == {"A": view.run.id}


def test_the_most_downloaded_comes_first() -> None:
    results = [
        factories.result(name, breaks=(factories.graph_break(),), downloads=downloads)
        for name, downloads in (("A", 1), ("B", 3), ("C", None))
    ]
    history = {(name, "dynamo"): (Earlier(RUNS[0], Status.PASS, Phase.DONE),) for name in "ABC"}
    assert list(since(factories.view(*results, history=history))) == ["B", "A", "C"]


def test_a_first_run_cannot_be_compared() -> None:
    assert not is_comparable(factories.view(BROKEN))
    assert is_comparable(after(Status.PASS))
    assert not is_comparable(after(Status.TIMEOUT))
    assert is_comparable(factories.view(BROKEN, baseline=factories.run(RUNS[0])))
