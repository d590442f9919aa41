"""Environments of tools: ready only if the current requirements were installed completely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.environments import creation
from compilewatch.errors import InterpreterError


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Requirements of our own, and the commands that would run; `venv` makes its interpreter."""
    (tmp_path / "monitor.txt").write_text("streamlit==1\n")
    monkeypatch.setattr(creation, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(creation, "runs", lambda python: Path(python).exists())
    ran: list[list[str]] = []

    def run_step(
        name: str, folder: Path, command: list[str], observer: Callable[..., None]
    ) -> None:
        ran.append(command)
        if "venv" in command:
            python = folder / "venv" / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.touch()

    monkeypatch.setattr(creation, "run_step", run_step)
    return ran


def test_it_is_created_once(tmp_path: Path, steps: list[list[str]]) -> None:
    tool = creation.Tool("monitor", tmp_path)
    assert not tool.is_ready()
    tool.create()
    assert tool.python == tmp_path / "tools" / "monitor" / "venv" / "bin" / "python"
    assert tool.is_ready()
    count = len(steps)
    tool.create()
    assert len(steps) == count == 3


def test_other_requirements_are_installed_into_it(tmp_path: Path, steps: list[list[str]]) -> None:
    tool = creation.Tool("monitor", tmp_path)
    tool.create()
    (tmp_path / "monitor.txt").write_text("streamlit==2\n")
    assert not tool.is_ready()
    steps.clear()
    tool.create()
    assert [command[3] for command in steps] == ["install", "check"]


def test_requirements_that_change_meanwhile_do_not_count_as_installed(
    tmp_path: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = creation.Tool("monitor", tmp_path)
    before = vars(creation)["run_step"]

    def changes(*arguments: object) -> None:
        before(*arguments)
        (tmp_path / "monitor.txt").write_text("streamlit==2\n")

    monkeypatch.setattr(creation, "run_step", changes)
    tool.create()
    assert not tool.is_ready()


def test_a_failed_installation_is_not_ready(
    tmp_path: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = creation.Tool("monitor", tmp_path)
    tool.create()
    (tmp_path / "monitor.txt").write_text("streamlit==2\n")

    def fails(*_: object) -> None:
        raise InterpreterError("pip failed")

    monkeypatch.setattr(creation, "run_step", fails)
    with pytest.raises(InterpreterError):
        tool.create()
    (tmp_path / "monitor.txt").write_text("streamlit==1\n")
    assert not tool.is_ready()


def test_without_the_checkout_it_says_so(tmp_path: Path, steps: list[list[str]]) -> None:
    tool = creation.Tool("monitor", tmp_path)
    (tmp_path / "monitor.txt").unlink()
    with pytest.raises(InterpreterError, match="install compilewatch again"):
        tool.create()
