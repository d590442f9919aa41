"""A session with a new, a known and a resolved break, one of a package, and a problem."""

from __future__ import annotations

from pathlib import Path

from compilewatch.extras.gate.baseline import KnownBreak, save
from compilewatch.extras.gate.judgement import CheckReport, JudgedBreak, State
from compilewatch.extras.gate.session import GateSession
from compilewatch.records import StackFrame

SOURCE = ("def helper(self, y):", "    if y.sum() > 0:  # ```", "        y = y * 2")


def judged(
    function: str = "Net.helper",
    code: str = "GB0170",
    *,
    file: str = "net.py",
    line: int = 12,
    state: State = "known",
    known: KnownBreak | None = None,
) -> JudgedBreak:
    return JudgedBreak(
        state=state,
        file=file,
        line=line,
        statement_line=line,
        function=function,
        text="if y.sum() > 0:",
        known=known,
        code=code,
        gb_id=code,
        gb_type="Data-dependent branching",
        reason="why",
        fingerprint="0123456789ab",
        user_stack=(
            StackFrame(file=file, line=9, function="forward"),
            StackFrame(file=file, line=line, function="f"),
        ),
        source_start=line - 1,
        source=SOURCE,
    )


def known_break(function: str, code: str = "GB0059", **fields: str) -> KnownBreak:
    values = {"file": "net.py", "text": "if y.sum() > 0:", "check": "t::a"} | fields
    return KnownBreak(function=function, code=code, **values)


def example(root: Path) -> GateSession:
    known = known_break("Net.known")
    save(root / "compilewatch.baseline.json", [known, known_break("Net.gone", reason="GB0059 a|b")])
    new = judged(state="new")
    met = CheckReport(
        name="t::a",
        status="graph_break",
        breaks=(
            new,
            judged("Net.known", "GB0059", known=known),
            judged("f", "GB0059", file="timm/a.py", state="elsewhere"),
        ),
        recompilations=2,
        command="pytest t::a",
    )
    failed = CheckReport(
        name="t::b", status="graph_break", problems=("captured share 75.0%",), breaks=(new,)
    )
    return GateSession.of(root, {"t::a": [met], "t::b": [failed]}, update="pytest --update")
