"""What a worker server is after its warm-up."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compilewatch import environments
from compilewatch.environments import Environments, Interpreter
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Status, Target
from tests.integration.launchers.conftest import chaos_request

pytestmark = pytest.mark.torch


def test_the_cuda_build_without_a_device_keeps_one_thread(
    warm_launcher: LocalLauncher, tmp_path: Path
) -> None:
    """Only the real wheel has the guard that reports eight devices where there is none."""
    build = Environments().describe("default").torch
    if "+cu" not in build:
        pytest.skip(f"torch {build} is no CUDA build, the only one whose warm-up can start threads")
    (answer,) = warm_launcher.run([chaos_request("ok")], tmp_path)
    assert answer.result.status is Status.PASS
    server = warm_launcher.server("default")
    assert server.threads == 1
    log = Path(f"/proc/{server.process.pid}/fd/2").read_text()
    assert "warm-up:" not in log


THREADED = """
import runpy, sys, threading, time
if sys.argv[2] == "compilewatch.worker.process.server":
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# Without torch, the tests of servers in launchers/local/test_server.py show it.
@pytest.mark.matrix
def test_a_process_for_each_request_has_the_result_of_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only real torch shows that a child finds all that the server imports for its forks.

    Takes two imports of it.
    """
    script = tmp_path / "threaded.py"
    script.write_text(THREADED)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -P "{script}" "$@"\n')
    python.chmod(0o755)
    variables = Environments().interpreter("default").variables
    threaded = Interpreter(executable=str(python), variables=variables)
    monkeypatch.setitem(environments.INTERPRETERS, "threaded", threaded)
    target = Target(environment="threaded")
    with LocalLauncher(1, ("threaded",)) as launcher:
        (answer,) = launcher.run([chaos_request("break", target=target)], tmp_path)
        assert launcher.server("threaded").threads == 2
    assert (answer.result.status, answer.result.graph_breaks) == (Status.GRAPH_BREAK, 1)
    assert answer.result.attempts == ()


@pytest.mark.skipif(
    torch.version.cuda is None or not Path("/proc/self/maps").exists(),
    reason="needs a CUDA build of torch on Linux",
)
def test_the_server_loads_the_library_of_attention_on_cuda() -> None:
    """Costs two seconds for an import of torch: only a new process has not loaded it yet."""
    script = (
        "from pathlib import Path\n"
        "import torch\n"
        "from compilewatch.worker.process import warmup\n"
        "maps = Path('/proc/self/maps')\n"
        "before = 'libcudnn_graph' in maps.read_text()\n"
        "warmup._load_cudnn()\n"
        "print(before, 'libcudnn_graph' in maps.read_text())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]
