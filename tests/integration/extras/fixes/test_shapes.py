"""Lines that need a compilation for another size, as `fix --shapes` finds and removes them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.matrix]

NET = """import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y + torch.tensor([1.0] * x.shape[0])[:, None]


def build():
    return Net()
"""


def test_a_list_as_long_as_the_batch_is_found_replaced_and_verified(tmp_path: Path) -> None:
    """A minute: only the command shows that search, rule and script fit together."""
    (tmp_path / "net.py").write_text(NET)
    command = [sys.executable, "-m", "compilewatch", "fix", "./net.py:build", "--shapes", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fix = json.loads(done.stdout)
    (line,) = fix["breaks"]
    assert (line["code"], line["file"], line["line"]) == ("recompiled_constant", "net.py", 11)
    assert fix["detail"] == "compile 2 times instead of 5 for other sizes"
    assert [change["name"] for change in fix["changes"]] == ["tensor instead of a list at net:11"]
    assert "+        return y + torch.full((x.shape[0],), 1.0)[:, None]\n" in fix["patch"]
    assert fix["verification"]["compilations"] == [5, 2]
    steps = {step["name"]: step["passed"] for step in fix["verification"]["steps"]}
    assert steps["results for other sizes"]
    assert steps["results of Inductor"]
