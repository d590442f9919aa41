"""Interpreters that are described, and facts about them that are kept."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.environments import Environments, Interpreter, worker_variables
from compilewatch.errors import InterpreterError
from compilewatch.records import HARNESS_VERSION


def test_the_default_environment_is_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Environments().describe("default")
    assert found.name == "default"
    assert found.python_executable == sys.executable
    # The wheel's metadata may leave out what the build calls itself: 2.15.0 and 2.15.0+cu132.
    assert found.packages["torch"].partition("+")[0] == found.torch.partition("+")[0]
    assert found.transformers == found.packages["transformers"]
    assert len(found.torch_git) == 40
    assert found.device == "cpu"
    assert found.harness_version == HARNESS_VERSION
    assert Environments().describe("default").digest == found.digest


def test_an_unknown_environment_is_named_with_the_known() -> None:
    complaint = r"no environment 'tpu'; known: default.*env create tpu --torch VERSION"
    with pytest.raises(InterpreterError, match=complaint):
        Environments().describe("tpu")


NO_TORCH = """exec "{python}" -c "import sys, importlib.util as u; u.find_spec = lambda name: None
from compilewatch.worker.process.describe import main; sys.exit(main(sys.argv[4:]))" "$@"
"""


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (None, r"cannot be run: No such file or directory"),
        ("echo 'No module named compilewatch' >&2; exit 1", r"is broken: No module named compile"),
        ("echo '{{}}'", r"printed nothing that can be read"),
        (NO_TORCH, "has no torch"),
    ],
)
def test_a_broken_interpreter_is_one_line_and_no_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, complaint: str
) -> None:
    path = tmp_path / "python"
    if script is not None:
        path.write_text(f"#!/bin/sh\n{script.format(python=sys.executable)}\n")
        path.chmod(0o755)
    monkeypatch.setitem(environments.INTERPRETERS, "other", Interpreter(executable=str(path)))
    with pytest.raises(InterpreterError, match=complaint) as caught:
        Environments(tmp_path).describe("other")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.json"))


def test_workers_are_single_threaded_offline_and_without_foreign_switches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (
        "TORCH_COMPILE_DISABLE",
        "TORCHDYNAMO_DISABLE",
        "TORCH_LOGS",
        "TORCH_NEURONX_COMPILE_ONLY",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    variables = worker_variables(Environments().interpreter("default"))
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["JE_ARROW_MALLOC_CONF"] == "background_thread:false"
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables["HTTPS_PROXY"] == "http://proxy"
    assert [name for name in variables if name.startswith(environments.CHANGES_ANSWERS)] == [
        "TORCHINDUCTOR_COMPILE_THREADS"
    ]


def test_a_file_that_shadows_torch_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        InterpreterError, match=r"torch\.py is found first as torch and is not PyTorch"
    ):
        Environments().describe("default")


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
