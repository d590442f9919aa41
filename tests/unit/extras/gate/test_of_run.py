"""What a sweep of a team's list means for its repository, from results that are made here."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.extras.gate.baseline import NAME, KnownBreak, save
from compilewatch.extras.gate.of_run import (
    DEFINITIONS,
    FILE,
    gate_result,
    judge_run,
    samples,
    view_of_run,
)
from compilewatch.records import GraphBreak, Plan, Result, Status
from compilewatch.store import Store, StoredRun
from tests import factories

pytestmark = pytest.mark.process  # git says when a baseline was committed

SOURCE = "class Net:\n    def forward(self, x):\n        if x.sum() > 0:\n            return x\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path


def broken(file: str = "net.py", **fields: Any) -> GraphBreak:
    return factories.graph_break(file=file, line=3, **fields)


def of(name: str, *breaks: GraphBreak) -> Result:
    return factories.result(name, breaks=breaks)


def known(root: Path, code: str = "GB0170") -> None:
    text = "if x.sum() > 0:"
    entry = KnownBreak(file="net.py", function="Net.forward", code=code, text=text, check="A")
    save(root / NAME, [entry])


def test_a_place_that_the_baseline_lacks_is_new_once_for_all_models_that_meet_it(
    root: Path,
) -> None:
    judged = gate_result([of("A", broken()), of("B", broken())], root)
    (new,) = judged.new
    assert (new.file, new.line, new.function) == ("net.py", 3, "Net.forward")
    assert new.models == ("A", "B")
    assert (judged.models, judged.known, judged.resolved, judged.third_party) == (2, 0, 0, 0)
    assert judged.baseline_changed_at is None


def test_known_breaks_and_those_of_other_packages_are_no_news(root: Path) -> None:
    known(root)
    elsewhere = of("A", broken(), broken("timm/layers.py", fingerprint="other"))
    judged = gate_result([elsewhere], root)
    assert (judged.new, judged.known, judged.resolved, judged.third_party) == ((), 1, 0, 1)
    assert judged.baseline == NAME
    assert judged.baseline_changed_at is not None
    values = {labels: n for name, labels, n in samples(judged) if name.endswith("_breaks")}
    assert values == {("new",): 0, ("known",): 1, ("resolved",): 0, ("third_party",): 1}
    assert {name for name, *_ in samples(judged)} == {metric.name for metric in DEFINITIONS}
    # What no model meets any more is resolved if its models ran.
    for result, resolved in (
        (of("A"), 1),
        (of("B"), 0),
        (factories.result("A", Status.TIMEOUT), 0),
    ):
        assert gate_result([result], root).resolved == resolved
    (root / "pyproject.toml").write_text('[tool.compilewatch]\nthird_party = "fail"\n')
    (problem,) = gate_result([elsewhere], root).problems
    assert problem.startswith("A: graph break in timm/layers.py:3")


def test_what_is_damaged_says_what_to_do(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    (root / "pyproject.toml").write_text("[tool.compilewatch]\nfullgraph = false\n")
    (root / NAME).write_text("{")
    plan = Plan(requests=(factories.request("A"),), skipped=(), digest="")
    with Store(root).create_run(factories.run(), plan) as writer:
        writer.append([of("A", broken())])
        judge_run(writer)
        judged, _ = view_of_run(StoredRun(writer.path), None)
        writer.finish("finished")
    (problem,) = judged.problems
    assert "repair it" in problem
    assert (judged.models, judged.new) == (0, ())
    for content in (b"{", b'{"baseline": "\xff"}'):
        (root / FILE).write_bytes(content)
        with pytest.raises(StoreError, match=r"is damaged .*: delete it"):
            view_of_run(StoredRun(root), None)


def test_the_notes_of_a_run_name_the_lines(root: Path) -> None:
    known(root, "GB0001")
    judged = gate_result([of("A", broken())], root)
    (root / FILE).write_bytes(msgspec.json.encode(judged))
    part, notes = view_of_run(StoredRun(root), None)
    assert part == judged
    assert notes == (
        "new graph break in own code: net.py:3 in Net.forward: GB0170 Data-dependent branching (A)",
        "1 graph break of compilewatch.baseline.json resolved: compilewatch gate --update removes "
        "them",
    )
