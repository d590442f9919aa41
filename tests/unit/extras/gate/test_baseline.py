"""The file of known breaks: what it holds, and how a session renews it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compilewatch.errors import ConfigError
from compilewatch.extras.gate.baseline import KnownBreak, load, renewed, resolved, save

BRANCH = KnownBreak(file="src/net.py", function="Net.forward", code="GB0170", checks=("t::a",))
PRINT = KnownBreak(
    file="src/net.py", function="Net.forward", code="GB0059", checks=("t::a", "t::b")
)


def by_identity(*known: KnownBreak) -> dict[tuple[str, str, str], KnownBreak]:
    return {each.identity: each for each in known}


def test_what_is_written_is_read_again_and_has_one_order(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    save(one, [BRANCH, PRINT])
    save(other, [PRINT, BRANCH])
    assert one.read_bytes() == other.read_bytes()
    assert load(one) == by_identity(BRANCH, PRINT)
    assert "line" not in json.loads(one.read_text())["breaks"][0]


def test_no_file_is_no_known_break(tmp_path: Path) -> None:
    assert load(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "not a baseline"),
        ('{"schema": 1}', "not a baseline"),
        ('{"schema": 1, "breaks": [{"line": 3}]}', "not a baseline"),
        ('{"schema": 2, "breaks": []}', "upgrade compilewatch"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "compilewatch.baseline.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_break_is_resolved_only_if_every_check_that_met_it_ran() -> None:
    before = by_identity(BRANCH, PRINT)
    assert resolved(before, {"t::a": []}) == (BRANCH,)
    assert resolved(before, {"t::a": [], "t::b": []}) == (PRINT, BRANCH)
    assert resolved(before, {"t::a": [BRANCH], "t::b": []}) == (PRINT,)


def test_what_other_checks_meet_stays_in_a_renewed_baseline() -> None:
    met = KnownBreak(file="src/net.py", function="Net.forward", code="GB0170", places=2)
    after = renewed(by_identity(BRANCH, PRINT), {"t::a": [met]})
    assert sorted(after.values()) == [
        KnownBreak(file="src/net.py", function="Net.forward", code="GB0059", checks=("t::b",)),
        KnownBreak(
            file="src/net.py", function="Net.forward", code="GB0170", places=2, checks=("t::a",)
        ),
    ]
