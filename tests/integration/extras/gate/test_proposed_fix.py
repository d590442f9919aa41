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
def test_a_failed_check_names_a_verified_fix_within_its_time(tmp_path: Path) -> None:
    """Half a minute or more: the search and its limit are other processes, which end with it."""
    shutil.copy(Path(next(iter(cases.__path__)), "fixable.py"), tmp_path)
    with (tmp_path / "fixable.py").open("a") as file:
        file.write(BUILD)
    (tmp_path / "test_net.py").write_text(TESTS)
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    words = ["-q", "-p", "no:cacheprovider", "--compilewatch-fix"]
    for seconds, *expected in (
        (1, "none is verified within 1 s"),
        (
            400,
            "fix:        ignore_logging_functions: info (verified: one graph)",
            "verify:     compilewatch fix fixable:announcing --python-path",
        ),
    ):
        command = [sys.executable, "-m", "pytest", *words, f"--compilewatch-fix-timeout={seconds}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1, done.stdout + done.stderr
        assert all(text in done.stdout for text in expected), done.stdout
