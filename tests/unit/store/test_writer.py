import errno
import os

import msgspec
import pytest

from compilewatch.errors import StoreError, UsageError
from compilewatch.events import EventFactory
from compilewatch.store import Store
from tests.unit.store.conftest import EMPTY, FRESH, names, results


def test_a_result_is_a_synced_line_when_append_returns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut would lose: nothing that has been written and not yet synced."""
    synced: dict[int, int] = {}

    def note(descriptor: int) -> None:
        opened = os.fstat(descriptor)
        synced[opened.st_ino] = opened.st_size

    monkeypatch.setattr(os, "fdatasync", note)
    with store.create_run(FRESH, EMPTY) as writer:
        lines = b""
        for result in results("A", "B"):
            writer.append([result])
            lines += msgspec.json.encode(result) + b"\n"
            path = writer.path / "results.jsonl"
            assert path.read_bytes() == lines
            assert synced[path.stat().st_ino] == len(lines)


def test_artifacts_are_named_by_all_results_that_share_them_and_are_adopted(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        scratch = writer.make_scratch()
        folder = scratch / "child"
        folder.mkdir()
        (folder / "trace.log").write_text("t")
        shared = writer.append(results("org/a", "org/b"), folder)
        artifacts = ("artifacts/org--a/dynamo/trace.log",)
        assert [r.artifacts for r in shared] == [artifacts, artifacts]
        assert (writer.path / artifacts[0]).read_text() == "t"
        writer.finish("finished")
    assert not scratch.exists()
    assert [r.artifacts for r in store.open().results()] == [artifacts, artifacts]
    with store.create_run(FRESH, EMPTY) as second:
        (adopted,) = second.adopt([(shared[0], writer.path)])
        assert (second.path / adopted.artifacts[0]).read_text() == "t"


def test_a_run_that_is_being_written_is_neither_taken_up_nor_deleted_nor_a_finished_one_resumed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compilewatch.store.runs.LOCK_WAIT_SECONDS", 0.0)
    with store.create_run(FRESH, EMPTY) as writer:
        for attempt in (store.resume_run, store.delete_run):
            with pytest.raises(StoreError, match="written by another process"):
                attempt(store.open(writer.run.id))
        writer.append(results("A"))
        writer.finish("finished")
    assert names(store.open()) == ["A"]
    with pytest.raises(UsageError, match="nothing to resume"):
        store.resume_run(store.open())


def test_a_torn_line_is_cut_when_the_run_is_taken_up_again(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.append(results("A"))
        whole = (writer.path / "results.jsonl").read_bytes()
        (writer.path / ".scratch-1").mkdir()
    log = writer.path / "logs" / f"{writer.run.id}.jsonl"
    for path in (writer.path / "results.jsonl", log):
        with path.open("ab") as file:
            file.write(b'{"torn')

    with store.resume_run(store.open(writer.run.id)) as again:
        assert (again.path / "results.jsonl").read_bytes() == whole
        assert log.read_bytes() == b""
        assert not (again.path / ".scratch-1").exists()
        assert (again.run.id, again.run.state) == (writer.run.id, "running")
        again.append(results("B"))
    assert names(store.open()) == ["A", "B"]


def test_wall_time_adds_up_over_the_parts_of_a_run_also_of_a_killed_one(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.finish("interrupted")
        writer.update(wall_seconds=100.0)
    with store.resume_run(store.open(writer.run.id)) as again:
        assert (again.finish("finished").wall_seconds or 0.0) >= 100.0
    with store.create_run(FRESH, EMPTY) as writer:
        writer.append(results("A"))
    started = (writer.path / "run.json").stat().st_mtime
    os.utime(writer.path / "results.jsonl", (started + 50, started + 50))
    with store.resume_run(store.open(writer.run.id)) as again:
        assert again.run.wall_seconds == pytest.approx(50, abs=1e-3)


def test_a_full_disk_stops_the_run_in_one_line_and_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with store.create_run(FRESH, EMPTY) as writer:
        writer.append(results("A"))
        with monkeypatch.context() as full:
            full.setattr(os, "write", no_space)
            with pytest.raises(StoreError, match=r"disk is full; free some space.*--resume"):
                writer.append(results("B"))
            with pytest.raises(StoreError, match="disk is full"):
                writer.events([EventFactory(writer.run).started(reused=0, skipped=0, duplicates=0)])
        writer.append(results("C"))
    assert names(store.open()) == ["A", "C"]
    assert store.open().damaged == ()
    monkeypatch.setattr(os, "fdatasync", no_space)
    before = set(store.root.iterdir())
    with pytest.raises(StoreError, match="disk is full"):
        store.create_run(FRESH, EMPTY)  # its plan cannot be written: no run is left
    assert set(store.root.iterdir()) == before
