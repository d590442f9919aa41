"""`profile infer` and `profile compare` as users run them."""

from __future__ import annotations

import csv
import functools
import json
from pathlib import Path

import pytest

from tests.team import Compilewatch, run_here
from tests.warm import WarmLauncher

pytestmark = pytest.mark.torch

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        scale = y.sum().item()
        return self.linear(y) * scale


def build():
    return Net()


"""
FAST = ("--batch-sizes", "1,4", "--rounds", "8", "--runs", "2", "--max-seconds", "2")


@pytest.fixture
def compilewatch(tmp_path: Path, warm_launcher: WarmLauncher) -> Compilewatch:
    """The program in a folder of the test's own, with a profiling server that all tests share."""
    variables = {"NO_COLOR": "1", "COMPILEWATCH_OUTPUT_DIR": str(tmp_path / "outputs")}
    return functools.partial(run_here, tmp_path, variables)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


def folder_of(tmp_path: Path) -> Path:
    return (tmp_path / "outputs" / "latest-profile").resolve()


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_a_profile_from_the_command_to_the_comparison(
    compilewatch: Compilewatch, net: Path, tmp_path: Path
) -> None:
    """Compiles a model with Inductor: the only test of subjects, rounds and files together."""
    fast = (*FAST, "--batch-sizes", "4")
    done = compilewatch("profile", "infer", "./net.py:build", *fast, "--trace")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("Target", "Speed-up", "GB0124", "net.py:12", "Best batch", "Main bottleneck"):
        assert part in done.stdout
    assert "capture_scalar_outputs: 1 → 0 graph breaks" in done.stdout
    folder = folder_of(tmp_path)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        "baseline_metrics.json",
        "baseline_summary_report.txt",
        "detailed_metrics.csv",
        "op_stats.csv",
        "plots/batch_size_comparison.png",
        "plots/metrics_heatmap.png",
        "profiler_traces/stacks.txt",
        "profiler_traces/trace.json",
        "profiles.jsonl",
        "raw_values.json",
        "report.html",
    } <= names
    assert not any("scratch" in name for name in names)
    rows = list(csv.DictReader((folder / "detailed_metrics.csv").read_text().splitlines()))
    assert [(row["target"], row["batch_size"]) for row in rows] == [
        ("eager", "4"),
        ("inductor", "4"),
    ]
    assert all(row["status"] == "pass" and float(row["rss_peak_mb"]) > 0 for row in rows)
    assert json.loads((folder / "profiler_traces" / "trace.json").read_text())["traceEvents"]
    again = compilewatch("profile", "compare", "latest", "latest", "--json")
    found = json.loads(again.stdout)
    assert again.returncode in (0, 3), again.stderr  # 3: a machine too busy for any claim
    assert {p["judgement"]["verdict"] for p in found["points"]} <= {"same", "unclear"}
    assert found["differences"] == []


@pytest.mark.matrix
def test_inputs_without_a_batch_dimension_are_one_sample(
    compilewatch: Compilewatch, net: Path, tmp_path: Path
) -> None:
    """Two tensors of different lengths: one call is measured, and the rest says why not."""
    net.write_text(
        "import torch\n\n\nclass Pair(torch.nn.Module):\n"
        "    def forward(self, x, y):\n        return x.sum() + y.sum()\n\n\n"
        "def build():\n    return Pair()\n"
    )
    inputs = tmp_path / "pair.toml"
    inputs.write_text(
        "schema = 1\n[inputs.x]\nvalues = [1.0, 2.0, 3.0]\n[inputs.y]\nvalues = [4.0, 5.0]\n"
    )
    done = compilewatch(
        *("profile", "infer", "./net.py:build", *FAST),
        *("--targets", "eager", "--inputs", "pair.toml"),
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "the inputs have no batch dimension" in done.stdout


BAD = {
    "unknown target": (("infer", "./net.py:build", "--targets", "dynamo"), "known: eager"),
    "batch of words": (("infer", "./net.py:build", "--batch-sizes", "a"), "such as 1,8,64"),
    "batch of zero": (("infer", "./net.py:build", "--batch-sizes", "0,1"), "from 1"),
    "mappings without data": (
        ("infer", "./net.py:build", "--label-mappings", "net.py"),
        "needs --data",
    ),
    "column": (("infer", "./net.py:build", "--data", "data.csv"), "has no column 'label'"),
    "no weights": (
        ("infer", "./net.py:build", "--data", "data.csv", "--label-column", "labels"),
        "has no weights",
    ),
    "no such profile": (("compare", "20200101"), "no profile '20200101'"),
    "unknown command": (("infr",), "did you mean 'infer'?"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_is_one_line(
    case: str, compilewatch: Compilewatch, net: Path, tmp_path: Path
) -> None:
    (tmp_path / "data.csv").write_text("text,labels\na,1\n")
    arguments, expected = BAD[case]
    done = compilewatch("profile", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert expected in done.stderr.strip().splitlines()[-1]
    assert not list((tmp_path / "outputs").glob("profile-*"))


@pytest.mark.matrix
def test_inputs_come_from_a_function_as_for_explain(
    compilewatch: Compilewatch, net: Path, tmp_path: Path
) -> None:
    """Starts a worker: only the profiled model shows that the function's inputs reached it."""
    far = tmp_path / "far"
    far.mkdir()
    net.rename(far / "net.py")
    (far / "data.py").write_text(
        "import torch\n\n\ndef inputs():\n    return {'x': torch.ones(3, 5, 8)}\n"
    )
    done = compilewatch(
        *("profile", "infer", "net:build", "--python-path", str(far), "--inputs", "data:inputs"),
        *("--targets", "eager", "--batch-sizes", "3", "--rounds", "1", "--runs", "1", "--json"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    profile = json.loads(done.stdout)
    assert profile["inputs_strategy"] == "factory"
    assert profile["inputs"][0]["shape"] == [3, 5, 8]


def test_a_model_that_fails_is_a_result(
    compilewatch: Compilewatch, net: Path, tmp_path: Path
) -> None:
    net.write_text("import torch\n\n\ndef build():\n    raise RuntimeError('nothing to build')\n")
    done = compilewatch(
        "profile", "infer", "./net.py:build", "--targets", "eager", "--batch-sizes", "1,2"
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "nothing to build" in done.stdout
    assert "not tried: batch 1 ended with error" in done.stdout
    assert (folder_of(tmp_path) / "report.html").is_file()
