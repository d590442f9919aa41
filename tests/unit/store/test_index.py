from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.records import Mode, Phase, Result, Status, Target
from compilewatch.store import Store, index, is_reusable
from compilewatch.store.index import VERSION
from tests import factories

Stored = Callable[..., str]


@pytest.mark.parametrize(
    ("result", "lasting"),
    [
        (factories.result(), True),
        (factories.result(breaks=(factories.graph_break(),)), True),
        (factories.result(status=Status.MISMATCH), True),
        (factories.result(status=Status.ERROR, phase=Phase.COMPILE), True),
        (factories.result(status=Status.ERROR, phase=Phase.CREATE), True),
        (factories.result(status=Status.UNSUPPORTED, phase=Phase.CREATE), True),
        (factories.result(status=Status.ERROR, phase=Phase.SETUP), False),
        (factories.result(status=Status.TIMEOUT), False),
        (factories.result(status=Status.OOM), False),
        (factories.result(status=Status.CRASHED), False),
        (factories.result(status=Status.SKIPPED, phase=Phase.SETUP), False),
        (
            factories.result(
                status=Status.ERROR,
                phase=Phase.CREATE,
                error=factories.error(type="builtins.MemoryError"),
            ),
            False,
        ),
        (
            factories.result(
                status=Status.ERROR, phase=Phase.INPUTS, error=factories.error(type="OSError")
            ),
            False,
        ),
    ],
)
def test_a_result_lasts_unless_the_day_made_it(result: Result, lasting: bool) -> None:
    assert is_reusable(result) is lasting


def test_the_newest_lasting_result_is_found(store: Store, stored: Stored) -> None:
    stored(factories.result("A", detail="first"), factories.result("B", detail="only"))
    newer = stored(factories.result("A", detail="second"))
    stored(factories.result("A", status=Status.TIMEOUT))

    found = store.lookup_many(["key of A", "key of B", "key of C"])

    assert {key: answer.result.detail for key, answer in found.items()} == {
        "key of A": "second",
        "key of B": "only",
    }
    assert found["key of A"].run == newer


def test_nothing_is_known_where_nothing_was_run(store: Store) -> None:
    assert store.lookup_many(["key"]) == {}
    assert not store.root.exists()


def test_what_was_appended_since_is_seen(store: Store, stored: Stored) -> None:
    run_id = stored(factories.result("A"))
    assert set(store.lookup_many(["key of A", "key of B"])) == {"key of A"}
    with (store.root / run_id / "results.jsonl").open("ab") as file:
        file.write(msgspec.json.encode(factories.result("B")) + b"\n")
    assert set(store.lookup_many(["key of A", "key of B"])) == {"key of A", "key of B"}


def test_a_line_is_not_indexed_before_it_is_complete(store: Store, stored: Stored) -> None:
    run_id = stored(factories.result("A"))
    line = msgspec.json.encode(factories.result("B")) + b"\n"
    path = store.root / run_id / "results.jsonl"
    with path.open("ab") as file:
        file.write(line[:50])
    assert set(store.lookup_many(["key of B"])) == set()
    with path.open("ab") as file:
        file.write(line[50:])
    assert set(store.lookup_many(["key of B"])) == {"key of B"}


def test_a_deleted_run_is_forgotten_and_an_older_result_counts(
    store: Store, stored: Stored
) -> None:
    older = stored(factories.result("A", detail="old"))
    newer = stored(factories.result("A", detail="new"))
    assert store.lookup_many(["key of A"])["key of A"].run == newer
    (store.root / newer).rename(store.root.parent / "away")
    found = store.lookup_many(["key of A"])["key of A"]
    assert (found.run, found.result.detail) == (older, "old")


def test_a_file_that_was_edited_in_place_is_read_again(store: Store, stored: Stored) -> None:
    run_id = stored(*(factories.result(name, detail="xx") for name in ("A", "B")))
    assert len(store.lookup_many(["key of A", "key of B"])) == 2
    path = store.root / run_id / "results.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    # As long as before, and the other way round: every offset of the index is now wrong.
    path.write_bytes(second + first)
    found = store.lookup_many(["key of A", "key of B"])
    assert {k: a.result.request.model.name for k, a in found.items()} == {
        "key of A": "A",
        "key of B": "B",
    }


