"""What generated code finds in the sandbox is the same torch, however the environment was set up.

Each test starts sandboxes that import torch, which takes seconds; only that shows whether it is
there.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.errors import SandboxError
from compilewatch.extras.papers.execution import EAGER_LIMITS, SandboxRunner, run_eager
from tests.confinement import need_sandbox
from tests.integration.extras.papers.test_planted import PLAN, generation

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]


@pytest.fixture
def workspace() -> Iterator[Path]:
    """An environment without packages, below a folder that the sandbox's user can read."""
    need_sandbox()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        result = Path(folder) / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", result], check=True)
        yield result


def test_an_environment_without_torch_is_never_blamed_on_a_paper(workspace: Path) -> None:
    runner = SandboxRunner(str(workspace / "bin" / "python"))
    with pytest.raises(SandboxError, match="torch cannot be imported in the sandbox"):
        runner.check()
    for ran in run_eager(runner, generation("import torch"), PLAN):
        assert "torch cannot be imported in the sandbox" in ran.not_run
        assert ran.findings == ()


@pytest.mark.matrix
def test_torch_of_a_shared_environment_is_there(workspace: Path) -> None:
    """As scripts/setup.sh shares it between the workspaces of an agent."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    packages = Path(torch.origin).parents[1]
    own = sysconfig.get_path("purelib", vars={"base": str(workspace)})
    Path(own, "shared.pth").write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    (workspace / "shared").symlink_to(packages.parents[2])
    runner = SandboxRunner(str(workspace / "bin" / "python"))
    runner.check()
    assert runner.run({"main.py": "import torch"}, EAGER_LIMITS).succeeded
