import os
import time
from typing import Any

import msgspec
import pytest

from compilewatch.records import Mode, Phase, Result, Status, Target
from compilewatch.store import Store, index, is_reusable
from tests import example_run, factories
from tests.unit.store.conftest import Stored, results


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was just written has an index."""
    monkeypatch.setattr(index, "SETTLED_NANOSECONDS", -1)


def failed(phase: Phase, kind: str | None = None, **fields: Any) -> Result:
    error = factories.error(type=kind) if kind else None
    return factories.result(status=Status.ERROR, phase=phase, error=error, **fields)


def test_a_result_lasts_unless_the_day_made_it() -> None:
    lasting = [
        factories.result(),
        factories.result(breaks=(factories.graph_break(),)),
        factories.result(status=Status.MISMATCH),
        factories.result(status=Status.UNSUPPORTED, phase=Phase.CREATE),
        failed(Phase.COMPILE),
        failed(Phase.CREATE),
        *example_run.forecasts()[:2],
    ]
    passing = [
        *(factories.result(status=s) for s in (Status.TIMEOUT, Status.OOM, Status.CRASHED)),
        factories.result(status=Status.SKIPPED, phase=Phase.SETUP),
        failed(Phase.SETUP),
        failed(Phase.CREATE, "builtins.MemoryError"),
        failed(Phase.INPUTS, "OSError"),
        example_run.forecasts()[2],
    ]
    assert [is_reusable(result) for result in lasting] == [True] * len(lasting)
    assert [is_reusable(result) for result in passing] == [False] * len(passing)


def known(store: Store, *models: str) -> dict[str, str]:
    """The models that have a stored result, each with what the result says."""
    found = store.lookup_many([f"key of {model}" for model in models])
    return {stored.result.request.model.name: stored.result.detail for stored in found.values()}


def test_the_newest_lasting_result_is_found(store: Store, stored: Stored) -> None:
    assert known(store, "A") == {}
    assert not store.root.exists()
    older = stored(factories.result("A", detail="first"), factories.result("B", detail="only"))
    newer = stored(factories.result("A", detail="second"))
    stored(factories.result("A", status=Status.TIMEOUT))
    assert known(store, "A", "B", "C") == {"A": "second", "B": "only"}
    assert store.lookup_many(["key of A"])["key of A"].run == newer
    (store.root / newer).rename(store.root.parent / "away")
    assert known(store, "A") == {"A": "first"}
    assert store.lookup_many(["key of A"])["key of A"].run == older


def test_what_was_appended_since_is_seen_once_its_line_is_complete(
    store: Store, stored: Stored
) -> None:
    run_id = stored(*results("A"))
    assert set(known(store, "A", "B")) == {"A"}
    line = msgspec.json.encode(factories.result("B")) + b"\n"
    for part, models in ((line[:50], {"A"}), (line[50:], {"A", "B"})):
        with (store.root / run_id / "results.jsonl").open("ab") as file:
            file.write(part)
        assert set(known(store, "A", "B")) == models


def test_a_file_that_was_repaired_in_place_is_read_again(store: Store, stored: Stored) -> None:
    """`cp -p` onto a file keeps its inode, and here its size and its time of modification."""
    run_id = stored(*results("A", "B"))
    path = store.root / run_id / "results.jsonl"
    right, times = path.read_bytes(), path.stat()

    def write(data: bytes) -> tuple[list[str], list[str]]:
        time.sleep(0.02)  # the clock of a file system ticks every few milliseconds
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        outcomes, damaged = store.outcomes([run_id])
        return [outcome.model for outcome in outcomes], [d.partition(": ")[0] for d in damaged]

    assert write(right.replace(b'{"', b'["', 1)) == (["B"], [f"{path}:1"])
    assert write(right) == (["A", "B"], [])


def test_an_index_that_cannot_be_decoded_is_made_anew(store: Store, stored: Stored) -> None:
    run_id = stored(*results("M0", "M1", "M2"))
    keys = [f"key of M{number}" for number in range(3)]
    right = store.lookup_many(keys), store.outcomes([run_id])
    path = store.root / run_id / ".index"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (whole[:place], whole[:place] + bytes(len(whole) - place)):
            path.write_bytes(damaged)
            assert (store.lookup_many(keys), store.outcomes([run_id])) == right


def test_an_index_of_another_version_is_made_anew_and_none_of_what_was_just_written(
    store: Store, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store.root / stored(*results("A")) / ".index"
    with monkeypatch.context() as other:
        other.setattr(index, "VERSION", index.VERSION + 1)
        assert set(known(store, "A")) == {"A"}
    first_index = path.read_bytes()
    assert set(known(store, "A")) == {"A"}
    assert path.read_bytes() != first_index
    path.unlink()
    path.mkdir()  # there is no place for one
    assert set(known(store, "A")) == {"A"}
    monkeypatch.setattr(index, "SETTLED_NANOSECONDS", 10**12)
    young = store.root / stored(*results("B")) / ".index"
    assert set(known(store, "B")) == {"B"}
    assert not young.exists()


def test_it_knows_what_each_run_found_and_the_later_line_of_two(
    store: Store, stored: Stored
) -> None:
    train = Target(mode=Mode.TRAIN)
    first = stored(factories.result("A"), factories.result("A", target=train))
    second = stored(factories.result("A", status=Status.TIMEOUT), factories.result("A"))
    third = stored(factories.result("A", status=Status.SKIPPED, phase=Phase.SETUP))
    outcomes = [
        ("A", "dynamo", (first, "pass", "done")),
        ("A", "dynamo/train", (first, "pass", "done")),
        ("A", "dynamo", (second, "pass", "done")),
    ]
    assert store.outcomes([second, first]) == (outcomes, [])
    store.delete_run(store.open(first))
    assert [lines.earlier.run for lines in store.outcomes([first, third])[0]] == [third]
    assert store.outcomes([]) == ([], [])
