"""The wheel, installed outside the checkout with what it requires and nothing else.

Its environment gets hard links to the packages that the wheel requires and to what these require
(`environments.creation`): pip could do the same, but would unpack five gigabytes of torch.
`pip check` proves that nothing is missing.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from compilewatch.config import cache_folder
from compilewatch.environments import INTERPRETERS, package_folder
from compilewatch.environments.creation import share

ROOT = Path(__file__).parents[2]

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


def run(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"


def share_required(packages: Path, extra: str = "") -> None:
    """Give an environment what the compilewatch in it requires, with one of its extras."""
    (own,) = metadata.distributions(name="compilewatch", path=[str(packages)])
    lines = [Requirement(line) for line in own.requires or ()]
    names = [
        line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})
    ]
    share(package_folder(INTERPRETERS["default"]), packages, names)


def call(python: Path, *arguments: str, cwd: Path, status: int = 0) -> str:
    """Run the installed program with nothing of the checkout in its environment."""
    hidden = ("COMPILEWATCH_", "PYTHON", "VIRTUAL_ENV")
    variables = {n: v for n, v in os.environ.items() if not n.startswith(hidden)}
    variables |= {"HOME": str(cwd), "COMPILEWATCH_CACHE": str(cwd / "cache")}
    command = [str(python), "-m", "compilewatch", *arguments]
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True)
    assert done.returncode == status, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what it is made of, since setuptools leaves files in its source."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "source" / "src", ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    run(sys.executable, "-m", "pip", "wheel", *options, str(folder / "source"))
    (path,) = folder.glob("compilewatch-*.whl")
    return path


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
    """But the pages about packages, which are for those who read the source."""
    with zipfile.ZipFile(wheel) as archive:
        installed = {name for name in archive.namelist() if name.startswith("compilewatch/")}
    source = wheel.parent / "source" / "src" / "compilewatch"
    needed = {name for name in files(source) if Path(name).name != "README.md"}
    assert installed == {f"compilewatch/{name}" for name in needed}


def test_it_works_without_transformers_and_then_with_it(
    wheel: Path, environment: Path, tmp_path: Path
) -> None:
    """A minute: only an environment that lacks Transformers shows an import that needs it."""
    (tmp_path / "inputs").mkdir()
    (tmp_path / "mynet.py").write_text(MYNET)
    (tmp_path / "inputs" / "models.toml").write_text(MANIFEST)
    run(sys.executable, "-m", "venv", "--without-pip", environment / "venv")
    python = environment / "venv" / "bin" / "python"
    (packages,) = environment.glob("venv/lib/python*/site-packages")
    share(package_folder(INTERPRETERS["default"]), packages, ["pip", "torch"])
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    share_required(packages)
    run(python, "-m", "pip", "check")
    before = files(environment)
    assert "Data-dependent branching" in call(python, "explain", "./mynet.py", cwd=tmp_path)
    call(python, "sweep", "--source", "manifest", cwd=tmp_path)
    assert statuses(tmp_path) == {"team/net": "graph_break"}
    call(python, "report", cwd=tmp_path)
    assert (tmp_path / "outputs" / "latest" / "report" / "index.html").is_file()
    assert files(environment) == before  # a person may be unable to write there
    refused = call(python, "sweep", "--top", "1", cwd=tmp_path, status=2)
    assert refused.splitlines()[-1].endswith("pip install 'compilewatch[transformers]'")

    share_required(packages, "transformers")
    call(python, "sweep", "--models", ",".join(CLASSES), "--depth", "reduced", cwd=tmp_path)
    assert statuses(tmp_path) == dict.fromkeys(CLASSES, "pass") | {"XmodModel": "graph_break"}
