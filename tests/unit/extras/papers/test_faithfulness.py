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

FAITHFUL: dict[str, tuple[tuple[str, ...], str]] = {
    "gated residual": (
        ("sigmoid", "multiply"),
        module(GATE, "return x + torch.sigmoid(self.gate(x)) * self.body(x)"),
    ),
    "low rank mixing": (
        ("matmul", "divide"),
        module(
            "self.u = nn.Parameter(torch.randn(4, 2))",
            "return x + self.u @ (self.u.T @ x) / 2**0.5",
        ),
    ),
    "cosine attention": (
        ("norm", "matmul", "softmax"),
        module(
            QKV,
            "q = F.normalize(self.q(x), dim=-1)\nk = F.normalize(self.k(x), dim=-1)\n"
            "a = F.softmax(q @ k.transpose(1, 2), dim=-1)\nreturn a @ self.v(x)",
        ),
    ),
    "exponential decay": (
        ("exp", "cumulative_sum"),
        module(
            "self.rate = nn.Parameter(torch.zeros(8))",
            "weights = torch.exp(self.rate)\nreturn torch.cumsum(x * weights, dim=1)",
        ),
    ),
    "fourier mixing": (
        ("fourier",),
        module("", "return torch.fft.fft2(x).real"),
    ),
    "top k experts": (
        ("top_k", "softmax", "multiply"),
        module(
            "self.router = nn.Linear(8, 4)\n"
            "self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))",
            "best, _ = torch.topk(self.router(x), 2)\nweights = torch.softmax(best, -1)\n"
            "y = sum(e(x) for e in self.experts)\nreturn y * weights.sum(-1, keepdim=True)",
        ),
    ),
    "variance scaling, in a helper": (
        ("variance", "sqrt", "divide"),
        module(
            "",
            "return scaled(x)",
            "def scaled(x):\n    return x / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)\n\n\n",
        ),
    ),
    "shifted tokens, in a method": (
        ("shift", "multiply"),
        module(
            "self.mix = nn.Parameter(torch.zeros(8))",
            "return x + self.mix * torch.roll(x, 1, dims=1)",
        ),
    ),
    "squared relu": (
        ("relu", "power"),
        module("self.up = nn.Linear(8, 8)", "return torch.relu(self.up(x)) ** 2"),
    ),
    "sine positions": (
        ("sine", "multiply"),
        module(
            "self.frequency = nn.Parameter(torch.ones(8))",
            "return x + torch.sin(x * self.frequency)",
        ),
    ),
}

SWAPPED: dict[str, tuple[str, str]] = {
    "gated residual": ("a linear layer", module("self.f = nn.Linear(8, 8)", "return self.f(x)")),
    "low rank mixing": (
        "a perceptron",
        module(
            "self.f = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))",
            "return x + self.f(x)",
        ),
    ),
    "cosine attention": (
        "stock attention",
        module(
            "self.a = nn.MultiheadAttention(8, 2, batch_first=True)",
            "y, _ = self.a(x, x, x)\nreturn y",
        ),
    ),
    "exponential decay": (
        "a recurrent layer",
        module("self.r = nn.GRU(8, 8, batch_first=True)", "y, _ = self.r(x)\nreturn y"),
    ),
    "fourier mixing": (
        "an encoder layer",
        module("self.e = nn.TransformerEncoderLayer(8, 2, batch_first=True)", "return self.e(x)"),
    ),
    "top k experts": (
        "the router is there and its result is dropped",
        module(
            "self.router = nn.Linear(8, 4)\nself.f = nn.Linear(8, 8)",
            "best, _ = torch.topk(self.router(x), 2)\nweights = torch.softmax(best, -1)\n"
            "unused = weights * 2\nreturn self.f(x)",
        ),
    ),
    "variance scaling, in a helper": (
        "the helper is there and is not called",
        module(
            "self.n = nn.LayerNorm(8)",
            "return self.n(x)",
            "def scaled(x):\n    return x / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)\n\n\n",
        ),
    ),
    "shifted tokens, in a method": (
        "the term is multiplied by zero",
        module(
            "self.mix = nn.Parameter(torch.zeros(8))",
            "return x + 0 * (self.mix * torch.roll(x, 1, dims=1))",
        ),
    ),
    "squared relu": (
        "the activation is stock",
        module("self.up = nn.Linear(8, 8)\nself.act = nn.ReLU()", "return self.act(self.up(x))"),
    ),
    "sine positions": (
        "the class that does it is constructed and not used",
        module(
            "self.waves = Waves()\nself.p = nn.Embedding(4, 8)",
            "return x + self.p.weight",
            "class Waves(nn.Module):\n    def forward(self, x):\n"
            "        return x + torch.sin(x * 2.5)\n\n\n",
        ),
    ),
}


