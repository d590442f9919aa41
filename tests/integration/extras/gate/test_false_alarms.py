"""Changes that move or rename code, and repeated checks, make no graph break a new one."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from compilewatch.extras.gate.baseline import load, save
from compilewatch.extras.gate.judgement import CheckReport
from tests.cases.refactorings import LAYOUT, OF_GATE
from tests.gating import SOURCE, Baseline, baseline_of, checked, imported

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

BROKEN = ("Copied", "Gated", "Logs", "Items", "Prints", "StackedGate", "Masked", "Routed")
"""The models of the suite with graph breaks."""

INPUT = (torch.ones(4, 16),)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("repository")
    sys.modules.pop("models", None)


@pytest.fixture(scope="module")
def baseline(root: Path) -> Baseline:
    """The breaks of the suite as they are stored and read."""
    models = [model() for model in imported(root, SOURCE).MODELS]
    reports = checked(root, models, [INPUT] * len(models), ())
    assert {report.name for report in reports if report.of("new")} == set(BROKEN)
    assert [report for report in reports if report.problems] == []
    path = root / "compilewatch.baseline.json"
    save(path, baseline_of(reports))
    return load(path)


def of(
    models: Sequence[str], root: Path, baseline: Baseline, source: str, file: str = "models.py"
) -> list[CheckReport]:
    module = imported(root, source, file)
    built = [getattr(module, name)() for name in models]
    return checked(root, built, [INPUT] * len(models), baseline)


@pytest.mark.parametrize("name", [*LAYOUT, *OF_GATE])
def test_a_refactoring_is_no_new_break(root: Path, baseline: Baseline, name: str) -> None:
    source = SOURCE
    for refactoring in (LAYOUT | OF_GATE)[name]:
        before, source = source, refactoring(source)
        assert source != before
    reports = of(("Gated",) if name in OF_GATE else BROKEN, root, baseline, source)
    assert [new.place for report in reports for new in report.of("new")] == []
    assert all(report.of("known", "moved") for report in reports)


def test_a_renamed_file_is_no_new_break(root: Path, baseline: Baseline) -> None:
    (root / "src" / "models.py").unlink()
    reports = of(BROKEN, root, baseline, SOURCE, "others.py")
    assert [each for report in reports for each in report.of("new", "known")] == []
    (root / "src" / "others.py").unlink()


def test_what_an_author_should_hear_of_is_new(root: Path, baseline: Baseline) -> None:
    for old, new in (
        ("    return x\n", "    if x.max() > 3:\n        x = x + 1\n    return x\n"),
        ("    if total > 0:\n", "    if total.item() > 0:\n"),
        ("    if total > 0:\n", "    if x.max() > 3:\n"),
    ):
        (report,) = of(("Gated",), root, baseline, SOURCE.replace(old, new, 1))
        assert report.of("new")
