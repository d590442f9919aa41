"""The team's folder and the program, and what a sweep there said."""

import json
from typing import Any

import pytest

from tests.team import Compilewatch, compilewatch, program, team, variables

__all__ = ["compilewatch", "program", "team", "variables"]


@pytest.fixture(scope="session")
def swept(program: Compilewatch) -> dict[str, Any]:
    """What `sweep --json` said of the team's two models."""
    done = program("sweep", "--source", "manifest", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
