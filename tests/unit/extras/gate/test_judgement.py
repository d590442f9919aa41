"""What a check means, and what its message says, from results that are made here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import records
from compilewatch.api.check import CheckResult
from compilewatch.errors import ConfigError, UsageError
from compilewatch.extras.gate import judgement
from compilewatch.extras.gate.baseline import NAME, KnownBreak
from compilewatch.extras.gate.session import failure
from tests import factories

SOURCE = "class Net:\n    def forward(self, x):\n        if x.sum() > 0:\n            return x\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(SOURCE)
    return tmp_path


def broken(file: str = "net.py", line: int = 3) -> records.GraphBreak:
    return factories.graph_break(
        "forward",
        file=file,
        line=line,
        user_stack=tuple(
            records.StackFrame(file=f, line=n, function="forward")
            for f, n in (("net.py", 2), (file, line))
        ),
        source=tuple(SOURCE.splitlines()),
        source_start=1,
    )


def judged(
    root: Path,
    *breaks: records.GraphBreak,
    known: Sequence[KnownBreak] = (),
    again: int = 0,
    result: records.Result | None = None,
    code: tuple[str, ...] | None = None,
    **rules: Any,
) -> judgement.CheckReport:
    """What the repository says of a result, by default one with these breaks."""
    once = records.Recompilation(
        call=2, function="forward", file="net.py", line=2, guards=("0/0: x",)
    )
    found = CheckResult(
        result=result
        or factories.result(
            breaks=breaks,
            capture=records.CaptureFigures(operators_captured=3, operators_eager=1),
            fullgraph=records.FullgraphVerdict(accepted=not breaks, reason="no\nbecause"),
            recompilations=(once,) * again,
        ),
        files={"net.py": str(root / "net.py"), "timm/a.py": "/site-packages/timm/a.py"},
    )
    command = "pytest 'tests/t.py::a b'"
    chosen = judgement.Rules(root=root, **rules)
    return judgement.judge(found, known, chosen, name="t::a", command=command, code=code)


def entries(root: Path, *breaks: records.GraphBreak) -> list[KnownBreak]:
    """What the baseline of the repository as it is knows of breaks."""
    return [judged_break.entry for judged_break in judged(root, *breaks).breaks]


def test_a_break_in_own_code_is_new_until_the_baseline_has_its_place(root: Path) -> None:
    report = judged(root, broken())
    (new,) = report.of("new")
    assert (new.file, new.line, new.function) == ("net.py", 3, "Net.forward")
    assert new.text == "if x.sum() > 0:"
    assert report.failed
    known = entries(root, broken())
    assert not judged(root, broken(), known=known).failed
    # Another line of the same function is another place.
    (other,) = judged(root, broken(), broken(line=4), known=known).of("new")
    assert other.line == 4
    assert other.note == "Net.forward has 2 such lines, the baseline knows 1"
    assert msgspec.json.decode(msgspec.json.encode(report), type=judgement.CheckReport) == report


def test_one_entry_is_one_of_two_equal_statements(root: Path) -> None:
    (root / "net.py").write_text(SOURCE + SOURCE[SOURCE.index("        if") :])
    both = broken(), broken(line=5)
    first, second = entries(root, *both)
    assert first == second
    assert [new.line for new in judged(root, *both, known=[first]).of("new")] == [5]
    assert not judged(root, *both, known=[first, second]).failed


def test_one_statement_is_one_place(root: Path) -> None:
    """Torch names any of its lines, and the second call may meet it again."""
    (root / "net.py").write_text("def f(x):\n    return (x.item() +\n        x.item())\n")
    report = judged(root, broken(line=2), broken(line=3))
    assert len(report.of("new")) == 1
    assert failure(report, update="").startswith("1 new graph break in own code")


MOVES = {
    "class": SOURCE.replace("Net", "Model"),
    "function": SOURCE.replace("forward", "run"),
    "helper": SOURCE.replace("if x.sum() > 0:", "if positive(x):")
    + "\ndef positive(y):\n    if y.sum() > 0:\n        return True\n",
}


@pytest.mark.parametrize("move", MOVES)
def test_a_known_break_may_move(root: Path, move: str) -> None:
    (known,) = entries(root, broken())
    (root / "net.py").write_text(MOVES[move])
    report = judged(root, broken(line=3 if move != "helper" else 7), known=[known])
    (moved,) = report.of("moved")
    assert not report.failed
    assert moved.note == "moved from Net.forward in net.py"
    assert moved.known == known


def test_a_break_that_is_still_in_its_place_has_not_moved(root: Path) -> None:
    """Another check meets it: this one meets a second one of the same text."""
    known = entries(root, broken())
    (root / "net.py").write_text(SOURCE + SOURCE.replace("Net", "Other"))
    assert judged(root, broken(line=7), known=known).of("new")


def test_a_check_of_other_code_only_fails(root: Path) -> None:
    other = ("/site-packages/timm/a.py",)
    (problem,) = judged(root, code=other).problems
    assert "the model is defined in /site-packages/timm/a.py" in problem
    assert not judged(root, code=other, third_party="fail").failed
    assert not judged(root, code=(str(root / "net.py"),)).failed


def test_a_break_of_another_package_is_reported_or_fails(root: Path) -> None:
    elsewhere = broken("timm/a.py")
    reported = judged(root, elsewhere)
    assert not reported.failed
    assert [place.file for place in reported.of("elsewhere")] == ["timm/a.py"]
    assert judged(root, elsewhere, third_party="fail").problems
    assert judged(root, elsewhere, own=("timm",)).of("new")


def test_a_break_in_the_standard_library_is_one_of_its_caller(root: Path) -> None:
    """As `copy.deepcopy` in a `forward`: there is no package whose author could change it."""
    own = broken()
    called = records.StackFrame(file="copy.py", line=9, function="deepcopy")
    stack = (*own.user_stack, called)
    (new,) = judged(root, msgspec.structs.replace(own, user_stack=stack)).of("new")
    assert [frame.line for frame in new.user_stack] == [2, 3]


def test_other_rules_fail_in_lines_of_their_own(root: Path) -> None:
    rules: dict[str, Any] = {"recompilations": 1, "captured_share": 0.8, "fullgraph": True}
    problems = judged(root, broken("timm/a.py"), again=2, **rules).problems
    assert problems[0] == "2 recompilations, 1 accepted:"
    again = "  call 2: another guard, net.py:2"
    assert problems[1:3] == (again, "    0/0: x")
    assert "captured share 75.0%, at least 80.0% wanted" in problems
    assert "fullgraph=True rejects it: no" in problems
    assert judged(root, again=1, recompilations=1).problems == ()
    # What has no verdict does not pass.
    failed = factories.result(status=records.Status.ERROR, detail="it failed")
    report = judged(root, result=failed)
    assert report.problems == ("error in the phase compile: it failed",)
    assert failure(report, update="--update") == report.problems[0]


def test_results_that_differ_from_eager_mode_fail_where_it_is_wanted(root: Path) -> None:
    def compared(deterministic: bool, numerics: bool) -> tuple[str, ...]:
        differs = records.Numerics(
            mismatches=("logits: off by 1",),
            reference="float64",
            deterministic=deterministic,
            matches=False,
        )
        result = factories.result(status=records.Status.MISMATCH, numerics=differs)
        return judged(root, result=result, numerics=numerics).problems

    differs = ("differs from eager mode (compared with float64):", "  logits: off by 1")
    assert compared(True, True) == differs
    assert compared(False, True) == compared(True, False) == ()
    assert judged(root, numerics=True).problems == ("numerics: the results were not compared",)


def test_the_message_names_line_path_and_commands(root: Path) -> None:
    report = judged(root, broken())
    lines = failure(report, update="--compilewatch-update").splitlines()
    assert lines[2] == "net.py:3 in Net.forward: GB0170 Data-dependent branching"
    assert {"  > 3 |         if x.sum() > 0:", "    net.py:2 in forward"} <= {*lines}
    assert lines[-1] == "accept:     pytest 'tests/t.py::a b' --compilewatch-update"
    assert "reason of GB0170" in failure(report, update="", verbose=True)


def test_a_keyword_wins_over_the_marker_and_that_over_the_settings(tmp_path: Path) -> None:
    settings = {"own": ["mypkg"], "recompilations": 3, "captured_share": 0.5}
    rules = judgement.rules_of(tmp_path, settings, {"recompilations": 2}, {"recompilations": None})
    assert (rules.own, rules.recompilations, rules.captured_share) == (("mypkg",), 2, 0.5)
    assert judgement.rules_of(tmp_path, settings, {}, {"recompilations": 0}).recompilations == 0
    with pytest.raises(UsageError, match="third_party is 'report' or 'fail', not 'ignore'"):
        judgement.rules_of(tmp_path, {"third_party": "ignore"})
    (tmp_path / "pyproject.toml").write_text("[tool.compilewatch]\nrecompilations = true\n")
    with pytest.raises(ConfigError, match="recompilations is a whole number, not True"):
        judgement.project_settings(tmp_path)


def test_the_root_is_the_nearest_project_and_has_the_baseline(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").touch()
    (tmp_path / ".git").mkdir()
    assert judgement.project_root(inside) == tmp_path / "a"
    (tmp_path / "a" / "pyproject.toml").unlink()
    assert judgement.project_root(inside) == tmp_path
    for setting, option, name in (
        ("", None, NAME),
        ('baseline = "ci/a.json"', None, "ci/a.json"),
        ('baseline = "a.json"', "b.json", "b.json"),
    ):
        (tmp_path / "pyproject.toml").write_text(f"[tool.compilewatch]\n{setting}\n")
        assert judgement.opened(tmp_path, baseline=option)[1] == tmp_path / name
