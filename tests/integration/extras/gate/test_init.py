"""`compilewatch init` runs the test that it writes with limits of memory and time."""

from pathlib import Path

import pytest

from compilewatch.extras.gate import init
from compilewatch.extras.gate.init import TriedModel

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

NETS = """
import torch

class Small(torch.nn.Linear): ...

class Greedy(Small):
    def forward(self, x):
        self.kept = bytearray(3 * 2**30)
        return super().forward(x)
"""


def test_a_model_that_takes_more_memory_in_its_test_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tests in children with torch, one of which grows beyond its limit."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(init, "TRY_GIB", 1.5)
    models = {
        name.lower(): (TriedModel("nets", name, f"{name}(4, 4)"), "model, torch.ones(2, 4)")
        for name in ("Small", "Greedy")
    }
    assert init._passed(tmp_path, tmp_path / "test_compile.py", models) == {"small"}
