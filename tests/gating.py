"""Models in a repository of an author: one with a break, and the suite of twenty."""

import importlib.util
import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import compilewatch
from compilewatch.extras.gate.baseline import KnownBreak, renewal
from compilewatch.extras.gate.judgement import CheckReport, Rules, judge
from tests.cases import suite

SOURCE = Path(suite.__file__).read_text(encoding="utf-8")

NET = """
import torch
import vendored

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.scaled(self.linear(x))

    def scaled(self, y):
        {line}
        return y + 1
"""
"""A model of an author, which breaks or not in line 14."""

BRANCH = "y = y * 2 if y.sum() > 0 else y"
WHERE = "y = torch.where(y.sum() > 0, y * 2, y)"

Baseline = Sequence[KnownBreak]


def imported(root: Path, source: str, name: str = "models.py") -> ModuleType:
    """Write the suite's file with this source, and import it anew."""
    path = root / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(source.encode())
    linecache.clearcache()
    sys.modules.pop("models", None)
    spec = importlib.util.spec_from_file_location("models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["models"] = module
    exec(compile(source, str(path), "exec"), module.__dict__)  # a cached .pyc could be an older one
    return module


def checked(
    root: Path, models: Sequence[Any], inputs: Sequence[Any], baseline: Baseline
) -> list[CheckReport]:
    """Check models as tests do, each with its inputs."""
    rules = Rules(root=root)
    return [
        judge(compilewatch.check(model, *args), baseline, rules, name=type(model).__name__)
        for model, args in zip(models, inputs, strict=True)
    ]


def baseline_of(reports: Sequence[CheckReport]) -> Baseline:
    """What `--compilewatch-update` makes of reports."""
    met = {r.name: [(b.entry, b.known) for b in r.breaks if b.own] for r in reports}
    return renewal((), met, met.keys(), lambda _: False).known
