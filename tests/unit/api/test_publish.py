"""Stored runs as sinks and people see them; what a service does not take waits in the spool."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch import sinks
from compilewatch.api.publish import (
    MAX_REJECTIONS,
    RUNS_SHOWN,
    Published,
    load_sinks,
    publish,
    view,
)
from compilewatch.config import Settings
from compilewatch.errors import SelectionError, SinkError, UnreachableError
from compilewatch.plan import Expectations, load_expectations, parse_shard
from compilewatch.records import Phase, RunView, Status, Target
from compilewatch.store import RunFolder
from tests import factories, sweeping
from tests.sweeping import begin, events, run_sweep, settings, store, stored_run

SERVICE: dict[str, Any] = {"s3_url": "s3://x"}


class Local:
    """A sink that writes a file, or raises what `trouble` makes of a run's id."""

    name = "local"
    taken: list[str]
    trouble: Callable[[str], BaseException | None]

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFolder) -> str:
        assert files.path("results.jsonl").exists()
        if error := type(self).trouble(view.run.id):
            raise error
        type(self).taken.append(view.run.id)
        files.write("good.txt", f"{view.run.id} {view.run.state} {len(view.results)}".encode())
        return f"{self.name}: {view.run.id}"


class Remote(Local):
    """A service."""

    name = "remote"


class Refusing(Local):
    name = "refusing"


class Faulty(Local):
    name = "faulty"

    def publish(self, view: RunView, files: RunFolder) -> str:
        return {"there": "it"}["missing"]


def fine(run_id: str) -> None:
    return None


def down(run_id: str) -> Exception:
    return UnreachableError("no server\nanswers")


def refuse(run_id: str) -> Exception:
    return SinkError("400 not\nthis one")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Local, Remote, Refusing, Faulty):
        monkeypatch.setitem(sinks.SINKS, kind.name, f"{__name__}:{kind.__name__}")
        kind.taken, kind.trouble = [], fine
    monkeypatch.setitem(sinks.ADDRESSES, "remote", "s3.url")
    monkeypatch.delitem(sinks.ADDRESSES, "s3")


def swept(folder: Path, trouble: Callable[[str], Any] = fine, **settings: Any) -> str:
    """A new run's id; it is published where `s3_url` is set."""
    Remote.trouble = trouble
    run_id = run_sweep(folder, fresh=True, settings=settings).run.id
    Remote.trouble = fine
    return run_id


def published(folder: Path, run_id: str, trouble: Callable[[str], Any] = fine) -> Published:
    Remote.trouble = trouble
    loaded = load_sinks(["remote"], factories.settings(**SERVICE))
    return publish(store(folder), view(store(folder), store(folder).open(run_id)), loaded)


def waiting(folder: Path) -> list[str]:
    runs = [store(folder).open(s.run).run for s in store(folder).spool.waiting("remote")]
    return [run.id for run in sorted(runs, key=lambda run: run.started_at)]


def seen_again(folder: Path, run_id: str, **given: Any) -> RunView:
    return view(store(folder), store(folder).open(run_id), **given)


# --- sinks ---


def test_a_sink_that_fails_costs_a_note_and_not_the_run(tmp_path: Path) -> None:
    Refusing.trouble = refuse
    seen = run_sweep(tmp_path, settings={"sinks": ["refusing", "faulty", "local"]})
    assert seen.notes == (
        "refusing was not written: 400 not this one",
        "faulty was not written: KeyError: 'missing'",
    )
    stored = store(tmp_path).open()
    assert stored.run.state == "finished"
    assert (stored.path / "good.txt").read_text() == f"{seen.run.id} finished 6"
    failed = [line for line in events(seen, tmp_path) if line["event"] == "sink_failed"]
    sinks_and_levels = [(line["sink"], line["level"]) for line in failed]
    assert sinks_and_levels == [("refusing", "error"), ("faulty", "error")]


# --- views ---


def test_a_view_remembers_what_the_run_was_compared_with(tmp_path: Path) -> None:
    first = run_sweep(tmp_path)
    broken = sweeping.breaking({"A": [factories.graph_break()]})
    second = run_sweep(tmp_path, sweeping.FakeLauncher(answers=broken), fresh=True)
    third = run_sweep(tmp_path, fresh=True).run
    assert third.baseline == second.run.id
    assert seen_again(tmp_path, second.run.id).changes == second.changes
    assert seen_again(tmp_path, third.id, baseline="none").changes == ()
    elsewhere = store(tmp_path).open(store(tmp_path).root / first.run.id)
    for baseline in (first.run.id, elsewhere):
        other = seen_again(tmp_path, third.id, baseline=baseline)
        assert (other.baseline, other.changes) == (elsewhere.run, ())


