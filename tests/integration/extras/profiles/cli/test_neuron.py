"""`compilewatch profile neuron` on doubles of neuron-explorer and TorchNeuron."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.doubles import BIN, NATIVE, with_python_path
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Describing an environment takes seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def torchneuron(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device, and the double of TorchNeuron in the default environment."""
    (tmp_path / "tiny.py").write_text(MODEL)
    monkeypatch.setenv("NEURON_DOUBLE_CORES", "1")
    monkeypatch.setenv("PYTHONPATH", with_python_path(NATIVE))
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(cache))


@pytest.mark.usefixtures("torchneuron")
def test_a_model_is_captured_in_named_blocks(neff: Path) -> None:
    """Only torch.profiler itself says whether it takes TorchNeuron's configuration and activity."""
    collect = ("--collect", "device", "--collect", "cpu-util")
    model = ("./tiny.py:build", "--environment", "default", "--steps", "2")
    done = run(neff, "capture", *model, *collect, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    session = {Path(name).name: neff.parent / "neuron-profile" / name for name in found["files"]}
    assert {name for name in session if not name.endswith(".neff")} == {
        *("profile_nc_0_session_0.ntff", "cpu_util.pb", "trace.json")
    }
    assert sum(name.endswith(".neff") for name in session) == 2, "forward and backward"
    events = json.loads(session["trace.json"].read_text())["traceEvents"]
    for block in ("model_build", "loss_backward", "optimizer_step"):
        assert sum(event.get("name") == block for event in events) == 2, "no warm-up"


@pytest.mark.usefixtures("torchneuron")
@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("NEURON_RT_INSPECT_ENABLE=1", "unset the variables NEURON_RT_INSPECT_*"),
        ("PYTHONPATH={stub}", "which this environment lacks (ImportError: WRONG PACKAGE)"),
    ],
)
def test_steps_that_cannot_be_captured_are_one_line(
    neff: Path, monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    stub = neff.parent / "stub"
    stub.mkdir()
    (stub / "torch_neuronx.py").write_text("raise ImportError('WRONG PACKAGE')")
    name, _, value = variable.format(stub=stub).partition("=")
    monkeypatch.setenv(name, value, prepend=os.pathsep if name == "PYTHONPATH" else None)
    done = run(neff, "capture", "./tiny.py:build", "--environment", "default", "--steps", "1")
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
