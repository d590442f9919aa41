from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from compilewatch.records import Mode, Phase, Result, Status, Target
from compilewatch.store import Store, index, is_reusable
from tests import factories

Stored = Callable[..., str]


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was just written has an index."""
    monkeypatch.setattr(index, "SETTLED_NANOSECONDS", -1)


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

    results = store.lookup_many(["key of A", "key of B", "key of C"])

    assert {key: answer.result.detail for key, answer in results.items()} == {
        "key of A": "second",
        "key of B": "only",
    }
    assert results["key of A"].run == newer


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
    results = store.lookup_many(["key of A"])["key of A"]
    assert (results.run, results.result.detail) == (older, "old")


def test_a_file_that_was_edited_in_place_is_read_again(store: Store, stored: Stored) -> None:
    run_id = stored(*(factories.result(name, detail="xx") for name in ("A", "B")))
    assert len(store.lookup_many(["key of A", "key of B"])) == 2
    path = store.root / run_id / "results.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    time.sleep(0.02)
    # As long as before, and the other way round: every offset of the index is now wrong.
    path.write_bytes(second + first)
    results = store.lookup_many(["key of A", "key of B"])
    assert {k: a.result.request.model.name for k, a in results.items()} == {
        "key of A": "A",
        "key of B": "B",
    }


def test_a_repair_in_place_is_seen(store: Store, stored: Stored) -> None:
    """`cp -p` onto a file keeps its inode, and here its size and its time of modification."""
    run_id = stored(factories.result("A"), factories.result("B"))
    path = store.root / run_id / "results.jsonl"
    right, times = path.read_bytes(), path.stat()
    path.write_bytes(right.replace(b'{"request"', b'["request"', 1))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    results, damaged = store.outcomes([run_id])
    assert [outcome.model for outcome in results] == ["B"]
    assert [line.partition(": ")[0] for line in damaged] == [f"{path}:1"]
    time.sleep(0.02)  # the clock of a file system ticks every few milliseconds
    path.write_bytes(right)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    results, damaged = store.outcomes([run_id])
    assert ([outcome.model for outcome in results], damaged) == (["A", "B"], [])


def test_a_damaged_index_is_made_anew_wherever_the_damage_is(store: Store, stored: Stored) -> None:
    run_id = stored(*(factories.result(f"M{number}") for number in range(5)))
    keys = [f"key of M{number}" for number in range(5)]
    right = store.lookup_many(keys), store.outcomes([run_id])
    path = store.root / run_id / ".index"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert (store.lookup_many(keys), store.outcomes([run_id])) == right
        path.write_bytes(whole[:place])
        assert (store.lookup_many(keys), store.outcomes([run_id])) == right


def test_an_index_of_another_version_is_made_anew(
    store: Store, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = stored(factories.result("A"))
    with monkeypatch.context() as other:
        other.setattr(index, "VERSION", index.VERSION + 1)
        store.lookup_many(["key of A"])
    first_index = (store.root / run_id / ".index").read_bytes()
    assert set(store.lookup_many(["key of A"])) == {"key of A"}
    assert (store.root / run_id / ".index").read_bytes() != first_index


def test_a_file_that_was_just_written_has_no_index_yet(
    store: Store, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLED_NANOSECONDS", 10**12)
    run_id = stored(factories.result("A"))
    assert set(store.lookup_many(["key of A"])) == {"key of A"}
    assert not (store.root / run_id / ".index").exists()


def test_without_a_place_for_the_index_everything_is_known_all_the_same(
    store: Store, stored: Stored
) -> None:
    run_id = stored(factories.result("A"))
    (store.root / run_id / ".index").mkdir()
    assert set(store.lookup_many(["key of A"])) == {"key of A"}


def test_it_knows_what_each_run_found_and_the_later_line_of_two(
    store: Store, stored: Stored
) -> None:
    train = Target(mode=Mode.TRAIN)
    first = stored(factories.result("A"), factories.result("A", target=train))
    second = stored(factories.result("A", status=Status.TIMEOUT), factories.result("A"))
    third = stored(factories.result("A", status=Status.SKIPPED, phase=Phase.SETUP))
    outcomes = [
        (first, "A", "dynamo", "pass", "done"),
        (first, "A", "dynamo/train", "pass", "done"),
        (second, "A", "dynamo", "pass", "done"),
    ]
    assert store.outcomes([second, first]) == (outcomes, [])
    store.delete_run(store.open(first))
    assert [lines.run for lines in store.outcomes([first, third])[0]] == [third]
    assert store.outcomes([]) == ([], [])


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
