from __future__ import annotations

from typing import Any

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.files import DamagedError
from compilewatch.records import RESULT_VERSION, Result
from compilewatch.store.journal import decode
from tests import factories


def _encoded(**changes: Any) -> bytes:
    values = msgspec.json.decode(msgspec.json.encode(factories.result()))
    return msgspec.json.encode({**values, **changes})


def test_a_record_comes_back_as_it_was() -> None:
    result = factories.result(breaks=(factories.graph_break(),))
    assert decode(msgspec.json.encode(result), Result) == result


def test_a_newer_version_is_rejected_even_where_it_would_decode() -> None:
    with pytest.raises(StoreError, match=r"newer compilewatch .* upgrade"):
        decode(_encoded(schema_version=RESULT_VERSION + 1), Result)


def test_a_newer_version_is_rejected_where_it_would_not_decode() -> None:
    with pytest.raises(StoreError, match="upgrade"):
        decode(_encoded(schema_version=RESULT_VERSION + 1, status={"new": "shape"}), Result)


@pytest.mark.parametrize("version", [0, RESULT_VERSION - 1])
def test_an_old_version_is_rejected(version: int) -> None:
    with pytest.raises(StoreError, match=r"old compilewatch .* move the run away"):
        decode(_encoded(schema_version=version), Result)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema_version": 2}', b'{"a": "\xff"}']
)
def test_what_is_no_record_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode(data, Result)
