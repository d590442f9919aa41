"""Changes that move or rename code, and repeated checks, make no graph break a new one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compilewatch.extras.gate.baseline import load, save
from tests.cases.refactorings import REFACTORINGS, Refactoring
from tests.gating import SOURCE, Baseline, baseline_of, checked, imported

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

BROKEN = ("Copied", "Gated", "Logs", "Items", "Prints", "StackedGate", "Masked", "Routed")
"""The models of the suite with graph breaks."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("repository")
    sys.modules.pop("models", None)


@pytest.fixture(scope="module")
def baseline(root: Path) -> Baseline:
    """The breaks of the suite as they are stored and read."""
    module = imported(root, SOURCE)
    models = [model() for model in module.MODELS]
    found = checked(root, models, [(torch.ones(4, 16),)] * len(models), ())
    assert {each.name for each in found if each.of("new")} == set(BROKEN)
    assert [each for each in found if each.problems] == []
    path = root / "compilewatch.baseline.json"
    save(path, baseline_of(found))
    return load(path)


@pytest.mark.parametrize("refactoring", REFACTORINGS, ids=lambda each: each.__name__)
def test_a_refactoring_is_no_new_break(
    root: Path, baseline: Baseline, refactoring: Refactoring
) -> None:
    source = refactoring(SOURCE)
    assert source != SOURCE
    module = imported(root, source)
    models = [getattr(module, name)() for name in BROKEN]
    found = checked(root, models, [(torch.ones(4, 16),)] * len(models), baseline)
    assert [each.place for report in found for each in report.of("new")] == []
    assert all(report.of("known", "moved") for report in found)


def test_a_renamed_file_is_no_new_break(root: Path, baseline: Baseline) -> None:
    module = imported(root, SOURCE, "others.py")
    (root / "src" / "models.py").unlink()
    models = [getattr(module, name)() for name in BROKEN]
    found = checked(root, models, [(torch.ones(4, 16),)] * len(models), baseline)
    assert [each for report in found for each in report.of("new", "known")] == []
    (root / "src" / "others.py").unlink()


def test_a_second_place_and_another_reason_are_new(root: Path, baseline: Baseline) -> None:
    """The opposite: changes that an author should hear of."""
    more = SOURCE.replace(
        "    return x\n", "    if x.max() > 3:\n        x = x + 1\n    return x\n", 1
    )
    other = SOURCE.replace("    if total > 0:\n", "    if total.item() > 0:\n")
    swapped = SOURCE.replace("    if total > 0:\n", "    if x.max() > 3:\n")
    for source in (more, other, swapped):
        module = imported(root, source)
        (report,) = checked(root, [module.Gated()], [(torch.ones(4, 16),)], baseline)
        assert report.of("new")
