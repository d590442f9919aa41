"""Facts of an interpreter are asked for once, and again when something about it changes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.environments import Environments, Interpreter

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
        value, time = known.remembered("count", "x", int, lambda _: next(count), fresh=fresh)
        assert time.endswith("Z")
        return value

    return asked


def test_a_fact_is_kept_until_the_interpreter_or_what_a_worker_would_see_changes(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(path: Path) -> None:
        os.utime(path, (2e9, 2e9))

    changes: list[Callable[[], object]] = [
        lambda: later(tmp_path / "venv" / "bin" / "python"),
        lambda: later(tmp_path / "venv" / "pyvenv.cfg"),
        lambda: later(tmp_path / "venv" / "lib" / "python3.11" / "site-packages"),
        lambda: monkeypatch.setenv("PYTHONPATH", str(tmp_path)),
        lambda: later(tmp_path),
        lambda: Environments(tmp_path / "cache").forget("x"),
        lambda: next((tmp_path / "cache").rglob("count.json")).write_text("{"),
    ]
    assert (ask(), ask()) == (1, 1)
    for times, change in enumerate(changes, start=2):
        change()
        assert (ask(), ask()) == (times, times)
    assert ask(fresh=True) == len(changes) + 2


def test_a_cache_that_cannot_be_written_costs_time_only(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert (ask(), ask()) == (1, 2)
