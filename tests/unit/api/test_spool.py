"""What a service does not take waits, and is sent with the next publish."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch import sinks
from compilewatch.api.publish import MAX_REJECTIONS, Published, load_sinks, publish, view
from compilewatch.config import Settings
from compilewatch.errors import SelectionError, SinkError, UnreachableError
from compilewatch.plan import parse_shard
from compilewatch.records import RunView
from compilewatch.store import RunFolder
from tests import factories
from tests.sweeping import events, run_sweep, store


class Remote:
    """A service that takes runs, or raises what `trouble` makes of a run's id."""

    name = "remote"
    taken: list[str]
    trouble: Callable[[str], Exception | None]

    def __init__(self, settings: Settings) -> None:
        del settings

    def publish(self, view: RunView, files: RunFolder) -> str:
        assert files.path("results.jsonl").exists()
        if error := Remote.trouble(view.run.id):
            raise error
        Remote.taken.append(view.run.id)
        return f"remote: {view.run.id}"


def fine(run_id: str) -> None:
    return None


def down(run_id: str) -> Exception:
    return UnreachableError("no server\nanswers")


def refuse(run_id: str) -> Exception:
    return SinkError("400 not this one")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sinks.SINKS, "remote", f"{__name__}:Remote")
    monkeypatch.setitem(sinks.ADDRESSES, "remote", "s3.url")
    monkeypatch.delitem(sinks.ADDRESSES, "s3")
    Remote.taken, Remote.trouble = [], fine


def swept(folder: Path, **settings: Any) -> str:
    """A new run's id; it is published where `s3_url` is set."""
    return run_sweep(folder, fresh=True, settings=settings).run.id


def published(folder: Path, run_id: str) -> Published:
    held = store(folder)
    sinks = load_sinks(["remote"], factories.settings(s3_url="s3://x"))
    return publish(held, view(held, held.open(run_id)), sinks)


def waiting(folder: Path) -> list[str]:
    held = store(folder)
    runs = [held.open(spooled.run).run for spooled in held.spool.waiting("remote")]
    return [run.id for run in sorted(runs, key=lambda run: run.started_at)]


def test_a_run_is_published_at_its_end_where_an_address_is_set(tmp_path: Path) -> None:
    swept(tmp_path)
    assert Remote.taken == []
    run_id = swept(tmp_path, s3_url="s3://x")
    assert Remote.taken == [run_id]
    assert waiting(tmp_path) == []
    last = store(tmp_path).spool.last("remote")
    assert last is not None
    assert last.run == run_id


def test_a_service_that_is_down_costs_a_note_and_nothing_else(tmp_path: Path) -> None:
    Remote.trouble = down
    seen = run_sweep(tmp_path, settings={"s3_url": "s3://x"})
    run_id = seen.run.id
    assert store(tmp_path).open(run_id).run.state == "finished"
    assert seen.notes == (
        "remote was not published to: no server answers; kept in the spool; the next publish sends "
        f"it, or: compilewatch publish {run_id} --to remote",
    )
    lines = events(seen, tmp_path)
    assert [line["event"] for line in lines[-2:]] == ["run_finished", "sink_failed"]
    assert waiting(tmp_path) == [run_id]


def test_the_next_publish_sends_what_waits_oldest_first(tmp_path: Path) -> None:
    Remote.trouble = down
    first = swept(tmp_path, s3_url="s3://x")
    second = swept(tmp_path, s3_url="s3://x")
    Remote.trouble = fine
    third = swept(tmp_path, s3_url="s3://x")
    assert Remote.taken == [first, second, third]
    assert waiting(tmp_path) == []


def test_an_older_run_published_by_hand_is_not_left_over_a_newer_one(tmp_path: Path) -> None:
    first = swept(tmp_path)
    Remote.trouble = down
    second = swept(tmp_path, s3_url="s3://x")
    Remote.trouble = fine
    assert published(tmp_path, first).lines == (
        f"remote: {first}",
        f"run {second} (spooled): remote: {second}",
    )


