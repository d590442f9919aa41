from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch import sinks
from compilewatch.api.publish import load_sinks, publish, view
from compilewatch.config import Settings
from compilewatch.errors import SinkError
from compilewatch.plan import Expectations, load_expectations
from compilewatch.records import Plan, RunView
from compilewatch.store import RunFolder
from tests import factories, sweeping
from tests.sweeping import events, run_sweep, settings, store


class Local:
    def __init__(self, settings: Settings) -> None:
        del settings


class Good(Local):
    name = "good"

    def publish(self, view: RunView, files: RunFolder) -> str:
        files.write("good.txt", f"{view.run.id} {view.run.state} {len(view.results)}".encode())
        return "good.txt"


class Refusing(Local):
    name = "refusing"

    def publish(self, view: RunView, files: RunFolder) -> str:
        raise SinkError("cannot\nsay this")


class Faulty(Local):
    name = "faulty"

    def publish(self, view: RunView, files: RunFolder) -> str:
        return {"there": "it"}["missing"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Good, Refusing, Faulty):
        monkeypatch.setitem(sinks.SINKS, kind.name, f"{__name__}:{kind.__name__}")


def test_sinks_see_the_stored_and_finished_run(tmp_path: Path) -> None:
    seen = run_sweep(tmp_path, settings={"sinks": ["good"]})
    text = (store(tmp_path).open().path / "good.txt").read_text()
    assert text == f"{seen.run.id} finished 6"


def test_a_sink_that_fails_costs_a_note_and_not_the_run(tmp_path: Path) -> None:
    seen = run_sweep(tmp_path, settings={"sinks": ["refusing", "faulty", "good"]})
    assert seen.notes == (
        "refusing was not written: cannot say this",
        "faulty was not written: KeyError: 'missing'",
    )
    stored = store(tmp_path).open()
    assert stored.run.state == "finished"
    assert (stored.path / "good.txt").exists()
    failed = [line for line in events(seen, tmp_path) if line["event"] == "sink_failed"]
    assert [(line["sink"], line["level"]) for line in failed] == [
        ("refusing", "error"),
        ("faulty", "error"),
    ]


def test_any_run_can_be_published_again(tmp_path: Path) -> None:
    first = run_sweep(tmp_path)
    run_sweep(tmp_path)
    seen = view(store(tmp_path), store(tmp_path).open(first.run.id))
    published = publish(store(tmp_path), seen, load_sinks(["good"], Settings()))
    assert published.lines == ("good.txt",)
    assert (store(tmp_path).open(first.run.id).path / "good.txt").exists()


def test_a_view_remembers_what_the_run_was_compared_with(tmp_path: Path) -> None:
    first = run_sweep(tmp_path)
    broken = sweeping.breaking({"A": [factories.graph_break()]})
    second = run_sweep(tmp_path, sweeping.FakeLauncher(answers=broken), fresh=True)
    third = run_sweep(tmp_path, fresh=True)
    assert third.run.baseline == second.run.id
    again = view(store(tmp_path), store(tmp_path).open(second.run.id))
    assert again.changes == second.changes
    assert view(store(tmp_path), store(tmp_path).open(third.run.id), baseline="none").changes == ()
    other = view(store(tmp_path), store(tmp_path).open(third.run.id), baseline=first.run.id)
    assert other.baseline is not None
    assert other.baseline.id == first.run.id
    assert other.changes == ()
    elsewhere = store(tmp_path).open(store(tmp_path).root / first.run.id)
    given = view(store(tmp_path), store(tmp_path).open(third.run.id), baseline=elsewhere)
    assert given.baseline == elsewhere.run


def test_a_deleted_baseline_is_a_note(tmp_path: Path) -> None:
    first = run_sweep(tmp_path)
    second = run_sweep(tmp_path)
    (store(tmp_path).root / first.run.id).rename(tmp_path / "away")
    seen = view(store(tmp_path), store(tmp_path).open(second.run.id))
    assert seen.baseline is None
    assert f"the baseline {first.run.id} has been deleted" in seen.notes[0]


def test_a_baseline_that_cannot_be_read_is_a_note(tmp_path: Path) -> None:
    first = run_sweep(tmp_path)
    results = store(tmp_path).root / first.run.id / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b'"schema_version":2', b'"schema_version":9'))
    second = run_sweep(tmp_path)
    assert second.baseline is None
    assert "not compared with" in second.notes[0]
    assert "upgrade" in second.notes[0]


def test_damage_and_what_is_left_open_are_notes(tmp_path: Path) -> None:
    seen = run_sweep(tmp_path)
    path = store(tmp_path).root / seen.run.id / "results.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([b"damaged", *lines[1:]]))
    notes = view(store(tmp_path), store(tmp_path).open()).notes
    damaged, missing = notes
    assert f"{path}:1: damaged line" in damaged
    counts = f"{len(lines) - 2} of {len(lines) - 1} planned requests"
    assert missing == f"the run is finished: {counts} have a result"

    made = factories.run("", state="running", planned=9)
    with store(tmp_path).create_run(made, Plan(requests=(), skipped=(), digest="plan")):
        pass
    assert view(store(tmp_path), store(tmp_path).open()).notes == (
        "the run is interrupted: 0 of 9 planned requests have a result",
        damaged,  # the history of the new run lacks it
    )


def test_an_old_run_is_judged_by_the_expectations_of_now(tmp_path: Path) -> None:
    run_sweep(tmp_path)
    stored = store(tmp_path).open()
    assert view(store(tmp_path), stored, expectations=Expectations()).notes == ()
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "expectations.toml"
    file.write_text('[[expectation]]\nmodel = "A"\nstatus = "oom"\nreason = "r"\ndate = 2026-01-01')
    loaded = load_expectations(Path(settings(tmp_path).expectations_file))
    assert "A [dynamo]: expected oom" in view(store(tmp_path), stored, expectations=loaded).notes[0]
