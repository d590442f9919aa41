"""The verification rejects fixes that are tempting and wrong, and accepts right ones.

One process verifies all fixes, and writes a line for each: the test of that fix waits for it. Only
the last tests write scripts and run them as `fix` does, which takes two processes each.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch.config import load_settings
from compilewatch.environments import WORKER_VARIABLES
from compilewatch.extras.fixes.fixing import Finder, searching
from compilewatch.extras.fixes.search import WITHOUT
from compilewatch.records import FactoryBuild, ModelSpec, Request, Target

CASES_FOLDER = Path(__file__).parents[3] / "cases"
sys.path.insert(0, str(CASES_FOLDER))

from tempting_fixes import BY_NAME, CASES, Case  # noqa: E402

WRONG = [case for case in CASES if case.wrong is not None]
RIGHT = [case for case in CASES if case.right is not None]

OFTEN = {"ChecksForNan", "DrawsTwice", "HoldsNumbers"}
RIGHT_OFTEN = {"HoldsNumbers"}
"""Models whose tempting or right fix is always tried; the others are in the matrix."""

OF_INDUCTOR = ("Powers", "DividesInPython")
"""Models whose fix has a condition that only code of Inductor shows."""

INDUCTOR = [f"{name}.right" for name in ("ChecksForNan", "ChangesInput", *OF_INDUCTOR)]
"""Fixes that Inductor compiles here: a check in its code, a change in place, numbers."""

Verifications = Callable[[str], Any]


def verifying(fixes: list[str], *options: str) -> Iterator[Verifications]:
    """Yield a function that returns what a process that verifies fixes in order says of one."""
    process = subprocess.Popen(
        [sys.executable, "tempting_fixes.py", *fixes, *options],
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


@pytest.fixture(scope="module")
def verifications(request: pytest.FixtureRequest) -> Iterator[Verifications]:
    """The verifications of the fixes that are tested, in the order of their tests."""
    chosen = []
    for item in request.session.items:
        case = getattr(getattr(item, "callspec", None), "params", {}).get("case")
        if isinstance(case, Case):
            chosen.append(f"{case.name}.{'wrong' if 'rejected' in item.name else 'right'}")
    yield from verifying(chosen)


@pytest.fixture(scope="module")
def verifications_with_inductor() -> Iterator[Verifications]:
    yield from verifying(INDUCTOR, "--inductor")


def selected(cases: Iterable[Case], often: Container[str]) -> list[object]:
    return [
        pytest.param(case, marks=() if case.name in often else pytest.mark.matrix, id=case.name)
        for case in cases
    ]


@pytest.mark.parametrize("case", selected(WRONG, OFTEN))
def test_a_tempting_fix_is_rejected(case: Case, verifications: Verifications) -> None:
    assert len(BY_NAME) == len(CASES) >= 50
    failed = verifications(f"{case.name}.wrong")["failed"]
    assert case.requirement in failed, (case.why, failed)
    # Some of torch.compiler mark a function for good; no fix that is searched does that.
    if case.wrong is not None and "torch.compiler" not in case.wrong.name:
        assert not any(WITHOUT in detail for detail in failed.values())


@pytest.mark.parametrize("case", selected(RIGHT, RIGHT_OFTEN))
def test_a_right_fix_is_accepted(case: Case, verifications: Verifications) -> None:
    verification = verifications(f"{case.name}.right")
    assert verification["failed"] == {}
    assert verification["single_graph"]
    assert verification["last"] == "results of Inductor"  # nothing was left out
    if case.name not in OF_INDUCTOR:
        assert any(case.condition in text for text in verification["holds_if"]), verification


@pytest.mark.matrix
@pytest.mark.parametrize("fix", INDUCTOR)
def test_a_right_fix_is_accepted_with_inductor(
    fix: str, verifications_with_inductor: Verifications
) -> None:
    """It takes the C++ compiler, whose code may lose a check, a change in place or an error."""
    verification = verifications_with_inductor(fix)
    assert verification["failed"] == {}
    condition = BY_NAME[fix.partition(".")[0]].condition
    assert any(condition in text for text in verification["holds_if"]), verification


@pytest.fixture(scope="module")
def finder() -> Iterator[Finder]:
    with searching(load_settings({}), "default") as finder:
        yield finder


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "which", "failed"),
    [
        ("LargeBatch", "wrong", "eager results, seed 0: second shape"),
        ("ReturnsList", "wrong", "eager results, seed 0: first shape"),
        ("DrawsTwice", "right", ""),
    ],
)
def test_the_script_says_the_same(finder: Finder, name: str, which: str, failed: str) -> None:
    """Only it shows that the script is complete, has two shapes, and needs no compilewatch."""
    build = FactoryBuild(factory=f"tempting:{name}", path=str(CASES_FOLDER), inputs="tempting:rows")
    model = ModelSpec(source="test", name=name, build=build)
    request = Request(model=model, target=Target(), key="0")
    script, verification = finder.verify(request, (getattr(BY_NAME[name], which),))
    assert "compilewatch" not in script.replace(str(CASES_FOLDER), "")
    assert verification.holds == (not failed), verification.steps
    assert failed in verification.failure
    if not failed:
        assert verification.single_graph
        assert verification.breaks == (1, 0)
        assert verification.steps[0].detail == "both shapes"
