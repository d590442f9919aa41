"""A session with a new, a known and a resolved break, one of a package, and a problem."""

from __future__ import annotations

from pathlib import Path

from compilewatch.extras.gate.baseline import KnownBreak, save
from compilewatch.extras.gate.findings import BreakPlace, CheckReport, Finding
from compilewatch.extras.gate.session import GateSession

SOURCE = ("def helper(self, y):", "    if y.sum() > 0:  # ```", "        y = y * 2")


def finding(
    function: str = "Net.helper",
    code: str = "GB0170",
    *,
    file: str = "net.py",
    own: bool = True,
    new: bool = False,
) -> Finding:
    return Finding(
        own=own,
        new=new,
        place=BreakPlace(file=file, line=12, function=function),
        code=code,
        reason=f"{code} Data-dependent branching",
        fingerprint="0123456789ab",
        path=(
            BreakPlace(file=file, line=9, function="forward"),
            BreakPlace(file=file, line=12, function="f"),
        ),
        source_start=11,
        source=SOURCE,
    )


def example(root: Path) -> GateSession:
    save(
        root / "compilewatch.baseline.json",
        [
            KnownBreak(file="net.py", function="Net.known", code="GB0059", checks=("t::a",)),
            KnownBreak(
                file="net.py",
                function="Net.gone",
                code="GB0059",
                reason="GB0059 a|b",
                checks=("t::a",),
            ),
        ],
    )
    met = CheckReport(
        name="t::a",
        status="graph_break",
        findings=(
            finding(new=True),
            finding("Net.known", "GB0059"),
            finding("f", "GB0059", file="timm/a.py", own=False),
        ),
        recompilations=2,
        command="pytest t::a",
    )
    failed = CheckReport(
        name="t::b", status="graph_break", problems=("captured share 75.0%",), findings=(met.new)
    )
    return GateSession.of(root, {"t::a": [met], "t::b": [failed]}, update="pytest --update")