def plan(operations: tuple[str, ...]) -> PaperPlan:
    claim = Claim(id="C1", statement="The contribution.", operations=operations)
    return PaperPlan(contribution="The contribution.", claims=(claim,))


def test_nine_of_ten_swaps_are_caught_with_at_most_one_false_alarm() -> None:
    caught = [
        name
        for name, (_, source) in SWAPPED.items()
        if check_structure(source, plan(FAITHFUL[name][0]))
    ]
    alarms = [
        n for n, (operations, text) in FAITHFUL.items() if check_structure(text, plan(operations))
    ]
    assert len(FAITHFUL) == len(SWAPPED) == 10
    assert (len(caught), alarms) == (10, [])


@pytest.mark.parametrize("source", [s for _, s in [*FAITHFUL.values(), *SWAPPED.values()]])
def test_the_fixtures_are_valid_modules(source: str) -> None:
    assert check_source(source) == ()


def test_a_finding_names_the_claim_the_nearest_class_and_what_it_lacks() -> None:
    source = SWAPPED["squared relu"][1]
    (finding,) = check_structure(source, plan(("relu", "power")))
    assert finding.kind is FindingClass.UNFAITHFUL
    assert "C1" in finding.evidence
    assert "Net comes closest and lacks power" in finding.evidence
    assert finding.line == source.splitlines().index("class Net(nn.Module):") + 1


def test_only_stock_layers_are_no_implementation() -> None:
    source = HEAD + "def model():\n    return nn.TransformerEncoderLayer(8, 2)\n"
    (finding,) = check_structure(source, plan(("softmax",)))
    assert "only stock layers" in finding.evidence


SOURCE = (REPLIES / "gated-residual" / "code.0.py").read_text()


@pytest.mark.parametrize(
    ("reviewed", "evidence"),
    [
        ((), "does not find"),
        ((ReviewedClaim(claim="C1", present=False),), "does not find"),
        ((ReviewedClaim(claim="C1", present=True),), "not in the code"),
        (
            (
                ReviewedClaim(
                    claim="C1",
                    present=True,
                    evidence=(Evidence(line=20, quote="the gate is a sigmoid"),),
                ),
            ),
            "not in the code",
        ),
        (
            (
                ReviewedClaim(
                    claim="C1",
                    present=True,
                    evidence=(Evidence(line=40, quote="weight = torch.sigmoid(self.gate(x))"),),
                ),
            ),
            "not in the code",
        ),
    ],
)
def test_a_claim_without_evidence_in_the_code_is_not_confirmed(
    reviewed: tuple[ReviewedClaim, ...], evidence: str
) -> None:
    review = Review(approved=True, claims=reviewed)
    (finding,) = check_rubric(SOURCE, plan(("sigmoid",)), review)
    assert evidence in finding.evidence


def test_a_quotation_may_miss_its_line_by_two_and_its_spaces() -> None:
    number = SOURCE.splitlines().index("        weight = torch.sigmoid(self.gate(x))") + 1
    quote = Evidence(line=number + 2, quote="weight=torch.sigmoid( self.gate(x) )")
    claims = (ReviewedClaim(claim="C1", present=True, evidence=(quote,)),)
    assert check_rubric(SOURCE, plan(("sigmoid",)), Review(approved=True, claims=claims)) == ()
