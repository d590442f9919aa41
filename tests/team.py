"""One real sweep that the verbs' tests read, and a way to run verbs as a person does."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

from compilewatch.api import choose
from compilewatch.cli import main
from compilewatch.launchers import LAUNCHERS
from tests.warm import WarmLauncher, warm

PROGRAM = Path(sys.executable).with_name("compilewatch")
Compilewatch = Callable[..., subprocess.CompletedProcess[str]]

MODULE = """
import torch
from torch import nn

class Whole(nn.Module):
    def forward(self, x):
        return torch.relu(x) + 1

class Broken(nn.Module):
    def forward(self, x):
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

def whole():
    return Whole()

def broken():
    return Broken()

class Stubborn(nn.Module):
    def forward(self, x):
        raise RuntimeError("never")

def stubborn():
    return Stubborn()

def raises():
    raise RuntimeError("the factory itself fails")

def number():
    return 7

def inputs():
    return {"x": torch.ones(2, 3)}
"""

MANIFEST = """
schema_version = 1

[[model]]
name = "team/whole"
factory = "team:whole"
python_path = "."
inputs = "team:inputs"
family = "team"

[[model]]
name = "team/broken"
factory = "team:broken"
python_path = "."
inputs = "team:inputs"
family = "team"
"""


@pytest.fixture(scope="session")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a team's own models.toml and module."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "team.py").write_text(MODULE)
    (folder / "models.toml").write_text(MANIFEST)
    return folder


@pytest.fixture(scope="session")
def variables(team: Path) -> dict[str, str]:
    """What makes a verb read the team's models and keep its outputs there."""
    return {
        "COMPILEWATCH_MODELS_FILE": str(team / "models.toml"),
        "COMPILEWATCH_OUTPUT_DIR": str(team / "outputs"),
        "COMPILEWATCH_JOBS": "2",
        "NO_COLOR": "1",
    }


@pytest.fixture(scope="session")
def program(team: Path, variables: dict[str, str]) -> Compilewatch:
    """Run the program in the team's folder, in a separate process, as a person does.

    It starts a worker with torch of its own: only for what another process can show.
    """

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(PROGRAM), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=team,
            env=os.environ | variables | more,
            timeout=300,
        )

    return run


class _Program:
    """`compilewatch.cli.main` in the form that click's runner wants."""

    name = "compilewatch"

    def main(self, args: Sequence[str], prog_name: str, **_: Any) -> None:
        before = signal.getsignal(signal.SIGTERM)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [prog_name, *args])
            # Click names the program after the module that runs, which is pytest.
            patch.setitem(sys.modules, "__main__", ModuleType("__main__"))
            try:
                main()
            finally:
                signal.signal(signal.SIGTERM, before)


def run_here(
    folder: Path, variables: dict[str, str], *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a verb in a folder, in this process; its servers stay for others (`warm_launcher`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setitem(LAUNCHERS, "local", f"{warm.__module__}:{warm.__name__}")
        patch.setattr(choose, "LocalLauncher", warm)
        program: Any = _Program()
        done = CliRunner().invoke(program, list(arguments), env=variables | more)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="package")
def compilewatch(
    team: Path, variables: dict[str, str], warm_launcher: WarmLauncher
) -> Compilewatch:
    """Run a verb in the team's folder, in this process, with the workers that all tests share."""
    return functools.partial(run_here, team, variables)
