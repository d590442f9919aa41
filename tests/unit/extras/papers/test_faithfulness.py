"""Twenty modules, ten of which have stock layers where the paper's contribution should be."""

from __future__ import annotations

import pytest

from compilewatch.extras.papers.checks import check_rubric, check_source, check_structure
from compilewatch.extras.papers.records import (
    Claim,
    Evidence,
    FindingClass,
    PaperPlan,
    Review,
    ReviewedClaim,
)
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


def module(init: str, forward: str, extra: str = "") -> str:
    """A module whose class Block is the paper's part."""
    lines = ["class Block(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        {line}" for line in init.splitlines()]
    lines += ["", "    def forward(self, x):"]
    lines += [f"        {line}" for line in forward.splitlines()]
    return HEAD + extra + "\n".join(lines) + TAIL


GATE = "self.gate = nn.Linear(8, 8)\nself.body = nn.Linear(8, 8)"
QKV = "self.q = nn.Linear(8, 8)\nself.k = nn.Linear(8, 8)\nself.v = nn.Linear(8, 8)"

SCALED = "def scaled(x):\n    return x / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)\n\n\n"
WAVES = """class Waves(nn.Module):
    def forward(self, x):
        return x + torch.sin(x * 2.5)


"""

CASES: dict[str, tuple[str, str, str]] = {
    "gated residual, and a linear layer": (
        "sigmoid multiply",
        module(GATE, "return x + torch.sigmoid(self.gate(x)) * self.body(x)"),
        module("self.f = nn.Linear(8, 8)", "return self.f(x)"),
    ),
    "low rank mixing, and a perceptron": (
        "matmul divide",
        module(
            "self.u = nn.Parameter(torch.randn(4, 2))",
            "return x + self.u @ (self.u.T @ x) / 2**0.5",
        ),
        module(
            "self.f = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))",
            "return x + self.f(x)",
        ),
    ),
    "cosine attention, and stock attention": (
        "norm matmul softmax",
        module(
            QKV,
            "q = F.normalize(self.q(x), dim=-1)\nk = F.normalize(self.k(x), dim=-1)\n"
            "a = F.softmax(q @ k.transpose(1, 2), dim=-1)\nreturn a @ self.v(x)",
        ),
        module(
            "self.a = nn.MultiheadAttention(8, 2, batch_first=True)",
            "y, _ = self.a(x, x, x)\nreturn y",
        ),
    ),
    "exponential decay, and a recurrent layer": (
        "exp cumulative_sum",
        module(
            "self.rate = nn.Parameter(torch.zeros(8))",
            "weights = torch.exp(self.rate)\nreturn torch.cumsum(x * weights, dim=1)",
        ),
        module("self.r = nn.GRU(8, 8, batch_first=True)", "y, _ = self.r(x)\nreturn y"),
    ),
    "fourier mixing, and an encoder layer": (
        "fourier",
        module("", "return torch.fft.fft2(x).real"),
        module("self.e = nn.TransformerEncoderLayer(8, 2, batch_first=True)", "return self.e(x)"),
    ),
    "top k experts, and a router whose result is dropped": (
        "top_k softmax multiply",
        module(
            "self.router = nn.Linear(8, 4)\n"
            "self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))",
            "best, _ = torch.topk(self.router(x), 2)\nweights = torch.softmax(best, -1)\n"
            "y = sum(e(x) for e in self.experts)\nreturn y * weights.sum(-1, keepdim=True)",
        ),
        module(
            "self.router = nn.Linear(8, 4)\nself.f = nn.Linear(8, 8)",
            "best, _ = torch.topk(self.router(x), 2)\nweights = torch.softmax(best, -1)\n"
            "unused = weights * 2\nreturn self.f(x)",
        ),
    ),
    "variance scaling in a helper, and a helper that is not called": (
        "variance sqrt divide",
        module("", "return scaled(x)", SCALED),
        module("self.n = nn.LayerNorm(8)", "return self.n(x)", SCALED),
    ),
    "shifted tokens, and a term that is multiplied by zero": (
        "shift multiply",
        module(
            "self.mix = nn.Parameter(torch.zeros(8))",
            "return x + self.mix * torch.roll(x, 1, dims=1)",
        ),
        module(
            "self.mix = nn.Parameter(torch.zeros(8))",
            "return x + 0 * (self.mix * torch.roll(x, 1, dims=1))",
        ),
    ),
    "squared relu, and the stock activation": (
        "relu power",
        module("self.up = nn.Linear(8, 8)", "return torch.relu(self.up(x)) ** 2"),
        module("self.up = nn.Linear(8, 8)\nself.act = nn.ReLU()", "return self.act(self.up(x))"),
    ),
    "sine positions, and a class that is constructed and not used": (
        "sine multiply",
        module(
            "self.frequency = nn.Parameter(torch.ones(8))",
            "return x + torch.sin(x * self.frequency)",
        ),
        module(
            "self.waves = Waves()\nself.p = nn.Embedding(4, 8)", "return x + self.p.weight", WAVES
        ),
    ),
}
"""A contribution, and what stands in its place -> operations, the module with it and without it."""


