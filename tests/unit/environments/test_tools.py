"""Environments of tools: ready only if the current requirements were installed completely."""

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.environments import creation
from compilewatch.errors import InterpreterError

Step = Callable[[], object]


def nothing() -> None: ...


def test_one_is_made_once_and_again_after_whatever_leaves_it_incomplete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements, ran = tmp_path / "monitor.txt", list[str]()
    requirements.write_text("streamlit==1\n")
    tool = creation.Tool("monitor", tmp_path)
    monkeypatch.setattr(creation, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(creation, "runs", lambda python: Path(python).exists())

    def create(during: Step = nothing) -> list[str]:
        """The commands that run; `venv` makes its interpreter."""

        def run_step(_: str, folder: Path, command: list[str], *_more: object) -> None:
            ran.append(next(word for word in command if word in ("venv", "install", "check")))
            if ran[-1] == "venv":
                tool.python.parent.mkdir(parents=True)
                tool.python.touch()
            during()

        ran.clear()
        monkeypatch.setattr(creation, "run_step", run_step)
        tool.create()
        return ran

    def fails() -> None:
        raise InterpreterError("pip failed")

    assert not tool.is_ready()
    assert create() == ["venv", "install", "check"]
    assert tool.python == tmp_path / "tools" / "monitor" / "venv" / "bin" / "python"
    assert tool.is_ready()
    assert create() == []
    # Other requirements are installed into it; those that change meanwhile do not count.
    requirements.write_text("streamlit==2\n")
    assert not tool.is_ready()
    assert create(lambda: requirements.write_text("streamlit==3\n")) == [
        "install",
        "check",
    ]
    assert not tool.is_ready()
    with pytest.raises(InterpreterError, match="pip failed"):
        create(fails)
    requirements.write_text("streamlit==1\n")
    assert not tool.is_ready()
    requirements.unlink()
    with pytest.raises(InterpreterError, match="install compilewatch again"):
        create()
