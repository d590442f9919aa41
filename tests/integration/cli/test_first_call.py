"""What only a first call does is in the verdict, from the command line to the worker and back."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.team import Compilewatch

pytestmark = pytest.mark.torch

MODELS = '''
import torch

STATE = []

class Base(torch.nn.Module):
    scale, calls = None, 0

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

class Detector(Base):
    """Fills a cache from values and prints, at the first call."""

    def forward(self, x):
        y = self.linear(x)
        if self.scale is None:
            self.scale = float(x.sum().item())
        if not STATE:
            STATE.append(1)
            print("seen")
        return y * self.scale

class Later(Base):
    def forward(self, x):
        self.calls += 1
        y = self.linear(x)
        if self.calls == 2:
            torch._dynamo.graph_break()
        return y * 2

class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.LazyLinear(4)

    def forward(self, x):
        return self.linear(x).relu()
'''


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("first") / "first.py"
    path.write_text(MODELS)
    return path


def explained(compilewatch: Compilewatch, model: str, *options: str) -> dict[str, Any]:
    done = compilewatch("explain", model, "--json", *options)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("tier", ["fake", "real"])
def test_breaks_are_found(compilewatch: Compilewatch, models: Path, tier: str) -> None:
    result = explained(compilewatch, f"{models}:Detector", "--tier", tier)
    assert (result["status"], result["fullgraph"]["accepted"]) == ("graph_break", False)
    text = MODELS.splitlines()
    lines = [text[graph_break["line"] - 1].strip() for graph_break in result["breaks"]]
    assert lines == ["self.scale = float(x.sum().item())", 'print("seen")']
    phases = [name for name, seconds in result["durations"].items() if seconds > 0]
    assert phases == ["setup", "create", "inputs", "eager", "compile"]


def test_what_the_second_call_meets_is_shown(compilewatch: Compilewatch, models: Path) -> None:
    result = explained(compilewatch, f"{models}:Later")
    assert (result["status"], result["fullgraph"]["accepted"]) == ("pass", True)
    assert result["second_call"]["graph_breaks"] == 1
    said = compilewatch("explain", f"{models}:Later").stdout
    assert "second call, with equal inputs: 1 graph break (GB0025 at " in " ".join(said.split())


def test_lazy_parameters_are_made(compilewatch: Compilewatch, models: Path) -> None:
    result = explained(compilewatch, f"{models}:Lazy")
    assert (result["status"], result["tier"]) == ("pass", "real")
