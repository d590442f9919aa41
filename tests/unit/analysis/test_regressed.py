from __future__ import annotations

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


def test_a_model_stays_regressed_while_it_is_broken() -> None:
    assert since(after(Status.PASS)) == {"A": factories.run().id}
    assert since(after(Status.PASS, Status.GRAPH_BREAK)) == {"A": RUNS[1]}
    assert since(after(Status.PASS, Status.GRAPH_BREAK, Status.GRAPH_BREAK)) == {"A": RUNS[1]}


def test_what_was_never_better_is_not_regressed() -> None:
    assert since(after(Status.GRAPH_BREAK, Status.ERROR)) == {}
    assert since(after()) == {}


def test_what_passes_again_is_not_regressed() -> None:
    passing = factories.result("A")
    assert since(after(Status.PASS, Status.GRAPH_BREAK, result=passing)) == {}


def test_an_earlier_result_without_a_verdict_says_nothing() -> None:
    assert since(after(Status.PASS, Status.TIMEOUT, Status.GRAPH_BREAK)) == {"A": RUNS[2]}
    assert since(after(Status.TIMEOUT)) == {}


def test_a_result_without_a_verdict_is_none_and_neither_is_an_accepted_one() -> None:
    lost = factories.result("A", Status.TIMEOUT)
    assert since(after(Status.PASS, result=lost)) == {}
    accepted = factories.result("A", breaks=(factories.graph_break(),), expectation="known")
    assert since(after(Status.PASS, result=accepted)) == {}


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
