"""Which runs go and which stay, and that what stays still works."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from compilewatch.api.publish import Pruning, prune, review
from compilewatch.records import Plan, Result, now
from compilewatch.store import Spooled, Store
from tests import factories

EMPTY = Plan(requests=(), skipped=(), digest="plan")
NOW = datetime(2026, 1, 31, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "outputs")


def add(
    store: Store, *results: Result, state: str = "finished", days_ago: int = 0, **fields: Any
) -> str:
    started = (NOW - timedelta(days=days_ago)).isoformat().replace("+00:00", "Z")
    made = factories.run("", **{"started_at": started, **fields, "state": "running"})
    with store.create_run(made, EMPTY) as writer:
        writer.append(results)
        writer.finish(state)
        return writer.run.id


def found(store: Store, keep: int | None = 1, days: int | None = None) -> Pruning:
    return review(store, keep=keep, days=days, now=NOW)


def superseded(store: Store, keep: int | None = 1, days: int | None = None) -> list[str]:
    return [judged.run for judged in found(store, keep, days).superseded]


def held(store: Store) -> dict[str, str]:
    return {judged.run: judged.why for judged in found(store).held}


def settings(targets: str) -> dict[str, Any]:
    return {"targets": [targets], "depth": "full", "tier": "auto", "selection": {"top": 25}}


def test_the_newest_of_each_selection_stay(store: Store) -> None:
    old = add(store, settings=settings("dynamo"))
    only = add(store, settings=settings("export"))
    shards = [add(store, settings=settings("dynamo"), shard=f"{n}/2") for n in (1, 2)]
    newer = [add(store, settings=settings("dynamo")) for _ in range(2)]
    assert superseded(store, keep=1) == [newer[0], old]
    assert superseded(store, keep=2) == [old]
    assert superseded(store, keep=3) == []
    assert found(store).kept == 2 + len(shards)
    list(prune(store, found(store)))
    assert [one.run.id for one in store.runs()] == [newer[1], *reversed(shards), only]
    assert store.open("latest").run.id == newer[1]


def test_days_keep_what_is_young_and_the_newest_whatever_its_age(store: Store) -> None:
    runs = [add(store, days_ago=days) for days in (90, 60, 40)]
    assert superseded(store, keep=None, days=50) == [runs[1], runs[0]]
    assert superseded(store, keep=None, days=60) == [runs[0]]
    assert superseded(store, keep=None, days=1) == [runs[1], runs[0]]


def test_with_both_rules_a_run_stays_that_either_keeps(store: Store) -> None:
    runs = [add(store, days_ago=days) for days in (90, 60, 40, 1)]
    assert superseded(store, keep=2, days=70) == [runs[0]]
    assert superseded(store, keep=3, days=20) == [runs[0]]


def test_only_finished_and_complete_runs_supersede(store: Store) -> None:
    finished = add(store)
    add(store, state="interrupted")
    incomplete = add(store, missing_shards=("1/2",))
    assert superseded(store) == []
    interrupted = add(store, state="interrupted")
    newest = add(store)
    gone = set(superseded(store))
    assert {finished, interrupted, incomplete} < gone
    assert newest not in gone


def test_what_is_in_use_is_held_with_the_reason(store: Store) -> None:
    baseline, waiting, linked = add(store), add(store, baseline="?"), add(store)
    with store.create_run(factories.run("", state="running"), EMPTY) as writer:
        newest = add(store)
        stored = store.open(waiting)
        path = stored.path / "run.json"
        path.write_text(path.read_text().replace('"?"', f'"{baseline}"'))
        for sink in ("s3", "loki"):
            store.spool.put(sink, Spooled(run=waiting, since=now()))
        (store.root / "latest").unlink()
        (store.root / "latest").symlink_to(linked)
        assert held(store) == {
            writer.run.id: "being written",
            linked: "outputs/latest points to it",
            waiting: f"waits for loki, s3: compilewatch publish {waiting}",
            baseline: f"the baseline of {waiting}, which waits to be published",
        }
        assert superseded(store) == []
    assert newest in [one.run.id for one in store.runs()]


def test_a_finished_run_whose_sweep_still_reports_is_held(store: Store) -> None:
    with store.create_run(factories.run("", state="running"), EMPTY) as writer:
        writer.finish("finished")
        add(store)
        assert (superseded(store), held(store)) == ([], {writer.run.id: "being written"})
    assert superseded(store) == [writer.run.id]


def test_what_is_no_run_or_lies_elsewhere_is_left_alone(store: Store, tmp_path: Path) -> None:
    elsewhere = Store(tmp_path / "elsewhere")
    foreign = add(elsewhere)
    store.root.mkdir()
    (store.root / foreign).symlink_to(elsewhere.root / foreign)
    damaged, newest = add(store), add(store)
    (store.root / damaged / "run.json").write_text("{")
    for name in ("papers", "20260101-000000-000", f"{newest}-copy", ".new-20260101-000000-0001"):
        (store.root / name).mkdir()
        (store.root / name / "file").write_text("mine")
    before = sorted(store.root.iterdir())
    assert held(store) == {foreign: "a link to another folder"}
    assert list(prune(store, found(store))) == []
    assert sorted(store.root.iterdir()) == before
    assert elsewhere.open(foreign).run.id == foreign


def test_reused_results_and_their_artifacts_outlive_the_run_they_are_from(
    store: Store, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "torch_trace").mkdir(parents=True)
    (scratch / "torch_trace" / "a.log").write_text("trace")
    with store.create_run(factories.run("", state="running"), EMPTY) as writer:
        (answer,) = writer.append([factories.result("A")], scratch)
        writer.finish("finished")
    old = writer.run.id
    with store.create_run(factories.run("", state="running"), EMPTY) as writer:
        writer.adopt([(answer, store.root / old)])
        writer.finish("finished")
    assert found(store).freed_bytes < sum(judged.bytes for judged in found(store).superseded)
    assert list(prune(store, found(store))) == [old]
    (kept,) = store.open("latest").results()
    assert (store.open("latest").path / kept.artifacts[0]).is_file()
    assert store.lookup_many(["key of A"])["key of A"].run == writer.run.id


def test_an_empty_or_missing_folder_is_no_error(store: Store) -> None:
    assert found(store) == Pruning(superseded=(), held=(), kept=0, freed_bytes=0)
    assert list(prune(store, found(store))) == []