def test_a_baseline_that_is_gone_or_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    first, second = run_sweep(tmp_path).run.id, run_sweep(tmp_path).run.id
    (store(tmp_path).root / first).rename(tmp_path / "away")
    seen = seen_again(tmp_path, second)
    assert seen.baseline is None
    assert f"the baseline {first} has been deleted" in seen.notes[0]
    results = store(tmp_path).root / second / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b'"schema_version":2', b'"schema_version":9'))
    third = run_sweep(tmp_path)
    assert third.baseline is None
    assert "not compared with" in third.notes[0]
    assert "upgrade" in third.notes[0]


def test_damage_and_what_is_left_open_are_notes(tmp_path: Path) -> None:
    seen = run_sweep(tmp_path)
    path = store(tmp_path).root / seen.run.id / "results.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([b"damaged", *lines[1:]]))
    damaged, missing = seen_again(tmp_path, seen.run.id).notes
    assert f"{path}:1: damaged line" in damaged
    counts = f"{len(lines) - 2} of {len(lines) - 1} planned requests"
    assert missing == f"the run is finished: {counts} have a result"

    begin(store(tmp_path), planned=9).close()
    assert view(store(tmp_path), store(tmp_path).open()).notes == (
        "the run is interrupted: 0 of 9 planned requests have a result",
        damaged,  # the history of the new run lacks it
    )


def test_an_old_run_is_judged_by_the_expectations_of_now(tmp_path: Path) -> None:
    run_id = run_sweep(tmp_path).run.id
    assert seen_again(tmp_path, run_id, expectations=Expectations()).notes == ()
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "expectations.toml"
    file.write_text('[[expectation]]\nmodel = "A"\nstatus = "oom"\nreason = "r"\ndate = 2026-01-01')
    loaded = load_expectations(Path(settings(tmp_path).expectations_file))
    assert "A [dynamo]: expected oom" in seen_again(tmp_path, run_id, expectations=loaded).notes[0]


BROKEN = factories.graph_break()


def history_of(seen: RunView, model: str = "A") -> list[str]:
    return [earlier.run for earlier in seen.history[(model, "dynamo")]]


def test_the_history_of_a_model_is_oldest_first_and_without_this_run(tmp_path: Path) -> None:
    here = store(tmp_path)
    first = stored_run(here, factories.result("A", breaks=(BROKEN,)), factories.result("B"))
    second = stored_run(here, factories.result("A", Status.ERROR, phase=Phase.CREATE))
    last = stored_run(here, factories.result("A"))
    assert seen_again(tmp_path, last).history == {
        ("A", "dynamo"): (
            (first, Status.GRAPH_BREAK, Phase.DONE),
            (second, Status.ERROR, Phase.CREATE),
        )
    }
    assert seen_again(tmp_path, first).history == {}
    (here.root / first / "results.jsonl").unlink()
    (here.root / first / "results.jsonl").mkdir()
    seen = seen_again(tmp_path, last)
    assert (seen.history, seen.trend) == ({}, ())
    assert any("the history of earlier runs cannot be read: " in note for note in seen.notes)


def test_a_history_has_other_selections_but_no_other_depth_source_or_shard(tmp_path: Path) -> None:
    used = {"targets": ["dynamo"], "depth": "full", "tier": "auto"}
    others: list[dict[str, Any]] = [
        {"settings": {**used, "selection": {"top": 9}}},
        {"settings": {**used, "depth": "reduced"}},
        {"source": "hub"},
        {"shard": "1/2"},
    ]
    same, *_ = (stored_run(store(tmp_path), factories.result("A"), **given) for given in others)
    last = stored_run(store(tmp_path), factories.result("A"), settings=used)
    seen = seen_again(tmp_path, last)
    assert history_of(seen) == [same]
    assert [point.run for point in seen.trend] == [last]


def test_the_trend_has_the_complete_runs_of_the_same_plan_and_no_more_than_are_shown(
    tmp_path: Path,
) -> None:
    results = factories.result("A"), factories.result("B", breaks=(BROKEN,))
    ids = [stored_run(store(tmp_path), *results) for _ in range(RUNS_SHOWN + 2)]
    stored_run(store(tmp_path), results[0], state="interrupted")
    last = stored_run(store(tmp_path), factories.result("A"), factories.result("B"))
    seen = seen_again(tmp_path, last)
    assert [point.run for point in seen.trend] == [*ids[-RUNS_SHOWN + 1 :], last]
    assert [(point.passed, point.planned) for point in seen.trend[-2:]] == [(1, 2), (2, 2)]
    assert len(history_of(seen)) <= RUNS_SHOWN


