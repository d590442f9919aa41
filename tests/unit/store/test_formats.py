from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.records import RESULT_VERSION, Result, Run, XlaDetail
from compilewatch.store import formats
from compilewatch.store.formats import DamagedError, decode
from tests import factories


def _encoded(**changes: Any) -> bytes:
    values = msgspec.json.decode(msgspec.json.encode(factories.result()))
    return msgspec.json.encode({**values, **changes})


def test_a_record_comes_back_as_it_was() -> None:
    result = factories.result(breaks=(factories.graph_break(),))
    assert decode(msgspec.json.encode(result), Result) == result


def test_a_result_without_what_was_recorded_later_is_read() -> None:
    values = msgspec.json.decode(_encoded())
    del values["capture"], values["request"]["target"]["nested_graph_breaks"]
    read = decode(msgspec.json.encode(values), Result)
    assert (read.capture, read.request.target.nested_graph_breaks) == (None, None)


def test_a_newer_version_is_rejected_even_where_it_would_decode() -> None:
    with pytest.raises(StoreError, match=r"newer compilewatch .* upgrade"):
        decode(_encoded(schema_version=RESULT_VERSION + 1), Result)


def test_a_newer_version_is_rejected_where_it_would_not_decode() -> None:
    with pytest.raises(StoreError, match="upgrade"):
        decode(_encoded(schema_version=RESULT_VERSION + 1, status={"new": "shape"}), Result)


def test_an_old_version_goes_through_its_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(values: dict[str, Any]) -> dict[str, Any]:
        values["detail"] = values.pop("message")
        return values

    monkeypatch.setitem(formats.VERSIONS, Result, RESULT_VERSION + 1)
    monkeypatch.setitem(formats.MIGRATIONS, ("Result", RESULT_VERSION), rename)
    migrated = decode(_encoded(message="from before"), Result)
    assert migrated.detail == "from before"
    assert migrated.schema_version == RESULT_VERSION + 1


def test_a_result_of_the_first_version_is_read() -> None:
    old = {"schema_version": 1, "details": None, "export": None, "performance": None}
    xla = msgspec.to_builtins(XlaDetail(fallbacks={"aten::nonzero": 3}))
    del xla["type"]
    attempt = {"tier": "fake", "status": "error", "phase": "eager", "durations": {}}
    attempts = [
        {**attempt, "reason": "fake_unsupported: in eager, a value was read"},
        {**attempt, "reason": "exit code 1: in eager"},
    ]
    read = decode(_encoded(**old, xla=xla, attempts=attempts), Result)
    assert read.schema_version == RESULT_VERSION
    assert read.details == XlaDetail(fallbacks={"aten::nonzero": 3})
    assert [(a.code.value, a.reason) for a in read.attempts] == [
        ("fake_unsupported", "in eager, a value was read"),
        ("transient", "exit code 1: in eager"),
    ]


def test_a_merged_run_of_the_first_version_still_lacks_its_shards() -> None:
    values = msgspec.to_builtins(factories.run(settings={"missing_shards": ["1/2"]}))
    del values["missing_shards"]
    read = decode(msgspec.json.encode({**values, "schema_version": 1}), Run)
    assert (read.missing_shards, read.settings) == (("1/2",), {})


def test_an_old_version_without_migration_is_rejected() -> None:
    with pytest.raises(StoreError, match="old compilewatch"):
        decode(_encoded(schema_version=0), Result)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema_version": 1}', b'{"a": "\xff"}']
)
def test_what_is_no_record_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(data, Result)


def test_a_target_stored_before_environments_was_evaluated_in_the_default_one() -> None:
    known = msgspec.to_builtins(factories.result())
    del known["request"]["target"]["environment"]
    known["request"]["environment"] = "default"
    assert decode(msgspec.json.encode(known), Result) == factories.result()
