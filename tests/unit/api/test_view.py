"""What a view knows of earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.api.publish import RUNS_SHOWN, view
from compilewatch.records import Phase, Status, Target
from compilewatch.store import Store
from tests import factories
from tests.sweeping import stored_run as stored

BROKEN = factories.graph_break()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "outputs")


def test_the_history_of_a_model_is_oldest_first_and_without_this_run(store: Store) -> None:
    first = stored(store, factories.result("A", breaks=(BROKEN,)), factories.result("B"))
    second = stored(store, factories.result("A", Status.ERROR, phase=Phase.CREATE))
    last = stored(store, factories.result("A"))
    assert view(store, store.open(last)).history == {
        ("A", "dynamo"): (
            (first, Status.GRAPH_BREAK, Phase.DONE),
            (second, Status.ERROR, Phase.CREATE),
        )
    }
    assert view(store, store.open(first)).history == {}


def test_a_history_has_other_selections_but_no_other_depth_source_or_shard(store: Store) -> None:
    settings = {"targets": ["dynamo"], "depth": "full", "tier": "auto"}
    same = stored(store, factories.result("A"), settings={**settings, "selection": {"top": 9}})
    stored(store, factories.result("A"), settings={**settings, "depth": "reduced"})
    stored(store, factories.result("A"), source="hub")
    stored(store, factories.result("A"), shard="1/2")
    last = stored(store, factories.result("A"), settings=settings)
    found = view(store, store.open(last))
    assert [point.run for point in found.history[("A", "dynamo")]] == [same]
    assert [point.run for point in found.trend] == [last]


def test_the_trend_has_the_complete_runs_of_the_same_plan_and_this_one(store: Store) -> None:
    first = stored(store, factories.result("A"), factories.result("B", breaks=(BROKEN,)))
    stored(store, factories.result("A"), state="interrupted")
    last = stored(store, factories.result("A"), factories.result("B"))
    trend = view(store, store.open(last)).trend
    assert [(point.run, point.passed, point.planned) for point in trend] == [
        (first, 1, 2),
        (last, 2, 2),
    ]


def test_no_more_runs_are_read_than_are_shown(store: Store) -> None:
    ids = [stored(store, factories.result("A")) for _ in range(RUNS_SHOWN + 3)]
    found = view(store, store.open(ids[-1]))
    assert [point.run for point in found.trend] == ids[-RUNS_SHOWN:]
    assert [point.run for point in found.history[("A", "dynamo")]] == ids[-RUNS_SHOWN:-1]


def test_results_of_the_baseline_are_kept_where_something_changed_or_moved(store: Store) -> None:
    moved, same = (factories.graph_break(p, source_start=12, source=("if x:",)) for p in "fg")
    rewritten = factories.graph_break("f", source_start=12, source=("if x > 0:",))
    before = factories.result("A", breaks=(moved,))
    unchanged = factories.result("B", breaks=(same,))
    base = stored(store, before, unchanged)
    for now, changes in (
        (factories.result("A"), 1),
        (factories.result("A", breaks=(rewritten,)), 0),
    ):
        seen = view(store, store.open(stored(store, now, unchanged)), baseline=base)
        assert len(seen.changes) == changes
        assert seen.before == {("A", Target()): before}


def test_a_run_that_cannot_be_read_costs_the_history_only(store: Store) -> None:
    first = stored(store, factories.result("A"))
    last = stored(store, factories.result("A"))
    (store.root / first / "results.jsonl").unlink()
    (store.root / first / "results.jsonl").mkdir()
    seen = view(store, store.open(last))
    assert (seen.history, seen.trend) == ({}, ())
    assert [
        note
        for note in seen.notes
        if note.startswith("the history of earlier runs cannot be read: ")
    ]
