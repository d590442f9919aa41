"""The wheel, installed outside the checkout with what it requires and nothing else."""

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.config import cache_folder
from compilewatch.environments import INTERPRETERS, package_folder
from compilewatch.environments.creation import share
from tests.installing import ROOT, build, call, install, required

pytestmark = [pytest.mark.matrix, pytest.mark.torch, pytest.mark.timeout(1800)]

CLASSES = ("BertModel", "CLIPModel", "WhisperModel", "XmodModel")
"""Text, images and sound; the last needs an override of `data/overrides`."""

MYNET = """
import torch

class MyNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return y if y.sum() > 0 else -y

def build():
    return MyNet()
"""

MANIFEST = '[[model]]\nname = "team/net"\nfactory = "mynet:build"\npython_path = ".."\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder for an environment on a disk: a copy of torch would fill the memory."""
    folder = cache_folder() / "installed" / request.node.name
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def files(folder: Path) -> set[str]:
    """All files below a folder but the bytecode, which Python keeps only where it can."""
    paths = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return {path for path in paths if not path.endswith(".pyc")}


def statuses(folder: Path) -> dict[str, str]:
    """The status of each result in the newest run of a folder, by model."""
    path = folder / "outputs" / "latest" / "results.jsonl"
    results = map(json.loads, path.read_text().splitlines())
    return {result["request"]["model"]["name"]: result["status"] for result in results}


def test_it_has_each_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        installed = {name for name in archive.namelist() if name.startswith("compilewatch/")}
    assert installed == {f"compilewatch/{name}" for name in files(ROOT / "src" / "compilewatch")}


def test_it_works_without_transformers_and_then_with_it(
    wheel: Path, environment: Path, tmp_path: Path
) -> None:
    """A minute: only an environment that lacks Transformers shows an import that needs it."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "mynet.py").write_text(MYNET)
    (tmp_path / "inputs" / "models.toml").write_text(MANIFEST)
    python = install(wheel, environment / "venv")
    before = files(environment)
    explained = call(python, "explain", "./mynet.py", cwd=tmp_path)
    assert "Data-dependent branching" in explained.stdout
    call(python, "sweep", "--source", "manifest", cwd=tmp_path)
    assert statuses(tmp_path) == {"team/net": "graph_break"}
    call(python, "report", cwd=tmp_path)
    assert (tmp_path / "outputs" / "latest" / "report" / "index.html").is_file()
    assert files(environment) == before  # a person may be unable to write there
    refused = call(python, "sweep", "--top", "1", cwd=tmp_path, statuses=[2]).stderr
    assert refused.splitlines()[-1].endswith("pip install 'compilewatch[transformers]'")

    (packages,) = environment.glob("venv/lib/python*/site-packages")
    own = package_folder(INTERPRETERS["default"])
    share(own, packages, required(packages, ["transformers"]))
    call(python, "sweep", "--models", ",".join(CLASSES), "--depth", "reduced", cwd=tmp_path)
    assert statuses(tmp_path) == dict.fromkeys(CLASSES, "pass")
