"""The doctor: what it finds is what would stop a sweep."""

from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.api.choose import try_environment
from compilewatch.cli import machine as doctor
from compilewatch.environments import Environments, Interpreter
from tests.integration.launchers.conftest import bare_python

__all__ = ["bare_python"]


def test_a_worker_that_ends_is_a_failure_and_not_ok(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the registry's wheel once did: it describes itself well and then does not start."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '9 threads are too many' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setitem(environments.INTERPRETERS, "default", Interpreter(executable=str(python)))
    check = doctor._worker()
    assert check.state == "failed"
    assert "9 threads are too many" in check.fact
    assert "make clean setup" in check.advice


def test_a_worker_that_cannot_fork_is_a_note(
    bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts two real servers: only they count the threads that their imports leave."""
    monkeypatch.setenv("BARE_WORKER_THREADS", "2")
    assert try_environment(Environments(), "bare").threads == 3
    monkeypatch.setitem(environments.INTERPRETERS, "default", environments.INTERPRETERS["bare"])
    check = doctor._worker()
    assert check.state == "note"
    assert "each request starts a new process" in check.advice
