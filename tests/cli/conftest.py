"""One real sweep that the verbs' tests read, and a way to run verbs as a person does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
def compilewatch(team: Path) -> Compilewatch:
    """Run a verb in the team's folder, with its outputs there."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {
            "COMPILEWATCH_MODELS_FILE": str(team / "models.toml"),
            "COMPILEWATCH_OUTPUT_DIR": str(team / "outputs"),
            "COMPILEWATCH_JOBS": "2",
            "NO_COLOR": "1",
        }
        return subprocess.run(
            [str(PROGRAM), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=team,
            env=environ | variables,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def swept(compilewatch: Compilewatch) -> dict[str, Any]:
    """What `sweep --json` said of the team's two models."""
    done = compilewatch("sweep", "--source", "manifest", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
