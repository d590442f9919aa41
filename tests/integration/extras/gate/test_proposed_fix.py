"""`--compilewatch-fix` through pytest: a fix that is searched and verified within its time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cases

pytestmark = pytest.mark.torch

TESTS = """
def test_net(compile_check):
    compile_check("fixable:announcing")
"""

BUILD = """

def announcing() -> nn.Module:
    return nn.Sequential(Announcing(4))
"""


@pytest.mark.matrix
def test_a_failed_check_names_a_verified_fix(tmp_path: Path) -> None:
    """Half a minute or more: the search is another process, which starts others."""
    shutil.copy(Path(next(iter(cases.__path__)), "fixable.py"), tmp_path)
    with (tmp_path / "fixable.py").open("a") as file:
        file.write(BUILD)
    (tmp_path / "test_net.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    words = ["-q", "-p", "no:cacheprovider", "--compilewatch-fix", "--compilewatch-fix-timeout=400"]
    command = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    for text in (
        "fix:        ignore_logging_functions: info (verified: one graph)",
        "verify:     compilewatch fix fixable:announcing --python-path",
    ):
        assert text in done.stdout
