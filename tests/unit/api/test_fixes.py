"""`compilewatch.fix` without a search: what it rejects, and what it says without the extra."""

from __future__ import annotations

from typing import Any

import pytest

import compilewatch
from compilewatch import extras
from compilewatch.errors import MissingExtraError, UsageError


def test_without_the_extra_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "is_here", lambda _: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'compilewatch\[fixes\]'"):
        compilewatch.fix("BertModel")


def test_an_object_is_rejected_with_what_to_pass() -> None:
    givens: list[Any] = [object(), lambda: None]
    for given in givens:
        with pytest.raises(UsageError, match="by its name"):
            compilewatch.fix(given)


def test_another_mode_is_rejected() -> None:
    with pytest.raises(UsageError, match="mode is 'eval' or 'train'"):
        compilewatch.fix("BertModel", mode="test")
