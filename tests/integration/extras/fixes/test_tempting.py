"""The verification rejects fixes that are tempting and wrong, and accepts right ones.

One process verifies all fixes, and writes a line for each: the test of that fix waits for it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch.environments import WORKER_VARIABLES
from compilewatch.extras.fixes.search import WITHOUT

CASES_FOLDER = Path(__file__).parents[3] / "cases"
sys.path.insert(0, str(CASES_FOLDER))

from tempting_fixes import CASES  # noqa: E402

OFTEN = {"ChecksForNan.wrong", "DrawsTwice.wrong", "HoldsNumbers.wrong", "HoldsNumbers.right"}
"""What is always tried; the others are in the matrix."""

Verifications = Callable[[str], Any]


@pytest.fixture(scope="module")
def verifications(request: pytest.FixtureRequest) -> Iterator[Verifications]:
    """What a process says of a fix; it verifies those that are tested, in the order of tests."""
    tests = (item for item in request.session.items if item.path == request.path)
    specs = (getattr(test, "callspec", None) for test in tests)
    process = subprocess.Popen(
        [sys.executable, "tempting_fixes.py", *(s.params["fix"] for s in specs if s)],
        cwd=CASES_FOLDER,
        env=os.environ | WORKER_VARIABLES,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    lines = process.stdout
    assert lines is not None
    read: dict[str, Any] = {}

    def verification(fix: str) -> Any:
        while fix not in read:
            printed = json.loads(lines.readline())
            read[printed["fix"]] = printed
        return read[fix]

    yield verification
    lines.close()
    process.terminate()
    process.wait()


@pytest.mark.parametrize(
    "fix",
    [pytest.param(f, marks=() if f in OFTEN else pytest.mark.matrix) for f in CASES],
)
def test_a_fix_is_judged(fix: str, verifications: Verifications) -> None:
    case, verification = CASES[fix], verifications(fix)
    failed = verification["failed"]
    if fix.endswith("wrong"):
        assert case.expected in failed, (case.why, failed)
        # Some of torch.compiler mark a function for good; no fix that is searched does that.
        if "torch.compiler" not in case.change.name:
            assert not any(WITHOUT in detail for detail in failed.values())
    else:
        assert failed == {}
        assert verification["single_graph"]
        assert verification["last"] == "results of Inductor"  # nothing was left out
        assert any(case.expected in text for text in verification["holds_if"]), verification
