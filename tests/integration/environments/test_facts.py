"""Facts of an interpreter are asked for once, and again when something about it changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.environments import Environments, Interpreter
from compilewatch.errors import InterpreterError

Ask = Callable[..., int]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """How often a fact of an interpreter with a folder of packages was found, as the fact."""
    (tmp_path / "venv" / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (tmp_path / "venv" / "bin").mkdir()
    for name in ("bin/python", "pyvenv.cfg"):
        (tmp_path / "venv" / name).write_text("")
    chosen = Interpreter(executable=str(tmp_path / "venv" / "bin" / "python"))
    monkeypatch.setitem(environments.INTERPRETERS, "x", chosen)
    count = iter(range(1, 100))

    def asked(fresh: bool = False) -> int:
        known = Environments(tmp_path / "cache")
        return known.remembered("count", "x", int, lambda _: next(count), fresh=fresh)[0]

    return asked


def test_a_fact_is_kept_with_its_time(ask: Ask, tmp_path: Path) -> None:
    known = Environments(tmp_path / "cache")
    value, checked_at = known.remembered("n", "x", int, lambda _: 1)
    assert value == 1
    assert checked_at.endswith("Z")
    assert known.remembered("n", "x", int, lambda _: 2) == (value, checked_at)


def _later(path: Path) -> None:
    os.utime(path, (2e9, 2e9))


@pytest.mark.parametrize("changed", ["bin/python", "pyvenv.cfg", "lib/python3.11/site-packages"])
def test_a_change_of_the_interpreter_describes_again(
    ask: Ask, tmp_path: Path, changed: str
) -> None:
    assert (ask(), ask()) == (1, 1)
    _later(tmp_path / "venv" / changed)
    assert (ask(), ask()) == (2, 2)


def test_what_a_worker_would_see_counts(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask() == 1
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask() == 2
    _later(tmp_path)
    assert ask() == 3


def test_fresh_forgotten_and_damaged_describe_again(ask: Ask, tmp_path: Path) -> None:
    assert ask() == 1
    assert ask(fresh=True) == 2
    Environments(tmp_path / "cache").forget("x")
    assert ask() == 3
    (path,) = (tmp_path / "cache").rglob("count.json")
    path.write_text("{")
    assert ask() == 4


def test_a_cache_that_cannot_be_written_costs_time_only(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert (ask(), ask()) == (1, 2)


def test_a_failure_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    python.chmod(0o755)
    monkeypatch.setitem(environments.INTERPRETERS, "other", Interpreter(executable=str(python)))
    with pytest.raises(InterpreterError):
        Environments(tmp_path).describe("other")
    assert not list((tmp_path / "facts").rglob("*.json"))
