"""Which package changed a verdict: real releases of torch and Transformers in all four corners."""

import json
from pathlib import Path

import pytest

from compilewatch.extras.history.attribute import ChangeCause
from tests.team import Compilewatch

# Starts a worker in each of four environments: only real ones evaluate the corners that two runs
# lack. The default environment has the new torch and the new Transformers.
pytestmark = [
    pytest.mark.torch,
    pytest.mark.torch_2_13,
    pytest.mark.transformers_5_5,
    pytest.mark.torch_2_13_transformers_5_5,
    pytest.mark.matrix,
    pytest.mark.timeout(300),
]

MODULE = """
import torch
import transformers
from torch import nn


def release(package):
    return tuple(map(int, package.__version__.split("+")[0].split(".")[:2]))


NEW_TORCH = release(torch) >= (2, 14)
OLD_TRANSFORMERS = release(transformers) < (5, 6)


class Broken(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.breaks = breaks

    def forward(self, x):
        x = x + 1
        if self.breaks:
            torch._dynamo.graph_break()
        return x * 2


BREAKS = {
    "by_torch": NEW_TORCH,
    "by_both": NEW_TORCH and OLD_TRANSFORMERS,
    "by_none": True,
}
for name, breaks in BREAKS.items():
    globals()[name] = lambda breaks=breaks: Broken(breaks)


def inputs():
    return {"x": torch.ones(2, 3)}
"""

EXPECTED = {
    "by_torch": (ChangeCause.TORCH, "torch alone changes the result"),
    "by_both": (
        ChangeCause.INTERACTION,
        "neither of the two alone changes the result, only both together",
    ),
}
"""`by_none` is not there: nothing changed it."""


def test_each_change_has_the_package_that_made_it(program: Compilewatch, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(MODULE)
    models = (
        f'[[model]]\nname = "{name}"\nfactory = "nets:{name}"\npython_path = "."\n'
        'inputs = "nets:inputs"\n'
        for name in (*EXPECTED, "by_none")
    )
    (tmp_path / "models.toml").write_text("schema_version = 1\n" + "".join(models))
    own = {
        "COMPILEWATCH_MODELS_FILE": str(tmp_path / "models.toml"),
        "COMPILEWATCH_OUTPUT_DIR": str(tmp_path / "outputs"),
    }
    pair = ("--environments", "torch-2.13,transformers-5.5.4")
    swept = program("sweep", "--source", "manifest", *pair, "--json", **own)
    assert swept.returncode == 0, swept.stderr
    asked = program("compare", "latest", *pair, "--attribute", "--json", **own)
    assert asked.returncode == 0, asked.stderr
    found = {one["model"]: (one["cause"], one["detail"]) for one in json.loads(asked.stdout)}
    assert found == EXPECTED
