"""`compilewatch profile neuron` on doubles of neuron-profile, neuron-explorer and torch_neuronx."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doubles import BIN, FOLDER, with_python_path
from tests.integration.extras.profiles.cli.test_train import MODEL
from tests.team import PROGRAM

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(BIN), os.environ["PATH"]))
        return subprocess.run(
            [str(PROGRAM), "profile", "neuron", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"PATH": path, "NO_COLOR": "1"} | variables,
            timeout=110,
        )

    return call


@pytest.fixture
def neff(tmp_path: Path) -> Path:
    (tmp_path / "graph.neff").write_text("neff")
    return tmp_path / "graph.neff"


def test_a_neff_is_captured_summarised_and_converted(run: Run, neff: Path) -> None:
    captured = run("capture", "graph.neff", "--json")
    assert json.loads(captured.stdout)["tool"] == "neuron-explorer"
    summary = json.loads(run("summarize", "graph.ntff", "--json").stdout)["summary"]
    assert summary["mfu_estimated_percent"] == 0.31
    assert "spill_reload_bytes" in run("summarize", "graph.ntff").stdout
    assert run("view", "graph.ntff").returncode == 0
    assert (neff.parent / "profile.pftrace").read_text() == "perfetto"
    assert "total_time" in run("view", "graph.ntff", "--format", "summary-text").stdout


@pytest.mark.parametrize("tool", ["neuron-profile", "neuron-explorer"])
def test_each_tool_gets_the_session_by_its_own_flag(
    run: Run, tmp_path: Path, neff: Path, tool: str
) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    (only / tool).symlink_to(BIN / tool)
    (tmp_path / "graph.ntff").write_text("ntff")
    path = os.pathsep.join((str(only), "/usr/bin", "/bin"))
    done = run("summarize", ".", "--json", PATH=path)
    assert json.loads(done.stdout)["tool"] == tool


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        ("double: fail", None, "exit status 1: NRT_EXEC_BAD_INPUT: the NEFF cannot be loaded"),
        ("double: nothing", None, "recorded nothing in graph.ntff"),
        ("neff", "/usr/bin:/bin", "install aws-neuronx-tools"),
    ],
)
def test_a_capture_that_fails_is_one_line(
    run: Run, neff: Path, text: str, path: str | None, said: str
) -> None:
    neff.write_text(text)
    done = run("capture", "graph.neff", **({"PATH": path} if path else {}))
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]


def test_an_empty_session_is_one_line(run: Run, tmp_path: Path, neff: Path) -> None:
    assert "contains neither *.ntff nor ntrace.pb" in run("summarize", ".").stderr
    (tmp_path / "graph.ntff").write_text("")
    assert "graph.ntff is empty: nothing was captured" in run("summarize", ".").stderr


# Only the environment with torch_xla can run the named blocks; torch_neuronx is a double there.
@pytest.mark.xla
@pytest.mark.parametrize("kind", ["trace", pytest.param("operator", marks=pytest.mark.matrix)])
def test_a_model_is_captured_in_named_blocks(run: Run, tmp_path: Path, kind: str) -> None:
    (tmp_path / "tiny.py").write_text(MODEL)
    done = run(
        *("capture", "./tiny.py:build", "--environment", "xla", "--json"),
        *("--type", kind, "--steps", "3", "--logdir", "logs", "--port", "9013", "--keep-working"),
        PYTHONPATH=with_python_path(FOLDER),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["blocks"] == {"model_build": 3, "loss_backward": 3, "optimizer_step": 3}
    (arguments,) = (tmp_path / "logs" / "plugins" / "neuron").rglob("arguments.json")
    given = json.loads(arguments.read_text())
    assert (given["port"], given["profile_type"], given["ms_duration"]) == (9013, kind, 15000)
    assert given["delete_working"] is False
    assert ("neuron_framework_op.json" in "".join(found["files"])) == (kind == "operator")
