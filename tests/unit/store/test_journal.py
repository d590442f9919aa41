"""Files that only grow: what is appended is read, and a damaged line costs itself only."""

from pathlib import Path

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.files import DamagedError, lock
from compilewatch.records import RESULT_VERSION, Record, Result
from compilewatch.store import journal
from compilewatch.store.journal import append_record, decode, read_records
from tests import factories


class Line(Record, frozen=True, kw_only=True):
    name: str
    schema_version: int = 3


def names(path: Path) -> list[str]:
    return [record.name for record in read_records(path, Line)[0]]


def test_a_torn_line_stays_a_line_of_its_own_and_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    assert read_records(path, Line) == ((), ())
    append_record(path, Line(name="a"))
    path.write_bytes(path.read_bytes() + b'{"name": "tor')
    assert names(path) == ["a"]
    assert read_records(path, Line)[1] == (f"{path}:2: incomplete last line left out",)
    append_record(path, Line(name="b"))
    assert names(path) == ["a", "b"]
    (note,) = read_records(path, Line)[1]
    assert note.startswith(f"{path}:2: damaged line left out")


def test_a_line_of_a_newer_program_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append_record(path, Line(name="a", schema_version=4))
    with pytest.raises(StoreError, match=r"lines\.jsonl:1: written by a newer compilewatch"):
        read_records(path, Line)


def test_a_writer_waits_for_another_one_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.jsonl"
    append_record(path, Line(name="a"))
    monkeypatch.setattr(journal, "LOCK_SECONDS", 0.0)
    with path.open("rb") as other:
        assert lock(other.fileno(), seconds=0.0)
        with pytest.raises(StoreError, match="is being written by another process"):
            append_record(path, Line(name="b"))
    append_record(path, Line(name="b"))
    assert names(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (RESULT_VERSION + 1, r"newer compilewatch .* upgrade"),
        (RESULT_VERSION - 1, r"old compilewatch .* move the run away"),
        (0, r"old compilewatch .* move the run away"),
    ],
)
def test_another_version_is_rejected_even_where_it_would_decode(version: int, said: str) -> None:
    values = msgspec.json.decode(msgspec.json.encode(factories.result()))
    with pytest.raises(StoreError, match=said):
        decode(msgspec.json.encode({**values, "schema_version": version}), Result)


def test_what_is_no_record_is_damaged() -> None:
    for data in (b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema_version": 2}', b'{"a": "\xff"}'):
        with pytest.raises(DamagedError):
            decode(data, Result)