def test_results_of_the_baseline_are_kept_where_something_changed(tmp_path: Path) -> None:
    before, unchanged = (
        factories.result(name, breaks=(factories.graph_break(),)) for name in ("A", "B")
    )
    base = stored_run(store(tmp_path), before, unchanged)
    run = stored_run(store(tmp_path), factories.result("A"), unchanged)
    assert seen_again(tmp_path, run, baseline=base).before == {("A", Target()): before}


# --- the spool ---


def test_a_service_that_is_down_costs_a_note_and_is_called_once_however_much_waits(
    tmp_path: Path,
) -> None:
    swept(tmp_path)
    run_sweep(tmp_path, shard=parse_shard("1/2"), settings=SERVICE)
    assert Remote.taken == [], "without an address, and a shard"
    Remote.trouble = down
    seen = run_sweep(tmp_path, settings=SERVICE)
    run_id = seen.run.id
    assert store(tmp_path).open(run_id).run.state == "finished"
    assert seen.notes == (
        "remote was not published to: no server answers; kept in the spool; the next publish sends "
        f"it, or: compilewatch publish {run_id} --to remote",
    )
    assert [line["event"] for line in events(seen, tmp_path)[-2:]] == [
        "run_finished",
        "sink_failed",
    ]
    spooled = json.loads((store(tmp_path).root / f"spool/remote/{run_id}.json").read_text())
    kept = (spooled["run"], spooled["attempts"], spooled["why"])
    assert kept == (run_id, 0, "no server answers")
    asked: list[str] = []
    runs = [run_id, *(swept(tmp_path, down, **SERVICE) for _ in range(2))]
    published(tmp_path, runs[-1], lambda run: asked.append(run) or down(run))  # type: ignore[func-returns-value]
    assert (asked, waiting(tmp_path)) == (runs[:1], runs)


def test_the_next_publish_sends_what_waits_oldest_first(tmp_path: Path) -> None:
    oldest = swept(tmp_path)
    first, second = (swept(tmp_path, down, **SERVICE) for _ in range(2))
    # A damaged file is still a run that waits.
    (store(tmp_path).root / "spool" / "remote" / f"{second}.json").write_text("{")
    third = swept(tmp_path, **SERVICE)
    assert (Remote.taken, waiting(tmp_path)) == ([first, second, third], [])
    fourth = swept(tmp_path, down, **SERVICE)
    assert published(tmp_path, oldest).lines == (  # not left over a newer one
        f"remote: {oldest}",
        f"run {fourth} (spooled): remote: {fourth}",
    )


def test_a_rejected_run_does_not_hold_up_the_others_and_is_let_go_in_the_end(
    tmp_path: Path,
) -> None:
    bad, good = swept(tmp_path, refuse, **SERVICE), swept(tmp_path)
    for attempt in range(2, MAX_REJECTIONS + 1):
        assert waiting(tmp_path) == [bad]
        trouble = published(tmp_path, good, lambda run: refuse(run) if run == bad else None)
        ((_, why),) = trouble.failures
        assert ("not tried again" in why) == (attempt == MAX_REJECTIONS)
    assert waiting(tmp_path) == []
    assert Remote.taken == [good] * (MAX_REJECTIONS - 1)


def test_an_interruption_while_sending_loses_nothing_and_says_what_is_true(tmp_path: Path) -> None:
    def interrupt(run_id: str) -> BaseException:
        return KeyboardInterrupt()

    run_id = swept(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        published(tmp_path, run_id, interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"is finished.*: compilewatch publish \d+-\d+"):
        swept(tmp_path, interrupt, **SERVICE)
    newest = store(tmp_path).open().run
    assert newest.state == "finished"
    assert waiting(tmp_path) == [run_id, newest.id]


def test_a_waiting_run_that_is_gone_or_cannot_be_read_does_not_hold_up_the_new_one(
    tmp_path: Path,
) -> None:
    gone, damaged = (swept(tmp_path, down, **SERVICE) for _ in range(2))
    (store(tmp_path).root / gone).rename(tmp_path / "away")
    results = store(tmp_path).root / damaged / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b'"schema_version":2', b'"schema_version":9'))
    seen = run_sweep(tmp_path, fresh=True, settings=SERVICE | {"baseline": "none"})
    assert Remote.taken == [seen.run.id]
    history, *notes = seen.notes
    assert history.startswith(f"{results}: left out, because it was written by a newer")
    assert any(f"run {gone} (spooled) is no longer stored: " in note for note in notes)
    assert any(f"run {damaged} (spooled): " in note and "upgrade" in note for note in notes)
    assert waiting(tmp_path) == [damaged]


def test_a_run_of_another_selection_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    """A retry would replace the models that are published, once somebody else allowed it."""
    Remote.trouble = lambda run_id: SelectionError("other models are published")
    seen = run_sweep(tmp_path, settings=SERVICE)
    assert any("other models are published" in note for note in seen.notes)
    assert waiting(tmp_path) == []
