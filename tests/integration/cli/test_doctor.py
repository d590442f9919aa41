"""The doctor: what it finds is what would stop a sweep."""

import functools
import http.server
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.api.choose import try_environment
from compilewatch.cli import machine as doctor
from compilewatch.environments import Environments, Interpreter
from tests.integration.launchers.conftest import bare_python
from tests.serving import serving

__all__ = ["bare_python"]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package index of our own, which pip asks; a folder a package."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with serving(handler) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield tmp_path


def test_a_newer_release_is_noted_and_an_index_that_does_not_respond_is_not_up_to_date(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only pip itself shows that its answer is read aright."""
    same = Environments().describe("default").packages["transformers"]
    for package, version in (("torch", "99.0.0"), ("transformers", same)):
        (index / package).mkdir()
        wheel = f"{package}-{version}-py3-none-any.whl"
        (index / package / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    torch, transformers = doctor._releases()
    assert torch.state == "note"
    assert torch.fact.startswith("99.0.0; ")
    assert "make lock" in torch.advice
    assert (transformers.state, transformers.advice) == ("ok", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    checks = list(doctor._releases())
    assert [check.state for check in checks] == ["note", "note"]
    assert all("the package index cannot be reached" in check.fact for check in checks)


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
