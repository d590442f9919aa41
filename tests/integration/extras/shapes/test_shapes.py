"""`shapes` on a model of a user's own: the search, the plan, and the script that confirms it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from compilewatch.extras.shapes.records import PlanProof
from compilewatch.extras.shapes.tracing import prover
from compilewatch.extras.shapes.worker.search import geometry_of
from compilewatch.extras.shapes.worker.tracing import traced
from compilewatch.worker.subject import ExampleInputs
from tests.integration.worker.targets.conftest import MakeSubject
from tests.integration.worker.targets.conftest import in_this_process as in_this_process
from tests.integration.worker.targets.conftest import make_subject as make_subject
from tests.team import run_here
from tests.warm import WarmLauncher

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)

    def forward(self, x):
        y = self.linear(x)
        return y.relu() if x.shape[0] > 16 else y

def inputs():
    return {"x": torch.randn(4, 3)}
"""


def test_both_sides_of_a_branch_are_called_planned_and_confirmed(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    """Half a minute: only real processes show that a script confirms what the worker plans."""
    del warm_launcher
    (tmp_path / "net.py").write_text(NET)
    run = partial(run_here, tmp_path, {"NO_COLOR": "1"})
    own = ("net:Net", "--inputs", "net:inputs", "--python-path", str(tmp_path))
    script, svg = tmp_path / "plan.py", tmp_path / "sizes.svg"
    saved = ("--save", str(script), "--save", str(svg))
    result = run("shapes", *own, "--vary", "batch=1..64", "--json", *saved)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    called = [call["sizes"]["batch"] for call in report["as_called"]["calls"]]
    assert {1, 2, 16, 17, 64} <= set(called)
    assert len(called) <= 20
    assert called == [call["sizes"]["batch"] for call in report["dynamic"]["calls"]]
    assert len(report["dynamic"]["graphs"]) == 3  # 1, up to 16, more
    plan = report["plan"]
    assert len(plan["series"]["graphs"]) == 2
    assert {16, 17} <= {sizes["batch"] for sizes in plan["proof"]["compared"]}
    assert b"batch 1 to 64" in svg.read_bytes()

    assert subprocess.run([sys.executable, script], check=False).returncode == 0
    compiled = "return torch.compile(model, **options)"
    text = script.read_text()
    assert compiled in text
    doubled = "return torch.compile(lambda *args, **kwargs: 2 * model(*args, **kwargs), **options)"
    script.write_text(text.replace(compiled, doubled))
    assert subprocess.run([sys.executable, script], check=False).returncode != 0


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu() if x.shape[0] > 16 else x + 1


def test_both_series_make_the_same_calls_where_a_process_cannot_fork(
    make_subject: MakeSubject,
) -> None:
    inputs = ExampleInputs(
        strategy="test", kwargs={"x": torch.ones(4, 3)}, dynamic_shapes={"x": {0: "batch"}}
    )
    subject = replace(make_subject(Branch, name="dynamo"), inputs=inputs)
    assert not subject.can_fork()
    geometry = geometry_of(subject, ["batch"])
    as_called, dynamic = traced(geometry, {"batch": range(1, 65)}, [])
    assert as_called.sizes == dynamic.sizes
    assert {1, 16, 17, 64} <= {sizes["batch"] for sizes in dynamic.sizes}
    assert min(as_called.compilations, dynamic.compilations) >= 3  # 1, up to 16, more
    given = [{"batch": 3}, {"batch": 5}]
    assert [series.sizes for series in traced(geometry, {"batch": [3, 5]}, given)] == [given] * 2


LIMITED = """
import torch

class Limited(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = torch.nn.Parameter(torch.zeros(40, 3))

    def forward(self, x):
        return x + self.positions[: x.shape[0]] + x[3]

def inputs():
    return {"x": torch.randn(8, 3)}
"""


LARGE = """
import sys, torch
from compilewatch.extras.shapes.worker.serving import Proof, main

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.linear(x), x.new_zeros(len(x), 2**24)

def build():
    torch.manual_seed(0)
    return Net()

def inputs(batch):
    return (torch.ones(batch, 1),), {}

def warm_up(compiled, inputs):
    args, _ = inputs(batch=3)
    torch._dynamo.mark_dynamic(args[0], 0, min=2)
    compiled(*args)

plan = (torch.compile, warm_up, lambda compiled, *args: compiled(*args))
compared = [{"batch": 512}, {"batch": 2}, {"batch": 256}]
sys.exit(main(Proof(build, inputs, plan, ranges={"batch": range(2, 4)}, compared=compared)))
"""


def test_a_model_that_compiles_nothing_runs_in_eager_mode_for_all_sizes(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    """10 s: what a user sees of it, from the search in a worker to the words."""
    del warm_launcher
    disabled = NET.replace("    def forward", "    @torch.compiler.disable\n    def forward")
    (tmp_path / "net.py").write_text(disabled)
    own = ("net:Net", "--inputs", "net:inputs", "--python-path", str(tmp_path))
    result = run_here(tmp_path, {"NO_COLOR": "1"}, "shapes", *own, "--vary", "batch=1..64")
    assert result.returncode == 0, result.stderr
    assert "Net: 0 compilations as called, 0 with dynamic=True" in result.stdout
    assert "eager mode" in result.stdout


def test_the_proof_leaves_out_what_takes_more_memory_than_a_model_may() -> None:
    """15 s: only a real limit of a process that has imported torch shows that it is kept."""
    with prover(sys.executable, dict(os.environ), 2**30) as prove:
        proof = prove(LARGE)
    assert isinstance(proof, PlanProof), proof
    assert proof.compared == ({"batch": 2},)
    assert proof.late == ({"batch": 256}, {"batch": 512})


def test_a_proof_without_enough_memory_says_where_to_allow_more(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ncat\necho "RuntimeError: can\'t allocate memory" >&2\nexit 1\n')
    python.chmod(0o755)
    with prover(str(python), {}, 2**30) as prove:
        assert prove("") == "needs more memory than memory_limit_gib in compilewatch.toml allows"


PROVES = '''
import os, sys
from compilewatch.extras.shapes.tracing import prover

script = f"""
import os, time
pids = open({sys.argv[1]!r}, "w")
os.fork()
print(os.getpid(), file=pids, flush=True)
time.sleep(600)
"""
with prover(sys.executable, dict(os.environ), 2**30) as prove:
    prove(script)
'''


def test_a_proof_and_its_fork_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    """8 s: only real processes, of which one has imported torch, show that none stays behind."""
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    with subprocess.Popen([sys.executable, "-c", PROVES, pids]) as program, pids.open() as reader:
        started = [int(reader.readline()) for _ in range(2)]
        program.kill()
        try:
            assert reader.read() == "", "both have closed the pipe"
        finally:
            for pid in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def test_only_sizes_that_the_model_itself_accepts_are_called(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    """Twenty seconds: only a real search, plan and proof can leave the range."""
    del warm_launcher
    (tmp_path / "net.py").write_text(LIMITED)
    own = ("net:Limited", "--inputs", "net:inputs", "--python-path", str(tmp_path))
    result = run_here(
        tmp_path, {"NO_COLOR": "1"}, "shapes", *own, "--vary", "batch=1..64", "--json"
    )
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    ends = [(limit["name"], limit["upper"], limit["size"]) for limit in report["limits"]]
    assert ends == [("batch", False, 4), ("batch", True, 40)]
    called = [call["sizes"]["batch"] for call in report["as_called"]["calls"]]
    assert (min(called), max(called)) == (4, 40)


CACHED = """
import torch

class Held:
    def __init__(self, tensor):
        self.tensor = tensor

class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 5)

    def forward(self, x):
        y = self.linear(x)
        return y.sum() if x.shape[1] == 1 else y.mean(), Held(y)

def inputs():
    return {"x": torch.randn(4, 7, 3)}
"""


def test_nothing_is_padded_where_objects_hold_what_a_call_computes(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    """Half a minute: only a real proof shows that marks in each first call are enough."""
    del warm_launcher
    (tmp_path / "net.py").write_text(CACHED)
    own = ("net:Cached", "--inputs", "net:inputs", "--python-path", str(tmp_path))
    vary = ("--vary", "batch=1..64", "--vary", "x.1=1..9")
    result = run_here(tmp_path, {"NO_COLOR": "1"}, "shapes", *own, *vary, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    plan = report["plan"]
    assert not any("pad" in title for title in (*plan["tried"], *report["unconfirmed"]))
    assert len(report["dynamic"]["graphs"]) > len(plan["series"]["graphs"]) == 2
    assert plan["code"].count("mark_unbacked") == 2


def test_the_positions_of_a_real_model_end_its_texts(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    """Half a minute: fake tensors accept each position, so that only a real model has a last."""
    del warm_launcher
    vary = ("--vary", "sequence=505..512")
    result = run_here(tmp_path, {"NO_COLOR": "1"}, "shapes", "XLMRobertaModel", *vary, "--json")
    assert result.returncode == 0, result.stderr
    (limit,) = json.loads(result.stdout)["limits"]
    assert (limit["name"], limit["upper"], limit["size"]) == ("sequence", True, 510)