def test_a_dead_service_is_called_once_however_much_waits(tmp_path: Path) -> None:
    asked: list[str] = []

    def count(run_id: str) -> Exception:
        asked.append(run_id)
        return down(run_id)

    Remote.trouble = down
    runs = [swept(tmp_path, s3_url="s3://x") for _ in range(3)]
    Remote.trouble = count
    published(tmp_path, runs[-1])
    assert asked == runs[:1]
    assert waiting(tmp_path) == runs


def test_a_rejected_run_does_not_hold_up_the_others_and_is_let_go_in_the_end(
    tmp_path: Path,
) -> None:
    Remote.trouble = refuse
    bad = swept(tmp_path, s3_url="s3://x")
    Remote.trouble = lambda run_id: refuse(run_id) if run_id == bad else None
    good = swept(tmp_path)
    for attempt in range(2, MAX_REJECTIONS + 1):
        assert waiting(tmp_path) == [bad]
        ((_, why),) = published(tmp_path, good).failures
        assert ("not tried again" in why) == (attempt == MAX_REJECTIONS)
    assert waiting(tmp_path) == []
    assert Remote.taken == [good] * (MAX_REJECTIONS - 1)


def test_a_process_killed_in_the_middle_has_lost_nothing(tmp_path: Path) -> None:
    def killed(run_id: str) -> Exception:
        raise KeyboardInterrupt

    run_id = swept(tmp_path)
    Remote.trouble = killed
    with pytest.raises(KeyboardInterrupt):
        published(tmp_path, run_id)
    assert waiting(tmp_path) == [run_id]


def test_a_deleted_run_no_longer_waits(tmp_path: Path) -> None:
    Remote.trouble = down
    first = swept(tmp_path, s3_url="s3://x")
    (store(tmp_path).root / first).rename(tmp_path / "away")
    Remote.trouble = fine
    second = swept(tmp_path)
    ((_, why),) = published(tmp_path, second).failures
    assert why.startswith(f"run {first} (spooled) is no longer stored: ")
    assert published(tmp_path, second).failures == ()


def test_a_waiting_run_that_cannot_be_read_does_not_hold_up_the_new_one(tmp_path: Path) -> None:
    Remote.trouble = down
    first = swept(tmp_path, s3_url="s3://x")
    results = store(tmp_path).root / first / "results.jsonl"
    results.write_bytes(results.read_bytes().replace(b'"schema_version":2', b'"schema_version":9'))
    Remote.trouble = fine
    seen = run_sweep(tmp_path, fresh=True, settings={"s3_url": "s3://x", "baseline": "none"})
    assert Remote.taken == [seen.run.id]
    history, note = seen.notes
    assert history.startswith(f"{results}: left out, because it was written by a newer")
    assert f"run {first} (spooled): " in note
    assert "upgrade" in note
    assert waiting(tmp_path) == [first]


def test_a_damaged_spool_file_is_still_a_run_that_waits(tmp_path: Path) -> None:
    Remote.trouble = down
    first = swept(tmp_path, s3_url="s3://x")
    (store(tmp_path).root / "spool" / "remote" / f"{first}.json").write_text("{")
    Remote.trouble = fine
    second = swept(tmp_path, s3_url="s3://x")
    assert Remote.taken == [first, second]


def test_a_shard_is_published_nowhere(tmp_path: Path) -> None:
    run_sweep(tmp_path, shard=parse_shard("1/2"), settings={"s3_url": "s3://x"})
    assert Remote.taken == []
    assert waiting(tmp_path) == []


def test_the_spool_is_plain_json(tmp_path: Path) -> None:
    Remote.trouble = down
    run_id = swept(tmp_path, s3_url="s3://x")
    path = store(tmp_path).root / "spool" / "remote" / f"{run_id}.json"
    held = json.loads(path.read_text())
    assert (held["run"], held["attempts"], held["why"]) == (run_id, 0, "no server answers")


def test_a_run_of_another_selection_does_not_wait_for_its_turn(tmp_path: Path) -> None:
    """A retry would replace the models that are published, once somebody else allowed it."""
    Remote.trouble = lambda run_id: SelectionError("other models are published")
    seen = run_sweep(tmp_path, settings={"s3_url": "s3://bucket"})
    assert any("other models are published" in note for note in seen.notes)
    assert store(tmp_path).spool.waiting("remote") == ()
