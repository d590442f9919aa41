"""What generated code may not contain, and whether it contains the paper's contribution.

Nothing is run. Half of the modules have something else where the contribution should be.
"""

import pytest

from compilewatch.extras.papers import records as kinds
from compilewatch.extras.papers.checks import check_rubric, check_source, check_structure
from compilewatch.extras.papers.records import FindingClass, PaperPlan, ReviewedClaim
from tests.papers import REPLIES

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
TAIL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.block = Block()
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.relu(self.block(self.stem(x))))

def model():
    return Net()

def inputs():
    return (torch.randn(2, 4, 8),)

def loss(output, inputs):
    return F.mse_loss(output, torch.zeros_like(output)) / 2
"""
BLOCK = """class Block(nn.Module):
    def __init__(self):
        super().__init__()
        INIT

    def forward(self, x):
        FORWARD
"""


def module(init: str, forward: str, extra: str = "") -> str:
    """A module whose class Block is the paper's part."""
    block = BLOCK.replace("INIT", init.replace("; ", "\n        "))
    return HEAD + extra + block.replace("FORWARD", forward.replace("; ", "\n        ")) + TAIL


GOOD = module("self.f = nn.Linear(8, 8)", "return self.f(x)")


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "from os import environ",
        "import torch.utils.cpp_extension",
        "from . import other",
        "from torch import *",
        "x = torch.zeros(3)",
        "for i in range(3): pass",
        "@torch.compiler.disable\ndef f(x): return x",
        "def f(x): return x\n@f\nclass C: pass",
        "def f(x=torch.zeros(1)): return x",
        "class A(metaclass=type): pass",
        "def f(): return open('/etc/passwd')",
        "def f(x): return getattr(x, 'a' + 'b')",
        "def f(x): return ().__class__.__bases__",
        "def f(): return torch.load('x')",
        "def f(): return torch.ops.aten.add",
        "def f(x): return x.to('cuda:0')",
        "DEVICE = 'xla'",
        "def f(): global y",
        "async def f(): pass",
    ],
)
def test_what_is_not_allowed_is_found_with_its_line(line: str) -> None:
    findings = check_source(GOOD + line + "\n")
    assert findings
    assert {finding.kind for finding in findings} == {FindingClass.DISALLOWED}
    assert all(finding.line and finding.line > GOOD.count("\n") for finding in findings)


@pytest.mark.parametrize(
    ("source", "evidence"),
    [
        ("\0", "does not parse"),
        (GOOD.replace("def loss", "def lose"), "no function loss()"),
        ("(" * 5000, "does not parse"),
    ],
)
def test_code_that_is_not_such_a_module_is_invalid(source: str, evidence: str) -> None:
    (finding, *_) = check_source(source)
    assert finding.kind is FindingClass.INVALID_CODE
    assert evidence in finding.evidence


# --- faithfulness ---

LINEAR = "self.f = nn.Linear(8, 8)"
GATE = "self.gate = nn.Linear(8, 8); self.body = nn.Linear(8, 8)"
ROUTER = "self.router = nn.Linear(8, 4); "
EXPERTS = ROUTER + "self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))"
MIX = "self.mix = nn.Parameter(torch.zeros(8))"
TOP = "best, _ = torch.topk(self.router(x), 2); weights = torch.softmax(best, -1); "
ALL = "y = sum(e(x) for e in self.experts); return y * weights.sum(-1, keepdim=True)"
SCALED = "def scaled(x):\n    return x / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)\n\n\n"
WAVES = (
    "class Waves(nn.Module):\n    def forward(self, x):\n        return x + torch.sin(x * 2.5)\n"
)

