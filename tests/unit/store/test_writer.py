from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError, UsageError
from compilewatch.events import EventFactory
from compilewatch.records import Plan
from compilewatch.store import Store
from tests import factories
from tests.unit.store.conftest import EMPTY

FRESH = factories.run("", state="running", wall_seconds=None, finished_at=None)


def test_a_result_is_a_line_on_disk_when_append_returns(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        result = factories.result("A")
        writer.append([result])
        data = (writer.path / "results.jsonl").read_bytes()
        assert data == msgspec.json.encode(result) + b"\n"


def test_a_result_is_synced_when_append_returns(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a power cut would lose: nothing that has been written and not yet synced."""
    synced: dict[int, int] = {}

    def note(descriptor: int) -> None:
        opened = os.fstat(descriptor)
        synced[opened.st_ino] = opened.st_size

    monkeypatch.setattr(os, "fdatasync", note)
    with store.create_run(FRESH, EMPTY) as writer:
        for name in ("A", "B"):
            writer.append([factories.result(name)])
            written = (writer.path / "results.jsonl").stat()
            assert synced[written.st_ino] == written.st_size > 0


def test_artifacts_are_named_by_all_results_that_share_them(store: Store, tmp_path: Path) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        folder = writer.make_scratch() / "child"
        folder.mkdir()
        (folder / "trace.log").write_text("t")
        shared = [factories.result("org/a"), factories.result("org/b")]
        stored = writer.append(shared, folder)
        names = ("artifacts/org--a/dynamo/trace.log",)
        assert [r.artifacts for r in stored] == [names, names]
        assert (writer.path / names[0]).read_text() == "t"
    assert [r.artifacts for r in store.open().results()] == [names, names]


def test_adopted_results_bring_their_artifacts(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as first:
        folder = first.make_scratch() / "child"
        folder.mkdir()
        (folder / "trace.log").write_text("t")
        (kept,) = first.append([factories.result("A")], folder)
        first.finish("finished")
    with store.create_run(FRESH, EMPTY) as second:
        (adopted,) = second.adopt([(kept, first.path)])
        assert (second.path / adopted.artifacts[0]).read_text() == "t"


def test_scratch_lies_in_the_run_and_goes_with_the_writer(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        scratch = writer.make_scratch()
        assert scratch.parent == writer.path
        (scratch / "left").write_text("x")
    assert not scratch.exists()


def test_log_lines_are_appended(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        author = EventFactory(writer.run)
        writer.events([author.started(reused=0, skipped=0, duplicates=0)])
        writer.events(list(author.checked(factories.result(breaks=(factories.graph_break(),)))))
    lines = (writer.path / "logs" / f"{writer.run.id}.jsonl").read_bytes().splitlines()
    events = [msgspec.json.decode(line)["event"] for line in lines]
    assert events == ["run_started", "model_checked", "graph_break"]


def test_a_second_writer_of_one_run_is_rejected(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compilewatch.store.runs.LOCK_WAIT_SECONDS", 0.0)
    with store.create_run(FRESH, EMPTY) as writer:
        stored = store.open(writer.run.id)
        with pytest.raises(StoreError, match="written by another process"):
            store.resume_run(stored)


def test_a_torn_line_is_cut_when_the_run_is_taken_up_again(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.append([factories.result("A")])
        whole = (writer.path / "results.jsonl").read_bytes()
        (writer.path / ".scratch-1").mkdir()
    with (writer.path / "results.jsonl").open("ab") as file:
        file.write(b'{"torn')
    with (writer.path / "logs" / f"{writer.run.id}.jsonl").open("ab") as file:
        file.write(b'{"torn')

    with store.resume_run(store.open(writer.run.id)) as again:
        assert (again.path / "results.jsonl").read_bytes() == whole
        assert (again.path / "logs" / f"{again.run.id}.jsonl").read_bytes() == b""
        assert not (again.path / ".scratch-1").exists()
        assert again.run.id == writer.run.id
        assert again.run.state == "running"
        again.append([factories.result("B")])
    names = [r.request.model.name for r in store.open().results()]
    assert names == ["A", "B"]


def test_a_finished_run_cannot_be_taken_up(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.finish("finished")
    with pytest.raises(UsageError, match="nothing to resume"):
        store.resume_run(store.open(writer.run.id))


def test_wall_time_adds_up_over_the_parts_of_a_run(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.finish("interrupted")
        writer.update(wall_seconds=100.0)
    with store.resume_run(store.open(writer.run.id)) as again:
        run = again.finish("finished")
    assert run.wall_seconds is not None
    assert run.wall_seconds >= 100.0


def test_wall_time_of_a_killed_part_is_read_from_the_files(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.append([factories.result("A")])
    started = (writer.path / "run.json").stat().st_mtime
    os.utime(writer.path / "results.jsonl", (started + 50, started + 50))
    with store.resume_run(store.open(writer.run.id)) as again:
        assert again.run.wall_seconds == pytest.approx(50, abs=1e-3)


def test_a_full_disk_stops_the_run_in_one_line_and_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.append([factories.result("A")])
        with monkeypatch.context() as full:

            def no_space(descriptor: int, data: bytes) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            full.setattr(os, "write", no_space)
            with pytest.raises(StoreError, match=r"disk is full; free some space.*--resume"):
                writer.append([factories.result("B")])
            with pytest.raises(StoreError, match="disk is full"):
                writer.events([EventFactory(writer.run).started(reused=0, skipped=0, duplicates=0)])
        writer.append([factories.result("C")])
    stored = store.open()
    assert [r.request.model.name for r in stored.results()] == ["A", "C"]
    assert stored.damaged == ()


LIMITED = """
import resource, sys
from pathlib import Path
from compilewatch.errors import StoreError
from compilewatch.records import Plan
from compilewatch.store import Store
from tests import factories

store = Store(Path(sys.argv[1]))
run = factories.run("", state="running")
with store.create_run(run, Plan(requests=(), skipped=(), digest="plan")) as writer:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        for number in range(1000):
            writer.append([factories.result(f"M{number}")])
    except StoreError as error:
        print(number)
        print(error)
"""


@pytest.mark.process
def test_a_file_that_may_not_grow_further_keeps_complete_lines(store: Store) -> None:
    """A real limit of the kernel: the write that meets it is short, and the next one fails."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(store.root), "10000"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=True,
    )
    counted, message = done.stdout.splitlines()
    assert "size limit" in message
    stored = store.open()
    assert [r.request.model.name for r in stored.results()] == [
        f"M{n}" for n in range(int(counted))
    ]
    assert int(counted) > 1
    assert stored.damaged == ()
    assert (stored.path / "results.jsonl").read_bytes().endswith(b"\n")


def test_a_plan_that_cannot_be_written_leaves_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdatasync", full)
    with pytest.raises(StoreError, match="disk is full"):
        store.create_run(FRESH, Plan(requests=(), skipped=(), digest="plan"))
    assert list(store.root.iterdir()) == []
