import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.records import RESULT_VERSION
from compilewatch.store import Store
from compilewatch.store.runs import is_locked
from tests import factories
from tests.unit.store.conftest import EMPTY, FRESH, Stored, names, results


def test_a_damaged_line_loses_that_line_only_and_is_named(store: Store, stored: Stored) -> None:
    run = stored(*results("A", "B", "C"))
    path = store.root / run / "results.jsonl"
    first, _, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b'{"half a line\n' + third[:-20])
    reread = store.open(run)
    assert names(reread) == ["A"]
    damaged, torn = reread.damaged
    assert damaged.startswith(f"{path}:2: ")
    assert torn == f"{path}:3: incomplete last line left out"
    newer = factories.result("B", schema_version=RESULT_VERSION + 1)
    path.write_bytes(first + msgspec.json.encode(newer) + b"\n")
    with pytest.raises(StoreError, match=r"results\.jsonl:2: .*upgrade"):
        store.open(run).results()


def test_a_line_that_is_being_written_is_no_damage(store: Store) -> None:
    with store.create_run(FRESH, EMPTY) as writer:
        writer.append(results("A"))
        with (writer.path / "results.jsonl").open("ab") as file:
            file.write(b'{"being wr')
        reading = store.open(writer.run.id)
        assert names(reading) == ["A"]
        assert reading.damaged == ()


def test_a_damaged_run_file_and_a_missing_one_are_one_line(store: Store, stored: Stored) -> None:
    run = stored(*results("A"))
    (store.root / run / "results.jsonl").unlink()
    with pytest.raises(StoreError, match="the run is incomplete"):
        store.open(run).results()
    (store.root / run / "run.json").write_text("{")
    with pytest.raises(StoreError) as caught:
        store.open(run)
    assert "run.json is damaged" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_run_is_running_while_its_writer_lives_and_has_a_plan_until_it_is_finished(
    store: Store,
) -> None:
    writer = store.create_run(FRESH, EMPTY)
    path = writer.path / "results.jsonl"
    assert is_locked(path)
    assert store.open(writer.run.id).run.state == "running"
    writer.close()
    assert not is_locked(path)
    reading = store.open(writer.run.id)
    assert reading.run.state == "interrupted"
    assert reading.plan() == EMPTY
    with store.resume_run(reading) as again:
        again.finish("finished")
    with pytest.raises(StoreError, match="cannot be continued"):
        store.open(writer.run.id).plan()
