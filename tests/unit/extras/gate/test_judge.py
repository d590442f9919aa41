"""What a check means, and what its message says, from results that are made here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.api.check import CheckResult
from compilewatch.extras.gate.baseline import KnownBreak
from compilewatch.extras.gate.judgement import Rules, judge
from compilewatch.extras.gate.messages import failure
from compilewatch.records import (
    CaptureFigures,
    FullgraphVerdict,
    GraphBreak,
    Recompilation,
    StackFrame,
    Status,
)
from tests import factories

SOURCE = "class Net:\n    def forward(self, x):\n        if x.sum() > 0:\n            return x\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path


def broken(file: str = "net.py", line: int = 3) -> GraphBreak:
    return msgspec.structs.replace(
        factories.graph_break(),
        file=file,
        line=line,
        user_stack=(
            StackFrame(file="net.py", line=2, function="forward"),
            StackFrame(file=file, line=line, function="forward"),
        ),
        source=tuple(SOURCE.splitlines()),
        source_start=1,
    )


def checked(root: Path, *breaks: GraphBreak, again: int = 0) -> CheckResult:
    once = Recompilation(call=2, function="forward", file="net.py", line=2, guards=("0/0: x",))
    return CheckResult(
        result=factories.result(
            breaks=breaks,
            capture=CaptureFigures(operators_captured=3, operators_eager=1),
            fullgraph=FullgraphVerdict(accepted=not breaks, reason="no\nbecause"),
        ),
        recompilations=(once,) * again,
        files={"net.py": str(root / "net.py"), "timm/a.py": "/site-packages/timm/a.py"},
    )


def test_a_break_in_own_code_is_new_until_the_baseline_has_its_place(root: Path) -> None:
    found = judge(checked(root, broken()), {}, Rules(root=root))
    (new,) = found.new
    assert (new.path, new.known.function) == ("net.py:3", "Net.forward")
    assert found.failed
    known = {each.identity: each for each in found.own}
    assert not judge(checked(root, broken()), known, Rules(root=root)).failed
    # Another line of the same function is another place.
    assert judge(checked(root, broken(), broken(line=4)), known, Rules(root=root)).failed


def test_a_break_of_another_package_is_reported_or_fails(root: Path) -> None:
    elsewhere = checked(root, broken("timm/a.py"))
    reported = judge(elsewhere, {}, Rules(root=root))
    assert not reported.failed
    assert [each.file for each in reported.third_party] == ["timm/a.py"]
    assert judge(elsewhere, {}, Rules(root=root, third_party="fail")).problems
    assert judge(elsewhere, {}, Rules(root=root, own=("timm",))).new


def test_other_rules_fail_in_lines_of_their_own(root: Path) -> None:
    rules = Rules(root=root, recompilations=1, captured_share=0.8, fullgraph=True)
    problems = judge(checked(root, broken("timm/a.py"), again=2), {}, rules).problems
    assert problems[0] == "2 recompilations, 1 accepted:"
    assert problems[1:3] == ("  call 2 compiled forward again, net.py:2", "    0/0: x")
    assert "captured share 75.0%, at least 80.0% wanted" in problems
    assert "fullgraph=True rejects it: no" in problems
    assert judge(checked(root, again=1), {}, Rules(root=root, recompilations=1)).problems == ()


def test_no_verdict_is_no_pass(root: Path) -> None:
    failed = CheckResult(result=factories.result(status=Status.ERROR, detail="it failed"))
    judgement = judge(failed, {}, Rules(root=root))
    assert judgement.problems == ("error in the phase compile: it failed",)
    assert failure(judgement, {}, "t::a") == judgement.problems[0]


def test_the_message_names_line_path_and_commands(root: Path) -> None:
    judgement = judge(checked(root, broken()), {}, Rules(root=root))
    old = KnownBreak(file="old.py", function="Old.forward", code="GB0170")
    said = failure(judgement, {old.identity: old}, "tests/t.py::a b").splitlines()
    assert said[0] == "1 new graph break in own code"
    assert said[2] == (
        "net.py:3 in Net.forward: GB0170 Data-dependent branching "
        "(moved from Old.forward in old.py?)"
    )
    assert "  > 3 |         if x.sum() > 0:" in said
    assert "    net.py:2 in forward" in said
    assert said[-1] == "accept:     pytest 'tests/t.py::a b' --compilewatch-update"
    assert "reason of GB0170" not in "\n".join(said)
    assert "reason of GB0170" in failure(judgement, {}, "t::a", verbose=True)
