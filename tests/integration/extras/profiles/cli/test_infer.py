"""`profile infer` and `profile compare` as users run them."""

import csv
import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from compilewatch.extras.profiles.check import INFERENCE_FILES, check_profiles
from compilewatch.extras.profiles.report import PAGE
from compilewatch.extras.profiles.store import PROFILES_FILE, SAMPLES_FILE
from tests.team import PROGRAM, Compilewatch

pytestmark = pytest.mark.torch

NET = """
import os
import time
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        scale = y.sum().item()  # breaks
        return self.linear(y) * scale

class Pair(torch.nn.Module):
    def forward(self, x, y):
        return x.sum() + y.sum()

class Dies(Net):
    def forward(self, x):
        os._exit(9)

class Hangs(Net):
    def forward(self, x):
        time.sleep(1000)

def none():
    raise RuntimeError("nothing to build")

def inputs():
    return {"x": torch.ones(3, 5, 8)}
"""
BREAK = NET.splitlines().index("        scale = y.sum().item()  # breaks") + 1
FAST = ("--rounds", "2", "--runs", "2", "--batch-sizes")
EAGER = ("--targets", "eager")


@pytest.fixture(autouse=True)
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


# Compiles a model with Inductor: the only test of subjects, rounds and files together.
@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_a_profile_from_the_command_to_the_comparison(
    compilewatch: Compilewatch, tmp_path: Path
) -> None:
    done = compilewatch("profile", "infer", "./net.py:Net", *FAST, "4", "--trace")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("Target", "Speed-up", "GB0124", f"net.py:{BREAK}", "Best batch", "bottleneck"):
        assert part in done.stdout
    assert "Setting capture_scalar_outputs: PyTorch suggests it" in done.stdout
    folder = (tmp_path / "outputs" / "latest-profile").resolve()
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {*INFERENCE_FILES, PROFILES_FILE, SAMPLES_FILE, PAGE} <= names
    assert not any("scratch" in name for name in names)
    (checked,) = check_profiles(folder)
    assert checked.exit_status == 0
    rows = list(csv.DictReader((folder / "detailed_metrics.csv").read_text().splitlines()))
    targets = [(row["target"], row["batch_size"]) for row in rows]
    assert targets == [("eager", "4"), ("inductor", "4")]
    assert all(row["status"] == "pass" and float(row["rss_peak_mb"]) > 0 for row in rows)
    again = compilewatch("profile", "compare", "latest", "latest", "--json")
    found = json.loads(again.stdout)
    assert again.returncode == 3, again.stderr  # two rounds are too few for any claim
    assert {p["judgement"]["verdict"] for p in found["points"]} == {"unclear"}
    assert found["differences"] == []


# Only subjects of their own show that inputs of a file and of a function reach them.
@pytest.mark.matrix
def test_inputs_without_a_batch_dimension_and_those_of_a_function(
    compilewatch: Compilewatch, net: Path, tmp_path: Path
) -> None:
    inputs = tmp_path / "pair.toml"
    inputs.write_text(
        "schema = 1\n[inputs.x]\nvalues = [1.0, 2.0, 3.0]\n[inputs.y]\nvalues = [4.0, 5.0]\n"
    )
    pair = ("./net.py:Pair", *EAGER, "--inputs", "pair.toml")
    done = compilewatch("profile", "infer", *pair, *FAST, "1,4")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the inputs have no batch dimension" in done.stdout
    (tmp_path / "far").mkdir()
    net.rename(tmp_path / "far" / "net.py")
    far = ("net:Net", "--python-path", str(tmp_path / "far"), "--inputs", "net:inputs")
    done = compilewatch("profile", "infer", *far, *EAGER, "--json", *FAST, "3")
    assert done.returncode == 0, done.stdout + done.stderr
    profile = json.loads(done.stdout)
    assert profile["inputs_strategy"] == "factory"
    assert profile["inputs"][0]["shape"] == [3, 5, 8]


@pytest.mark.parametrize(
    ("model", "said", "then"),
    [
        ("none", "nothing to build", "batch 1 ended with error"),
        ("Dies", "crashed: ended with exit code 9", "batch 1 ended with crashed"),
        ("Hangs", "timeout: did not finish within 3 s", "batch 1 ended with timeout"),
    ],
)
def test_a_model_that_fails_dies_or_hangs_is_a_result(
    compilewatch: Compilewatch, tmp_path: Path, model: str, said: str, then: str
) -> None:
    settings = "[deadlines]\ncreate_seconds = 1\ninputs_seconds = 1\neager_seconds = 1\n"
    (tmp_path / "compilewatch.toml").write_text(settings + "compile_seconds = 3\n")
    asked = (f"./net.py:{model}", *EAGER, "--batch-sizes", "1,2", "--inputs", "net:inputs")
    done = compilewatch("profile", "infer", *asked)
    assert done.returncode == 3, done.stdout + done.stderr
    assert said in done.stdout
    assert f"not tried: {then}" in done.stdout
    assert (tmp_path / "outputs" / "latest-profile" / "report.html").is_file()


# A process of its own, as only a signal to the program shows what a CI server's abort leaves.
@pytest.mark.matrix
def test_a_profile_that_is_aborted_leaves_nothing_and_no_message(tmp_path: Path) -> None:
    command = [str(PROGRAM), "profile", "infer", "./net.py:Hangs", *EAGER, "--output", "outputs"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as program:
        while not list(tmp_path.glob("outputs/*/.scratch-*/eager-1/stdout")):
            assert program.poll() is None
            time.sleep(0.05)
        program.send_signal(signal.SIGTERM)
        _, said = program.communicate(timeout=60)
    assert program.returncode == 128 + signal.SIGINT
    assert "did not" not in said
    assert not list(tmp_path.glob("outputs/profile-*"))


def test_wrong_input_is_one_line(compilewatch: Compilewatch, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text,labels\na,1\n")
    for arguments, said in (
        ("infer ./net.py:Net --targets dynamo", "known: eager"),
        ("infer ./net.py:Net --batch-sizes a", "such as 1,8,64"),
        ("infer ./net.py:Net --batch-sizes 0,1", "from 1"),
        ("infer ./net.py:Net --label-mappings net.py", "needs --data"),
        ("infer ./net.py:Net --data data.csv --label-column labels", "has no weights"),
        ("compare 20200101", "no profile '20200101'"),
        ("infr", "did you mean 'infer'?"),
    ):
        done = compilewatch("profile", *arguments.split())
        assert done.returncode == 2, done.stdout + done.stderr
        assert said in done.stderr.strip().splitlines()[-1]
    assert not list((tmp_path / "outputs").glob("profile-*"))
