"""What hostile code returns from the sandbox is data: any bytes are a result, and none an error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.extras.executor.sandbox.policy import SandboxEnding, SandboxLimits, SandboxResult
from compilewatch.extras.papers.execution import run_eager
from compilewatch.extras.papers.records import Claim, FindingClass, PaperPlan
from tests import papers as world

PLAN = PaperPlan(
    contribution="", claims=(Claim(id="C1", statement="", operations=("exp",), formula="exp(x)"),)
)
MADE = world.version()


class Returning(world.FakeRunner):
    """A sandbox in which the code left these bytes as its result."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def run(self, files: Mapping[str, str | bytes], limits: SandboxLimits) -> SandboxResult:
        self.runs += 1
        return SandboxResult(
            ending=SandboxEnding.EXITED,
            exit_code=0,
            files={"result.json": self.data},
            stdout=self.data,
        )


@pytest.mark.parametrize(
    "data",
    [
        b'{"phase": "done", "parameters": ' + b"9" * 400 + b"}",
        b'{"phase": "done", "loss": NaN}',
        b'{"phase": "done", "loss": 1e999}',
        b'{"phase": "eager", "error": {"message": "x", "line": ' + b"9" * 50 + b"}}",
        b'{"phase": "done", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"phase": "done"',
        b"\xff\xfe",
        b"",
        b"[]",
    ],
    ids=["long int", "NaN", "overflow", "long line", "deep", "cut", "binary", "empty", "list"],
)
def test_a_result_that_cannot_be_one_is_a_crash(data: bytes) -> None:
    eager, formulas = run_eager(Returning(data), MADE, PLAN)
    assert {finding.kind for finding in eager.findings} == {FindingClass.CRASHED}
    assert formulas.not_run


def test_escape_sequences_and_line_ends_do_not_reach_the_terminal() -> None:
    data = b'{"phase": "eager", "error": {"message": "\\u001b[2J\\u009b31m\\nforged line"}}'
    (finding,) = run_eager(Returning(data), MADE, PLAN)[0].findings
    assert "\n" not in finding.evidence
    assert "\x1b" not in finding.evidence
    assert "\x9b" not in finding.evidence


@given(st.binary(max_size=200))
def test_any_bytes_are_a_result(data: bytes) -> None:
    eager, _ = run_eager(Returning(data), MADE, PLAN)
    assert eager.findings
