"""A check leaves the process as it was, and says what plain PyTorch says, in a copy and without."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

CASES = Path(__file__).parents[2] / "cases"

SHORT = (
    *("WeightByData", "NanInputByData", "EarlierGradient", "LazyLayer", "ByClass", "Helpers"),
    *("InAHook", "GlobalGenerators"),
)
"""A value without a version, one that equals nothing, a class, other modules, foreign objects."""

ITERATORS = {"Iterators", "AGenerator"}
"""What no process can restore for itself, so that the check says so."""


def judge(name: str, said: dict[str, Any]) -> None:
    copied, here = said["checked"], said["here"]
    assert copied["eager_call_changes"], f"{name} shows nothing"
    assert copied["left_as_it_was"], copied
    assert copied["left"] == []
    (reason,) = here["left"]
    assert "since a test has no fork: iterators, caches of functions, " in reason
    assert here["left_as_it_was"] is (name not in ITERATORS)
    for result in (copied, here):
        assert (result["graphs"], result["fullgraph"]) == (
            said["captured"]["graphs"],
            said["accepted"],
        )
        assert bool(result["breaks"]) is said["captured"]["broken"]


@pytest.mark.parametrize(
    ("names", "least"), [(SHORT, 8), pytest.param((), 40, marks=pytest.mark.matrix)]
)
@pytest.mark.timeout(600)
def test_no_model_leaves_anything_that_is_not_named(names: tuple[str, ...], least: int) -> None:
    """A fork for each step: 15 s of CPU for the few, which change what no other does."""
    command = [sys.executable, "leaving.py", *names]
    done = subprocess.run(command, cwd=CASES, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert len(figures) >= least
    for name, said in figures.items():
        judge(name, said)
