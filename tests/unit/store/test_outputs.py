import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError, UsageError
from compilewatch.files import lock
from compilewatch.records import RUN_VERSION, new_run_id
from compilewatch.store import Store
from compilewatch.store.outputs import RUN_ID
from tests import factories
from tests.unit.store.conftest import EMPTY, FRESH, Stored


def test_ids_sort_by_time_within_a_second() -> None:
    ids = [new_run_id() for _ in range(200)]
    assert ids == sorted(ids)
    assert all(map(RUN_ID.fullmatch, ids))


def test_runs_that_start_at_the_same_instant_get_folders_of_their_own(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = "20260102-030405-0001"
    ids = iter([same] * 3 + [f"20260102-030405-000{n}" for n in (2, 3)])
    lock = threading.Lock()

    def next_id() -> str:
        with lock:
            return next(ids)

    monkeypatch.setattr("compilewatch.store.outputs.new_run_id", next_id)
    with ThreadPoolExecutor(3) as pool:
        writers = list(pool.map(lambda _: store.create_run(FRESH, EMPTY), range(3)))
    for writer in writers:
        writer.close()
    assert {w.run.id for w in writers} == {f"20260102-030405-000{n}" for n in (1, 2, 3)}
    assert all((w.path / "run.json").exists() for w in writers)
    assert not list(store.root.glob(".new-*"))


def test_what_a_killed_process_left_of_a_new_run_is_deleted_by_the_next(store: Store) -> None:
    left, young, busy = (store.root / f".new-2026010{n}-000000-0000" for n in (1, 2, 3))
    for folder in (left, young, busy):
        folder.mkdir(parents=True)
    with (busy / "results.jsonl").open("ab") as file:
        assert lock(file.fileno(), seconds=0.0)
        for folder in (left, busy):
            os.utime(folder, (0, 0))
        store.create_run(FRESH, EMPTY).close()
    assert [folder.exists() for folder in (left, young, busy)] == [False, True, True]


def test_a_run_is_found_by_id_beginning_path_and_as_latest(store: Store, stored: Stored) -> None:
    first, second = stored(factories.result("A")), stored(factories.result("B"))
    assert store.open().run.id == second
    assert store.open("latest").run.id == second
    assert store.open(first).run.id == first
    assert store.open(second[:-1]).run.id == second
    assert store.open(store.root / first).run.id == first
    assert (store.root / "latest").readlink() == Path(second)
    assert [s.run.id for s in store.runs()] == [second, first]
    (store.root / "latest").unlink()
    assert store.open("latest").run.id == second
    interrupted = stored(state="interrupted")
    stored()
    with store.create_run(FRESH, EMPTY):
        assert store.unfinished().run.id == interrupted


def test_an_unknown_run_is_one_line_and_an_empty_folder_says_how_to_start(
    store: Store, stored: Stored
) -> None:
    with pytest.raises(UsageError, match=r"no runs in .* start one with `compilewatch sweep`"):
        store.open()
    with pytest.raises(UsageError, match="nothing to resume"):
        store.unfinished()
    assert store.runs() == ()
    _, run_id = stored(), stored()
    for reference, message in {
        "20990101": "no run '20990101'",
        "2": "several runs begin with '2'",
        "/nowhere/at-all": "is not a run",
        "..": "is not a run",
        run_id[:-1] + "g": f"did you mean .*{run_id}",
    }.items():
        with pytest.raises(UsageError, match=message):
            store.open(reference)


def test_a_run_that_cannot_be_read_does_not_hide_the_others(store: Store, stored: Stored) -> None:
    good, damaged, newer = stored(), stored(), stored()
    (store.root / damaged / "run.json").write_bytes(b"\x00")
    run = factories.run(newer, schema_version=RUN_VERSION + 1)
    (store.root / newer / "run.json").write_bytes(msgspec.json.encode(run))
    (store.root / "notes").mkdir()
    runs, problems = store.scan()
    assert [s.run.id for s in runs] == [good]
    assert len(problems) == 2
    assert any("upgrade" in p for p in problems)
    assert any("damaged" in p for p in problems)
    for reference in (damaged, damaged[:-1]):
        with pytest.raises(StoreError, match=r"run\.json"):
            store.open(reference)


def test_a_sink_writes_and_sees_complete_files_of_its_run_and_no_others(
    store: Store, stored: Stored
) -> None:
    run_id = stored()
    files = store.files(run_id)
    files.write("report/models/index.html", b"<p>")
    assert (store.root / run_id / "report/models/index.html").read_bytes() == b"<p>"
    assert files.path("report/models/index.html").read_bytes() == b"<p>"
    for name in ("../outside", "/etc/x", "a/../../b", ""):
        with pytest.raises(StoreError, match="outside"):
            files.write(name, b"")
    (store.root / run_id / ".scratch-1").mkdir()
    (store.root / run_id / ".scratch-1" / "x").touch()
    (store.root / run_id / "report" / ".index.html.1.tmp").touch()
    assert files.names() == (
        *(f"logs/{run_id}.jsonl", "report/models/index.html"),
        *("results.jsonl", "run.json"),
    )


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "outputs"):
        with pytest.raises(StoreError, match="choose another"):
            Store(root).create_run(FRESH, EMPTY)
    root = tmp_path / "outputs"
    root.mkdir()
    root.chmod(0o555)
    own = os.geteuid()
    try:
        if own == 0:  # file permissions mean nothing to root: be nobody for a while
            os.seteuid(65534)
        with pytest.raises(StoreError, match=r"permission denied; .*--output"):
            Store(root).create_run(FRESH, EMPTY)
    finally:
        os.seteuid(own)