def test_a_line_that_got_damaged_is_no_result(store: Store, stored: Stored) -> None:
    run_id = stored(factories.result("A"), factories.result("B"))
    assert len(store.lookup_many(["key of A", "key of B"])) == 2
    path = store.root / run_id / "results.jsonl"
    path.write_bytes(path.read_bytes().replace(b'{"request"', b'["request"', 1))
    assert set(store.lookup_many(["key of A", "key of B"])) == {"key of B"}


@pytest.mark.parametrize("garbage", [b"no database at all" * 100, b""])
def test_a_damaged_index_is_built_anew(store: Store, stored: Stored, garbage: bytes) -> None:
    stored(factories.result("A"))
    store.lookup_many(["key of A"])
    (store.root / "index.sqlite").write_bytes(garbage)
    assert set(store.lookup_many(["key of A"])) == {"key of A"}


def test_an_index_damaged_in_the_middle_is_built_anew(store: Store, stored: Stored) -> None:
    stored(*(factories.result(f"M{number}") for number in range(500)))
    keys = [f"key of M{number}" for number in range(500)]
    assert len(store.lookup_many(keys)) == 500
    path = store.root / "index.sqlite"
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xaa" * (len(data) - 4096)
    path.write_bytes(data)
    assert len(store.lookup_many(keys)) == 500


def test_an_index_of_another_version_is_built_anew(store: Store, stored: Stored) -> None:
    stored(factories.result("A"))
    store.lookup_many(["key of A"])
    database = sqlite3.connect(store.root / "index.sqlite")
    database.execute("DROP TABLE results")
    database.execute("CREATE TABLE results (other TEXT)")
    database.execute(f"PRAGMA user_version={VERSION + 1}")
    database.commit()
    database.close()
    assert set(store.lookup_many(["key of A"])) == {"key of A"}


def test_it_knows_what_each_run_found_and_the_later_line_of_two(
    store: Store, stored: Stored
) -> None:
    train = Target(mode=Mode.TRAIN)
    first = stored(factories.result("A"), factories.result("A", target=train))
    second = stored(factories.result("A", status=Status.TIMEOUT), factories.result("A"))
    third = stored(factories.result("A", status=Status.SKIPPED, phase=Phase.SETUP))
    assert store.outcomes([second, first]) == [
        (first, "A", "dynamo", "pass", "done"),
        (first, "A", "dynamo/train", "pass", "done"),
        (second, "A", "dynamo", "pass", "done"),
    ]
    store.delete_run(store.open(first))
    assert [found.run for found in store.outcomes([first, third])] == [third]
    assert store.outcomes([]) == []


def test_it_can_be_deleted_and_rebuilt(store: Store, stored: Stored) -> None:
    stored(factories.result("A"))
    store.lookup_many(["key of A"])
    for path in store.root.glob("index.sqlite*"):
        path.unlink()
    store.lookup_many(["key of A"])
    rows = sqlite3.connect(store.root / "index.sqlite").execute("SELECT key FROM results")
    assert rows.fetchall() == [("key of A",)]
    rows.connection.close()


def test_an_index_that_cannot_be_used_is_one_line_that_says_what_to_do(
    store: Store, stored: Stored
) -> None:
    stored(factories.result("A"))
    (store.root / "index.sqlite").mkdir()
    with pytest.raises(StoreError, match="only a cache"):
        store.lookup_many(["key of A"])


def test_a_full_disk_is_called_that(
    store: Store, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(factories.result("A"))
    (store.root / "index.sqlite").mkdir()
    monkeypatch.setattr(index, "ROOM_BYTES", 2**62)
    with pytest.raises(StoreError, match="the disk is full") as caught:
        store.lookup_many(["key of A"])
    assert "delete it" not in str(caught.value)


LOOKUP = """
import sys
from pathlib import Path
from compilewatch.store import Store

keys = [f"key of M{number}" for number in range(300)]
for _ in range(10):
    assert len(Store(Path(sys.argv[1])).lookup_many(keys)) == 300
"""


@pytest.mark.process
def test_processes_that_build_it_at_the_same_time_do_not_disturb_each_other(
    store: Store, stored: Stored
) -> None:
    stored(*(factories.result(f"M{number}") for number in range(300)))
    command = [sys.executable, "-c", LOOKUP, str(store.root)]
    children = [
        subprocess.Popen(command, stderr=subprocess.PIPE, cwd=Path(__file__).parents[3])
        for _ in range(3)
    ]
    errors = [child.communicate()[1].decode() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], errors
