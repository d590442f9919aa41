"""What a run means for a repository's baseline, from results that are made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.extras.gate.baseline import KnownBreak, save
from compilewatch.extras.gate.of_run import (
    DEFINITIONS,
    FILE,
    RunGate,
    gate_result,
    samples,
    view_of_run,
)
from compilewatch.records import GraphBreak, Result, Status
from compilewatch.store import StoredRun
from tests import factories

pytestmark = pytest.mark.process  # git says when a baseline was committed

SOURCE = "class Net:\n    def forward(self, x):\n        if x.sum() > 0:\n            return x\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path


def broken(file: str = "net.py", **fields: Any) -> GraphBreak:
    return factories.graph_break(file=file, line=3, **fields)


def found(name: str, *breaks: GraphBreak) -> Result:
    return factories.result(name, breaks=breaks)


def known(root: Path, **fields: Any) -> None:
    entry = {
        "file": "net.py",
        "function": "Net.forward",
        "code": "GB0170",
        "text": "if x.sum() > 0:",
        **fields,
    }
    save(root / "compilewatch.baseline.json", [KnownBreak(**entry)])


def counted(part: RunGate) -> dict[str, float]:
    return {labels[0]: n for name, labels, n in samples(part) if name.endswith("_breaks")}


def test_a_place_that_the_baseline_lacks_is_new_once_for_all_models_that_meet_it(
    root: Path,
) -> None:
    made = gate_result([found("A", broken()), found("B", broken())], root, {})
    (new,) = made.new
    assert (new.file, new.line, new.function) == ("net.py", 3, "Net.forward")
    assert new.models == ("A", "B")
    assert (made.models, made.known, made.resolved, made.third_party) == (2, 0, 0, 0)
    assert made.baseline_changed_at is None


def test_known_breaks_and_those_of_other_packages_are_no_news(root: Path) -> None:
    known(root, check="A")
    elsewhere = broken("timm/layers.py", fingerprint="other")
    made = gate_result([found("A", broken(), elsewhere)], root, {})
    assert made.new == ()
    assert (made.known, made.resolved, made.third_party) == (1, 0, 1)
    assert made.baseline == "compilewatch.baseline.json"
    assert made.baseline_changed_at is not None
    part = RunGate(result=made)
    assert counted(part) == {"new": 0, "known": 1, "resolved": 0, "third_party": 1}
    assert {name for name, *_ in samples(part)} == {each.name for each in DEFINITIONS}


def test_what_no_model_meets_any_more_is_resolved_if_its_models_ran(root: Path) -> None:
    known(root, check="A")
    assert gate_result([found("A")], root, {}).resolved == 1
    assert gate_result([found("B")], root, {}).resolved == 0


def test_a_result_without_a_verdict_resolves_nothing(root: Path) -> None:
    known(root, check="A")
    timed_out = factories.result("A", Status.TIMEOUT)
    made = gate_result([timed_out], root, {})
    assert (made.models, made.resolved) == (0, 0)


def test_rules_of_the_repository_apply(root: Path) -> None:
    elsewhere = broken("timm/layers.py")
    assert gate_result([found("A", elsewhere)], root, {}).problems == ()
    made = gate_result([found("A", elsewhere)], root, {"third_party": "fail"})
    (problem,) = made.problems
    assert problem.startswith("A: graph break in timm/layers.py:3")


def test_a_damaged_baseline_is_a_problem_of_the_result(root: Path) -> None:
    (root / "compilewatch.baseline.json").write_text("{")
    made = gate_result([found("A", broken())], root, {})
    (problem,) = made.problems
    assert "repair it" in problem
    assert (made.models, made.new) == (0, ())


def test_the_notes_of_a_run_name_the_lines(root: Path) -> None:
    known(root, check="A", code="GB0001")
    made = gate_result([found("A", broken())], root, {})
    (root / FILE).write_bytes(msgspec.json.encode(made))
    part, notes = view_of_run(StoredRun(root), None)
    assert part.result == made
    assert notes == (
        "new graph break in own code: net.py:3 in Net.forward: GB0170 Data-dependent branching (A)",
        "1 graph break of compilewatch.baseline.json resolved: compilewatch gate --update removes "
        "them",
    )


@pytest.mark.parametrize("content", [b"{", b'{"baseline": "\xff"}'])
def test_a_damaged_file_says_what_to_do(root: Path, content: bytes) -> None:
    (root / FILE).write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged .*: delete it"):
        view_of_run(StoredRun(root), None)
