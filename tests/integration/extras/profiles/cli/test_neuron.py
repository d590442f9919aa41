"""`compilewatch profile neuron` on doubles of neuron-explorer and torch_neuronx."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.doubles import BIN, FOLDER, with_python_path
from tests.integration.extras.profiles.cli.test_train import MODEL
from tests.team import run_here


@pytest.fixture(autouse=True)
def neff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiled model in a folder with the doubles' tools on the path."""
    monkeypatch.setenv("PATH", str(BIN), prepend=os.pathsep)
    (tmp_path / "graph.neff").write_text("neff")
    return tmp_path / "graph.neff"


def run(neff: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_here(neff.parent, {"NO_COLOR": "1"}, "profile", "neuron", *arguments)


def test_a_neff_is_captured_summarised_and_converted(neff: Path) -> None:
    captured = run(neff, "capture", "graph.neff", "--json")
    assert json.loads(captured.stdout)["tool"] == "neuron-explorer"
    summary = json.loads(run(neff, "summarize", "graph.ntff", "--json").stdout)["summary"]
    assert summary["mfu_estimated_percent"] == 0.31
    assert "spill_reload_bytes" in run(neff, "summarize", "graph.ntff").stdout
    assert run(neff, "view", "graph.ntff").returncode == 0
    assert (neff.parent / "profile.pftrace").read_text() == "perfetto"
    assert "total_time" in run(neff, "view", ".", "--format", "summary-text").stdout


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        ("capture graph.neff", "double: fail", "exit status 1: NRT_EXEC_BAD_INPUT"),
        ("capture graph.neff", "double: nothing", "recorded nothing in graph.ntff"),
        ("capture graph.neff", "no tools", "install aws-neuronx-tools"),
        ("summarize none", "", "contains neither *.ntff nor ntrace.pb"),
        ("summarize empty", "", "graph.ntff is empty: nothing was captured"),
    ],
)
def test_a_capture_that_fails_or_an_empty_session_is_one_line(
    neff: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, text: str, said: str
) -> None:
    neff.write_text(text)
    for name in ("none", "empty"):
        (neff.parent / name).mkdir()
    (neff.parent / "empty" / "graph.ntff").write_text("")
    if text == "no tools":
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    done = run(neff, *arguments.split())
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


# Only the environment with torch_xla can run the named blocks; torch_neuronx is a double there.
@pytest.mark.xla
def test_a_model_is_captured_in_named_blocks(
    neff: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.py").write_text(MODEL)
    monkeypatch.setenv("PYTHONPATH", with_python_path(FOLDER))
    done = run(
        neff,
        *("capture", "./tiny.py:build", "--environment", "xla", "--json"),
        *("--type", "operator", "--steps", "3", "--port", "9013", "--keep-working"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["blocks"] == {"model_build": 3, "loss_backward": 3, "optimizer_step": 3}
    (arguments,) = (tmp_path / "logs" / "plugins" / "neuron").rglob("arguments.json")
    given = json.loads(arguments.read_text())
    assert (given["port"], given["profile_type"], given["ms_duration"]) == (9013, "operator", 15000)
    assert given["delete_working"] is False
    assert "neuron_framework_op.json" in "".join(found["files"])
