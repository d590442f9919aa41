"""`compilewatch neuron compile`, run as a person runs it, on the double of neuronx-cc."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from compilewatch.records import NeuronDetail
from tests.doubles import BIN, has_ended
from tests.team import PROGRAM, run_here

Compile = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environ() -> dict[str, str]:
    path = os.pathsep.join((str(BIN), os.environ["PATH"]))
    return os.environ | {"PATH": path, "NO_COLOR": "1"}


@pytest.fixture
def run_compile(tmp_path: Path, environ: dict[str, str]) -> Compile:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return run_here(tmp_path, environ | variables, "neuron", "compile", *arguments)

    return run


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run with captures of three models, one of which the compiler refuses."""
    for model, behaviour in (
        ("bert", "ok"),
        ("fft", "error NCC_EVRF001 fft is not supported - Use another operator"),
        ("gpt", "ok"),
    ):
        folder = tmp_path / "run" / "artifacts" / model / "xla"
        folder.mkdir(parents=True)
        (folder / "graph.hlo_module.pb").write_text(f"{model}\ndouble: {behaviour}\n")
    return tmp_path / "run"


def outcomes(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str]]:
    return [(Path(each["hlo"]).parts[-3], each["outcome"]) for each in json.loads(done.stdout)]


def test_every_capture_of_a_run_is_compiled_once(
    run_compile: Compile, run_folder: Path, tmp_path: Path
) -> None:
    done = run_compile("run")
    assert done.returncode == 1
    assert "neuronx-cc 2.27.5334.0+f702b353 for trn1: 3 HLO" in done.stderr
    assert "3 of 3: run/artifacts/gpt/xla/graph.hlo_module.pb: compiled for trn1, " in done.stdout
    failed = "unsupported operator: NCC_EVRF001: fft is not supported - Use another operator"
    assert f"2 of 3: run/artifacts/fft/xla/graph.hlo_module.pb: failed: {failed}" in done.stdout
    folder = run_folder / "artifacts/bert/xla/graph.trn1"
    assert (folder / "graph.neff").stat().st_size > 1024
    found = msgspec.json.decode((folder / "neuron.json").read_bytes(), type=NeuronDetail)
    assert (found.compiled, found.target) == (True, "trn1")
    (tmp_path / "latest").symlink_to("run")
    again = run_compile("latest", "--json")
    assert outcomes(again) == [("bert", "already"), ("fft", "failed"), ("gpt", "already")]
    hlo = "run/artifacts/bert/xla/graph.hlo_module.pb"
    done = run_compile(hlo, "--json", "--target", "trn2", "--output", "made")
    assert outcomes(done) == [("bert", "compiled")]
    assert (tmp_path / "made/graph.trn2/graph.neff").is_file()
    assert not (run_folder / "artifacts/bert/xla/graph.trn2").exists()
    done = run_compile(hlo, hlo.replace("bert", "gpt"), "--output", "made")
    assert done.returncode == 2
    assert "both be written to made/graph.trn1" in done.stderr


def test_interrupted_it_leaves_no_compiler_behind(
    environ: dict[str, str], run_folder: Path, tmp_path: Path
) -> None:
    hlo = run_folder / "artifacts/bert/xla/graph.hlo_module.pb"
    hlo.write_text("double: hang\n")
    command = [str(PROGRAM), "neuron", "compile", str(hlo)]
    mark = hlo.parent / "graph.trn1" / "hanging"
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE) as running:
        while not mark.is_file() or not mark.read_text():
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"interrupted" in said
    assert has_ended(int(mark.read_text()))


def test_what_makes_no_sense_is_an_error_of_one_line(
    run_compile: Compile, run_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for folder, variables, said in (
        ("run", {"PATH": "/usr/bin:/bin"}, "neuronx-cc is neither on PATH"),
        ("run", {"NEURON_DOUBLE": "broken"}, "No module named 'neuronxcc'"),
        ("empty", {}, "empty contains no *.hlo_module.pb"),
    ):
        done = run_compile(folder, **variables)
        assert done.returncode == 2
        assert said in done.stderr
