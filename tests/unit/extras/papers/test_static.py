"""Static checks: what generated code may not contain, with its line; nothing is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.papers.checks import check_source
from compilewatch.extras.papers.records import FindingClass
from tests.papers import REPLIES

GOOD = """import torch
from torch import nn

class Net(nn.Module):
    def forward(self, x):
        return x * 2

def model():
    return Net()

def inputs():
    return (torch.zeros(2, 3),)

def loss(output, inputs):
    return output.sum()
"""


def test_code_without_faults_has_no_finding() -> None:
    assert check_source(GOOD) == ()


@pytest.mark.parametrize("path", sorted(REPLIES.rglob("*.py")), ids=str)
def test_the_shipped_replies_have_no_finding(path: Path) -> None:
    assert check_source(path.read_text()) == ()


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "import subprocess as s",
        "from os import environ",
        "import torch.utils.cpp_extension",
        "from . import other",
        "from torch import *",
        "x = torch.zeros(3)",
        "torch.manual_seed(0)",
        "for i in range(3): pass",
        "@torch.compiler.disable\ndef f(x): return x",
        "def f(x): return x\n@f\nclass C: pass",
        "def f(x=torch.zeros(1)): return x",
        "@torch.compile\ndef f(): pass",
        "class A(metaclass=type): pass",
        "def f(): return open('/etc/passwd')",
        "def f(): return eval('1')",
        "def f(x): return getattr(x, 'a' + 'b')",
        "def f(x): return ().__class__.__bases__",
        "def f(): return torch.load('x')",
        "def f(): return torch.ops.aten.add",
        "def f(x): return x.cuda()",
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
        ("def model(:", "does not parse"),
        ("\0", "does not parse"),
        (GOOD.replace("def loss", "def lose"), "no function loss()"),
        (GOOD.replace("def model()", "def model(width)"), "0 positional arguments"),
        (GOOD.replace("loss(output, inputs)", "loss(output)"), "2 positional arguments"),
        ("x = 1\n" * 60_000, "bytes"),
        ("(" * 5000, "does not parse"),
    ],
)
def test_code_that_is_not_such_a_module_is_invalid(source: str, evidence: str) -> None:
    (finding, *_) = check_source(source)
    assert finding.kind is FindingClass.INVALID_CODE
    assert evidence in finding.evidence
