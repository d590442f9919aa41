"""What a worker server is after its warm-up."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from compilewatch.contract.targets import declared
from compilewatch.environments import Environments
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Status, Target, Tier
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


# Without torch, the tests of servers in launchers/local/test_server.py show it.
@pytest.mark.matrix
def test_a_child_that_is_no_fork_finds_all_that_the_server_imports_for_its_forks(
    tmp_path: Path,
) -> None:
    """A server for a real device forks none. Takes two imports of torch."""
    target, device = Target(device="cuda"), declared("cuda")
    request = chaos_request("break", target=target, device=device, tier=Tier.REAL)
    with LocalLauncher(1, single=True) as launcher:
        (answer,) = launcher.run([request], tmp_path)
    result = answer.result
    if torch.cuda.is_available():
        assert result.graph_breaks == 1
    else:
        assert result.status is Status.UNSUPPORTED
        assert "on cuda need the device" in result.detail
    assert result.attempts == ()


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