CASES: dict[str, tuple[str, str, str]] = {
    "gated residual, and a linear layer": (
        "sigmoid multiply",
        module(GATE, "return x + torch.sigmoid(self.gate(x)) * self.body(x)"),
        module(LINEAR, "return self.f(x)"),
    ),
    "top k experts, and a router whose result is dropped": (
        "top_k softmax multiply",
        module(EXPERTS, TOP + ALL),
        module(ROUTER + LINEAR, TOP + "unused = weights * 2; return self.f(x)"),
    ),
    "variance scaling in a helper, and a helper that is not called": (
        "variance sqrt divide",
        module("", "return scaled(x)", SCALED),
        module("self.n = nn.LayerNorm(8)", "return self.n(x)", SCALED),
    ),
    "shifted tokens, and a term that is multiplied by zero": (
        "shift multiply",
        module(MIX, "return x + self.mix * torch.roll(x, 1, dims=1)"),
        module(MIX, "return x + 0 * (self.mix * torch.roll(x, 1, dims=1))"),
    ),
    "squared relu, and the stock activation": (
        "relu power",
        module(LINEAR, "return torch.relu(self.f(x)) ** 2"),
        module(LINEAR + "; self.act = nn.ReLU()", "return self.act(self.f(x))"),
    ),
    "sine positions, and a class that is constructed and not used": (
        "sine multiply",
        module(MIX, "return x + torch.sin(x * self.mix)"),
        module("self.w = Waves(); self.p = nn.Embedding(4, 8)", "return x + self.p.weight", WAVES),
    ),
}
"""A contribution, and what stands in its place -> operations, the module with it and without it."""


def plan(operations: str) -> PaperPlan:
    claim = kinds.Claim(
        id="C1", statement="The contribution.", operations=tuple(operations.split())
    )
    return PaperPlan(contribution="The contribution.", claims=(claim,))


@pytest.mark.parametrize(("operations", "faithful", "swapped"), CASES.values(), ids=list(CASES))
def test_a_swap_is_caught_and_the_contribution_raises_no_alarm(
    operations: str, faithful: str, swapped: str
) -> None:
    assert list(check_structure(swapped, plan(operations)))
    assert list(check_structure(faithful, plan(operations))) == []
    assert check_source(faithful) == check_source(swapped) == ()


def test_a_finding_names_the_claim_the_nearest_class_and_what_it_lacks() -> None:
    _, _, source = CASES["squared relu, and the stock activation"]
    (finding,) = check_structure(source, plan("relu power"))
    assert finding.kind is FindingClass.UNFAITHFUL
    assert "C1" in finding.evidence
    assert "Net comes closest and lacks power" in finding.evidence
    assert finding.line == source.splitlines().index("class Net(nn.Module):") + 1
    stock = HEAD + "def model():\n    return nn.TransformerEncoderLayer(8, 2)\n"
    (finding,) = check_structure(stock, plan("softmax"))
    assert "only stock layers" in finding.evidence


SOURCE = (REPLIES / "gated-residual" / "code.0.py").read_text()
QUOTED = "weight = torch.sigmoid(self.gate(x))"
LINE = SOURCE.splitlines().index(f"        {QUOTED}") + 1


@pytest.mark.parametrize(
    ("present", "line", "quote", "evidence"),
    [
        (None, 0, "", "does not find"),
        (False, LINE, QUOTED, "does not find"),
        (True, 0, "", "not in the code"),
        (True, 20, "the gate is a sigmoid", "not in the code"),
        (True, LINE + 20, QUOTED, "not in the code"),
        # It may miss its line by two, and its spaces.
        (True, LINE + 2, "weight=torch.sigmoid( self.gate(x) )", ""),
    ],
)
def test_only_a_claim_with_evidence_in_the_code_is_confirmed(
    present: bool | None, line: int, quote: str, evidence: str
) -> None:
    quotes = (kinds.Evidence(line=line, quote=quote),) if quote else ()
    claim = ReviewedClaim(claim="C1", present=bool(present), evidence=quotes)
    review = kinds.Review(approved=True, claims=() if present is None else (claim,))
    findings = check_rubric(SOURCE, plan("sigmoid"), review)
    assert [evidence in finding.evidence for finding in findings] == [True] * bool(evidence)
