"""The project is installed as CI installs it: its breaks are its own, at the repository's lines."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x
"""
TEST = """
import torch
from mypkg.net import Net

def test_net(compile_check):
    compile_check(Net(), torch.ones(2, 4))
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "{name}"
version = "1"
[tool.setuptools]
{layout}
"""
SRC = 'package-dir = {"" = "src"}\npackages = ["mypkg"]'
FLAT = 'packages = ["mypkg"]'
OTHER = 'package-dir = {"" = "code/python"}\npackages = ["mypkg"]'


class Project:
    """A clone, and an environment without the project."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "clone"
        self.python = str(folder / "env" / "bin" / "python")
        (self.root / ".git").mkdir(parents=True)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        tools = sysconfig.get_path("purelib")
        (site / "tools.pth").write_text(f"import site; site.addsitedir({tools!r})")

    def write(self, **files: str) -> None:
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def package(self, folder: str, *, project: str, name: str, layout: str) -> None:
        self.write(**{f"{folder}/mypkg/__init__.py": "", f"{folder}/mypkg/net.py": NET})
        self.write(**{f"{project}/pyproject.toml": PROJECT.format(name=name, layout=layout)})

    def install(self, *arguments: str) -> None:
        quiet = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation")
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", *quiet]
        subprocess.run([*pip, *arguments], cwd=self.root, check=True)

    def pytest(self, folder: str = ".", *arguments: str) -> tuple[int, str]:
        """Run pytest without the current folder on the path, as the program `pytest` does."""
        words = ["-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(
            [self.python, *words], cwd=self.root / folder, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("folder", "layout", "editable"),
    [
        pytest.param("src", SRC, False, id="wheel-src"),
        pytest.param(".", FLAT, True, id="editable-flat", marks=pytest.mark.matrix),
        pytest.param("code/python", OTHER, False, id="wheel-other", marks=pytest.mark.matrix),
    ],
)
def test_a_break_of_the_installed_project_is_new_in_its_repository(
    project: Project, folder: str, layout: str, editable: bool
) -> None:
    """Builds, installs and imports torch in a new environment: only an installation differs."""
    project.package(folder, project=".", name="my-pkg", layout=layout)
    project.write(**{"tests/test_net.py": TEST})
    project.install(*(["--editable"] if editable else []), ".")
    status, output = project.pytest()
    assert status == 1, output
    path = Path(folder, "mypkg/net.py").as_posix()
    assert f"{path}:6 in Net.forward: GB0170 Data-dependent branching" in output
    assert "new: 1  known: 0" in output


@pytest.mark.matrix
def test_a_sibling_of_the_repository_and_an_older_installation_are_own_code(
    project: Project,
) -> None:
    """Builds and installs a second project of the clone, which the tests of the first import."""
    project.package("libs/net/src", project="libs/net", name="net", layout=SRC)
    settings = '[project]\nname = "one"\nversion = "1"\n'
    project.write(**{"apps/one/pyproject.toml": settings, "apps/one/tests/test_net.py": TEST})
    project.install("./libs/net")
    status, output = project.pytest("apps/one")
    assert status == 1, output
    assert "../../libs/net/src/mypkg/net.py:6 in Net.forward: GB0170" in output
    project.write(**{"libs/net/src/mypkg/net.py": f"# A comment.\n\n{NET}"})
    status, output = project.pytest("apps/one", "--compilewatch-update")
    assert status == 0, output
    assert "in Net.forward, ../../libs/net/src/mypkg/net.py: return x * 2 if" in output
    status, output = project.pytest("apps/one")
    assert (status, "known: 1" in output) == (0, True), output
