"""A graph break of a model of one's own becomes a small file of plain PyTorch.

Only a worker can show it: it builds the model, runs it up to the line, and runs the file alone.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from compilewatch.environments import Environments
from compilewatch.extras.fixes.minimal_reproducer import write
from compilewatch.records import FactoryBuild, ModelSpec, Request, Target, Tier

MODEL = '''
import logging

import torch
from torch import nn

logger = logging.getLogger("pooling")


class Config:
    def __init__(self):
        self.scale = 2.0
        self.unused = object()


def chosen(x, mask, scale):
    """Keep what the mask keeps."""
    return x[mask.bool()] * scale


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.project = nn.Linear(4, 4)

    def forward(self, x, mask):
        y = self.project(x)
        kept = chosen(y, mask, self.config.scale)
        if kept.shape[0] > 1:
            logger.warning("many")
        return kept.sum()


def inputs():
    return torch.ones(3, 4), torch.tensor([[1, 0, 1, 1]] * 3)
'''


@pytest.mark.matrix
def test_the_file_shows_the_code_alone(tmp_path: Path) -> None:
    """Takes seconds: a worker, a capture, some forty candidates and two fresh processes."""
    (tmp_path / "pooling.py").write_text(MODEL)
    build = FactoryBuild(factory="pooling:Pool", path=str(tmp_path), inputs="pooling:inputs")
    model = ModelSpec(source="test", name="Pool", build=build)
    request = Request(model=model, target=Target(), key="0", tier=Tier.REAL)
    source, note = write(Environments(), request, at="GB0036", issue=False, seconds=10)
    assert "shows GB0036 with the same reason" in note
    assert sum(not line.startswith("#") for line in source.splitlines()) <= 15
    assert "pooling" not in "\n".join(source.splitlines()[4:])
    path = tmp_path / "alone.py"
    path.write_text(source)
    ended = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "gb0036" in ended.stderr
