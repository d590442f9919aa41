from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.records import SCHEMA_VERSION, Result
from compilewatch.store import formats
from compilewatch.store.formats import DamagedError, decode
from tests import factories


def _encoded(**changes: Any) -> bytes:
    values = msgspec.json.decode(msgspec.json.encode(factories.result()))
    return msgspec.json.encode({**values, **changes})


def test_a_record_comes_back_as_it_was() -> None:
    result = factories.result(breaks=(factories.graph_break(),))
    assert decode(msgspec.json.encode(result), Result) == result


def test_a_newer_version_is_refused_even_where_it_would_decode() -> None:
    with pytest.raises(StoreError, match=r"newer compilewatch .* upgrade"):
        decode(_encoded(schema_version=SCHEMA_VERSION + 1), Result)


def test_a_newer_version_is_refused_where_it_would_not_decode() -> None:
    with pytest.raises(StoreError, match="upgrade"):
        decode(_encoded(schema_version=SCHEMA_VERSION + 1, status={"new": "shape"}), Result)


def test_an_old_version_goes_through_its_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(values: dict[str, Any]) -> dict[str, Any]:
        values["detail"] = values.pop("message")
        return values

    monkeypatch.setattr(formats, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setitem(formats.MIGRATIONS, ("Result", SCHEMA_VERSION), rename)
    migrated = decode(_encoded(message="from before"), Result)
    assert migrated.detail == "from before"
    assert migrated.schema_version == SCHEMA_VERSION + 1


def test_an_old_version_without_migration_is_refused() -> None:
    with pytest.raises(StoreError, match="old compilewatch"):
        decode(_encoded(schema_version=SCHEMA_VERSION - 1), Result)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema_version": 1}', b'{"a": "\xff"}']
)
def test_what_is_no_record_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(data, Result)


def test_a_target_stored_before_environments_was_asked_in_the_default_one() -> None:
    known = msgspec.to_builtins(factories.result())
    del known["request"]["target"]["environment"]
    known["request"]["environment"] = "default"
    assert decode(msgspec.json.encode(known), Result) == factories.result()
