from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.errors import StoreError
from compilewatch.store import Store
from compilewatch.store.runs import is_locked
from tests import factories
from tests.unit.store.conftest import EMPTY


def _edit(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines))


def test_a_damaged_line_loses_that_line_only_and_is_named(
    store: Store, stored: Callable[..., str]
) -> None:
    run_id = stored(*(factories.result(name) for name in ("A", "B", "C")))
    path = store.root / run_id / "results.jsonl"
    _edit(path, 2, b'{"half a line')

    reread = store.open(run_id)

    assert [r.request.model.name for r in reread.results()] == ["A", "C"]
    assert len(reread.damaged) == 1
    assert reread.damaged[0].startswith(f"{path}:2: ")


def test_a_torn_last_line_is_left_out_and_named(store: Store, stored: Callable[..., str]) -> None:
    run_id = stored(factories.result("A"), factories.result("B"))
    path = store.root / run_id / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    reread = store.open(run_id)
    assert [r.request.model.name for r in reread.results()] == ["A"]
    assert "torn" in reread.damaged[0]


def test_a_line_that_is_being_written_is_no_damage(store: Store) -> None:
    with store.create_run(factories.run("", state="running"), EMPTY) as writer:
        writer.append([factories.result("A")])
        with (writer.path / "results.jsonl").open("ab") as file:
            file.write(b'{"being wr')
        reading = store.open(writer.run.id)
        assert len(reading.results()) == 1
        assert reading.damaged == ()


def test_a_damaged_run_file_is_rejected_in_one_line(
    store: Store, stored: Callable[..., str]
) -> None:
    run_id = stored(factories.result())
    (store.root / run_id / "run.json").write_text("{")
    with pytest.raises(StoreError) as caught:
        store.open(run_id)
    assert "run.json is damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_without_results_file_is_rejected(store: Store, stored: Callable[..., str]) -> None:
    run_id = stored(factories.result())
    (store.root / run_id / "results.jsonl").unlink()
    with pytest.raises(StoreError, match="the run is incomplete"):
        store.open(run_id).results()


def test_a_run_is_running_while_its_writer_lives_and_interrupted_after(store: Store) -> None:
    writer = store.create_run(factories.run("", state="running"), EMPTY)
    path = writer.path / "results.jsonl"
    assert is_locked(path)
    assert store.open(writer.run.id).run.state == "running"
    writer.close()
    assert not is_locked(path)
    assert store.open(writer.run.id).run.state == "interrupted"


def test_a_plan_is_there_until_the_run_is_finished(store: Store) -> None:
    with store.create_run(factories.run("", state="running"), EMPTY) as writer:
        reading = store.open(writer.run.id)
        assert reading.plan() == EMPTY
        writer.finish("finished")
        with pytest.raises(StoreError, match="cannot be continued"):
            reading.plan()
