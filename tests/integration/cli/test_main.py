"""The program itself: errors of ours and of the machine are one line, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from compilewatch.cli import main; main()"]


def run(tmp_path: Path, *arguments: str, **given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=tmp_path, text=True, check=False, timeout=60, **given
    )  # type: ignore[call-overload]


def test_an_unknown_command_names_the_near_one(tmp_path: Path) -> None:
    done = run(tmp_path, "sweeep", capture_output=True)
    assert done.returncode == 2
    assert "no command 'sweeep'; did you mean 'sweep'?" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(tmp_path, "runs", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == "compilewatch: No space left on device\n"
