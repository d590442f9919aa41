"""What a check means, and what its message says, from results that are made here."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch.api.check import CheckResult
from compilewatch.extras.gate.baseline import Identity, KnownBreak
from compilewatch.extras.gate.findings import CheckReport, decoded, encoded, known_breaks
from compilewatch.extras.gate.judgement import Rules, judge
from compilewatch.extras.gate.messages import failure
from compilewatch.records import (
    CaptureFigures,
    FullgraphVerdict,
    GraphBreak,
    Numerics,
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


def judged(
    found: CheckResult, rules: Rules, *known: KnownBreak, command: str = "pytest t::a"
) -> CheckReport:
    baseline: dict[Identity, KnownBreak] = {each.identity: each for each in known}
    return judge(found, baseline, rules, name="t::a", command=command)


def test_a_break_in_own_code_is_new_until_the_baseline_has_its_place(root: Path) -> None:
    rules = Rules(root=root)
    report = judged(checked(root, broken()), rules)
    (new,) = report.new
    assert (new.place.file, new.place.line, new.place.function) == ("net.py", 3, "Net.forward")
    assert new.source_line == "if x.sum() > 0:"
    assert report.failed
    known = known_breaks(report.findings)
    assert not judged(checked(root, broken()), rules, *known).failed
    # Another line of the same function is another place.
    assert judged(checked(root, broken(), broken(line=4)), rules, *known).failed
    assert decoded(encoded([report])) == (report,)


def test_a_break_of_another_package_is_reported_or_fails(root: Path) -> None:
    elsewhere = checked(root, broken("timm/a.py"))
    reported = judged(elsewhere, Rules(root=root))
    assert not reported.failed
    assert [each.place.file for each in reported.third_party] == ["timm/a.py"]
    assert judged(elsewhere, Rules(root=root, third_party="fail")).problems
    assert judged(elsewhere, Rules(root=root, own=("timm",))).new


def test_a_break_in_the_standard_library_is_one_of_its_caller(root: Path) -> None:
    """As `copy.deepcopy` in a `forward`: there is no package whose author could change it."""
    own = broken()
    called = StackFrame(file="copy.py", line=9, function="deepcopy")
    found = msgspec.structs.replace(own, user_stack=(*own.user_stack, called))
    (new,) = judged(checked(root, found), Rules(root=root)).new
    assert [each.line for each in new.path] == [2, 3]


def test_other_rules_fail_in_lines_of_their_own(root: Path) -> None:
    rules = Rules(root=root, recompilations=1, captured_share=0.8, fullgraph=True)
    problems = judged(checked(root, broken("timm/a.py"), again=2), rules).problems
    assert problems[0] == "2 recompilations, 1 accepted:"
    assert problems[1:3] == ("  call 2 compiled forward again, net.py:2", "    0/0: x")
    assert "captured share 75.0%, at least 80.0% wanted" in problems
    assert "fullgraph=True rejects it: no" in problems
    assert judged(checked(root, again=1), Rules(root=root, recompilations=1)).problems == ()


def test_results_that_differ_from_eager_mode_fail_where_it_is_wanted(root: Path) -> None:
    def compared(**fields: bool) -> CheckResult:
        differs = Numerics(mismatches=("logits: off by 1",), reference="float64", **fields)
        return CheckResult(result=factories.result(status=Status.MISMATCH, numerics=differs))

    rules = Rules(root=root, numerics=True)
    wrong = judged(compared(deterministic=True, matches=False), rules)
    assert wrong.problems == (
        "differs from eager mode (compared with float64):",
        "  logits: off by 1",
    )
    assert judged(compared(deterministic=False, matches=False), rules).problems == ()
    assert judged(compared(deterministic=True, matches=False), Rules(root=root)).problems == ()
    assert judged(checked(root), rules).problems == ("numerics: the results were not compared",)


def test_no_verdict_is_no_pass(root: Path) -> None:
    failed = CheckResult(result=factories.result(status=Status.ERROR, detail="it failed"))
    report = judged(failed, Rules(root=root))
    assert report.problems == ("error in the phase compile: it failed",)
    assert failure(report, update="--update") == report.problems[0]


def test_the_message_names_line_path_and_commands(root: Path) -> None:
    old = KnownBreak(file="old.py", function="Old.forward", code="GB0170")
    report = judged(
        checked(root, broken()), Rules(root=root), old, command="pytest 'tests/t.py::a b'"
    )
    text = failure(report, update="--compilewatch-update")
    said = text.splitlines()
    assert said[0] == "1 new graph break in own code"
    assert said[2] == (
        "net.py:3 in Net.forward: GB0170 Data-dependent branching "
        "(moved from Old.forward in old.py?)"
    )
    assert "  > 3 |         if x.sum() > 0:" in said
    assert "    net.py:2 in forward" in said
    assert said[-1] == "accept:     pytest 'tests/t.py::a b' --compilewatch-update"
    assert "reason of GB0170" not in text
    assert "reason of GB0170" in failure(report, update="", verbose=True)