def plan(operations: str) -> PaperPlan:
    claim = Claim(id="C1", statement="The contribution.", operations=tuple(operations.split()))
    return PaperPlan(contribution="The contribution.", claims=(claim,))


@pytest.mark.parametrize(("operations", "faithful", "swapped"), CASES.values(), ids=list(CASES))
def test_a_swap_is_caught_and_the_contribution_raises_no_alarm(
    operations: str, faithful: str, swapped: str
) -> None:
    assert check_structure(swapped, plan(operations))
    assert check_structure(faithful, plan(operations)) == ()
    assert check_source(faithful) == check_source(swapped) == ()


def test_a_finding_names_the_claim_the_nearest_class_and_what_it_lacks() -> None:
    _, _, source = CASES["squared relu, and the stock activation"]
    (finding,) = check_structure(source, plan("relu power"))
    assert finding.kind is FindingClass.UNFAITHFUL
    assert "C1" in finding.evidence
    assert "Net comes closest and lacks power" in finding.evidence
    assert finding.line == source.splitlines().index("class Net(nn.Module):") + 1


def test_only_stock_layers_are_no_implementation() -> None:
    source = HEAD + "def model():\n    return nn.TransformerEncoderLayer(8, 2)\n"
    (finding,) = check_structure(source, plan("softmax"))
    assert "only stock layers" in finding.evidence


SOURCE = (REPLIES / "gated-residual" / "code.0.py").read_text()


def reviewed(*quotes: tuple[int, str], present: bool = True) -> tuple[ReviewedClaim, ...]:
    evidence = tuple(Evidence(line=line, quote=quote) for line, quote in quotes)
    return (ReviewedClaim(claim="C1", present=present, evidence=evidence),)


@pytest.mark.parametrize(
    ("claims", "evidence"),
    [
        ((), "does not find"),
        (reviewed(present=False), "does not find"),
        (reviewed(), "not in the code"),
        (reviewed((20, "the gate is a sigmoid")), "not in the code"),
        (reviewed((40, "weight = torch.sigmoid(self.gate(x))")), "not in the code"),
    ],
)
def test_a_claim_without_evidence_in_the_code_is_not_confirmed(
    claims: tuple[ReviewedClaim, ...], evidence: str
) -> None:
    review = Review(approved=True, claims=claims)
    (finding,) = check_rubric(SOURCE, plan("sigmoid"), review)
    assert evidence in finding.evidence


def test_a_quotation_may_miss_its_line_by_two_and_its_spaces() -> None:
    number = SOURCE.splitlines().index("        weight = torch.sigmoid(self.gate(x))") + 1
    claims = reviewed((number + 2, "weight=torch.sigmoid( self.gate(x) )"))
    assert check_rubric(SOURCE, plan("sigmoid"), Review(approved=True, claims=claims)) == ()
