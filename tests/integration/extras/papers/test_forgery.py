"""Code that tries to forge the comparison with its formula, in real sandboxes.

Each case imports torch twice, which takes seconds: only code that shares its process with the
harness can show that the verdict does not depend on it.
"""

from __future__ import annotations

import pytest

from compilewatch.extras.papers.execution import SandboxRunner, run_eager
from compilewatch.extras.papers.records import Binding, Claim, FindingClass, PaperPlan
from tests import papers as world
from tests.confinement import need_sandbox

pytestmark = [pytest.mark.torch, pytest.mark.matrix, pytest.mark.timeout(600)]

FORMULA = "x + sigmoid(matmul(x, transpose(W)) + b) * f(x)"
RIGHT = "x + torch.sigmoid(self.gate(x)) * self.branch(x)"
STOCK = "x + self.gate(x) + self.branch(x)"
BLOCK = """
class NAME(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.branch = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        self.hidden = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return RESULT
"""
MODULE = """import json, os, sys
import torch
from torch import nn
BLOCKS
def model():
    return nn.Sequential(LIST)

def inputs():
    return (torch.randn(2, 4),)

def loss(output, inputs):
    ATTACK
    return output.sum()
"""

BLOCKS = {
    "C0": RIGHT,
    "C1": "x + torch.sigmoid(self.branch(x)) * self.gate(x)",
    "C2": "x + torch.sigmoid(self.gate(x)) * self.branch(2 * x)",
    "C3": f"{RIGHT} + self.hidden",
}
"""One with the formula; then the function in the wrong place, another argument, and a term whose
parameter is zero at first."""

ATTACKS = {
    "the comparison made blind": """\
sys.modules["__main__"].__dict__.update(TOLERANCE=float("inf"), difference=lambda *_: 0.0)
    torch.Tensor.abs = lambda self: self * 0
    torch.Tensor.item = lambda self: 0.0""",
    "a verdict of its own": """\
os.makedirs("out", exist_ok=True)
    with open("out/result.json", "w") as file:
        json.dump({"phase": "done", "parameters": 1, "checks": [{"claim": "C0", "ok": True}],
                   "returned": [{"claim": "C0", "ok": True, "symbols": {}}]}, file)
    os._exit(0)""",
    "nothing to compare": """\
zero = {"kind": "number", "value": 0}
    sys.modules["__main__"].__dict__["answers"] = lambda *_: [
        {"symbols": {"W": zero, "b": zero, "f": zero},
         "output": {"file": "../../dev/zero", "shape": [0]}}]""",
}


@pytest.fixture(scope="module", autouse=True)
def confined() -> None:
    """Where code cannot be confined it is not run, and neither are these tests."""
    need_sandbox()


def unfaithful(results: dict[str, str], attack: str = "") -> list[str]:
    """What is found in a module with such blocks, a claim with the formula for each."""
    blocks = (BLOCK.replace("NAME", n).replace("RESULT", r) for n, r in results.items())
    source = MODULE.replace("BLOCKS", "".join(blocks)).replace("ATTACK", attack or "pass")
    attributes = {"W": "gate.weight", "b": "gate.bias", "f": "branch"}
    bindings = tuple(
        Binding(claim=claim, module=str(number), inputs={"x": (3, 4)}, attributes=attributes)
        for number, claim in enumerate(results)
    )
    source = source.replace("LIST", ", ".join(f"{name}()" for name in results))
    version = world.version(source, bindings=bindings)
    claims = tuple(
        Claim(id=claim, statement="", operations=("sigmoid",), formula=FORMULA) for claim in results
    )
    plan = PaperPlan(contribution="", claims=claims)
    eager, formulas = run_eager(SandboxRunner(), version, plan)
    assert eager.findings == ()
    assert formulas.not_run == ""
    assert {finding.kind for finding in formulas.findings} <= {FindingClass.UNFAITHFUL}
    return [finding.evidence for finding in formulas.findings]


def test_what_differs_from_its_formula_is_found_and_nothing_else() -> None:
    claims = unfaithful(BLOCKS)
    assert [evidence.partition(":")[0] for evidence in claims] == [f"claim C{n}" for n in (1, 2, 3)]
    assert all("differs from" in evidence for evidence in claims)


# One attack shows in `make test` that what is compared is out of the reach of generated code.
@pytest.mark.parametrize(
    "attack",
    [pytest.param(a, marks=[pytest.mark.matrix] if n else []) for n, a in enumerate(ATTACKS)],
)
def test_code_cannot_forge_what_is_compared_elsewhere(attack: str) -> None:
    assert len(unfaithful({"C0": STOCK}, ATTACKS[attack])) == 1
