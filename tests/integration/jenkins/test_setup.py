"""Workspaces of one agent share the locked packages, and each runs its own checkout."""

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.jenkins.conftest import ROOT

BACKEND = """import os, zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "compilewatch-1-py3-none-any.whl"
    info = "compilewatch-1.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("compilewatch.pth", os.getcwd() + "/src\\n")
        for file, lines in [
            ("METADATA", "Metadata-Version: 2.1,Name: compilewatch,Version: 1"),
            ("WHEEL", "Wheel-Version: 1.0,Root-Is-Purelib: true,Tag: py3-none-any"),
        ]:
            wheel.writestr(info + file, lines.replace(",", "\\n") + "\\n")
        wheel.writestr(info + "entry_points.txt", "[console_scripts]\\ncompilewatch=own:main\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""
PROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "compilewatch"
version = "1"
"""
OWN = """import pathlib, torch
def main():
    print(pathlib.Path(__file__).parents[1].name, torch.__version__, torch.__file__)
"""


def wheel(folder: Path, name: str, version: str) -> None:
    """A package of one line, with a program and a .pth file that has to be obeyed."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info/"
    files = {
        f"{name}.py": f"import beside\n__version__ = {version!r}\n",
        f"{name}.pth": f"{name}_beside\n",
        f"{name}_beside/beside.py": "",
        info + "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        info + "entry_points.txt": "[console_scripts]\ntool=beside:main\n",
        info + "RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, text in files.items():
            made.writestr(path, text)


def workspace(folder: Path, version: str) -> Path:
    (folder / "scripts").mkdir(parents=True)
    (folder / "requirements").mkdir()
    (folder / "src").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", folder / "scripts")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    (folder / "src" / "own.py").write_text(OWN)
    (folder / "requirements" / "default.txt").write_text(f"torch=={version}\n")
    return folder


@dataclass(frozen=True)
class Agent:
    """A machine with packages of two versions, and nothing else."""

    folder: Path
    variables: dict[str, str]

    def start(self, folder: Path) -> subprocess.Popen[str]:
        script = folder / "scripts" / "setup.sh"
        return subprocess.Popen(
            [script],
            env=self.variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def setup(self, folder: Path, status: int = 0) -> str:
        process = self.start(folder)
        output, _ = process.communicate()
        assert (process.returncode != 0) == (status != 0), output
        return output


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", "torch", version)
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYTHON": sys.executable,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
    }
    return Agent(tmp_path, variables)


@pytest.mark.matrix
def test_one_environment_for_all_workspaces_with_the_same_lock(agent: Agent) -> None:
    """Some seconds: that pip and Python obey what the script lays out, only they can tell."""
    shared = agent.folder / "cache"
    agent.variables["SHARED"] = str(shared)
    setup = agent.setup

    def says(folder: Path) -> list[str]:
        program = folder / ".venv" / "bin" / "compilewatch"
        return subprocess.run(
            [program], env=agent.variables, capture_output=True, text=True, check=True
        ).stdout.split()

    def environments() -> set[Path]:
        return {path for path in shared.iterdir() if path.is_dir()}

    first, second = (workspace(agent.folder / name, "1.0") for name in ("first", "second"))
    assert "installing the locked requirements" in setup(first)
    (made,) = environments()
    assert "installing the locked requirements" not in setup(second)
    assert setup(second) == ""
    for folder in (first, second):
        name, version, file = says(folder)
        assert (name, version) == (folder.name, "1.0")
        assert Path(file).is_relative_to(made)
        assert (folder / ".venv" / "bin" / "tool").exists()
        assert not list((folder / ".venv").rglob("torch*"))

    (second / "requirements" / "default.txt").write_text("torch==2.0\n")
    setup(second)
    assert (says(first)[1], says(second)[1]) == ("1.0", "2.0")
    assert len(environments()) == 2

    # Another build sets up: this one says so and waits, and then says that it goes on.
    with (shared / "lock").open("r+") as held:
        assert held.read().startswith("by hand in ")
        held.seek(0)
        held.truncate()
        held.write("jenkins-compilewatch-12, since 03:00\n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        process = agent.start(second)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "waiting for the set-up of another build" in line
        assert line.endswith("jenkins-compilewatch-12, since 03:00\n")
        fcntl.flock(held, fcntl.LOCK_UN)
        rest, _ = process.communicate(timeout=60)
        assert (process.returncode, "continuing" in rest) == (0, True)

    # Nobody has asked for the first in a month.
    os.utime(made, (0, 0))
    assert setup(second) == ""
    assert made not in environments()


def test_only_builds_share(tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    shutil.copytree(ROOT / "scripts" / "stages", folder / "scripts" / "stages")
    setup = folder / "scripts" / "setup.sh"
    setup.write_text('#!/bin/sh\necho "shared: ${SHARED:-no}"\n')
    setup.chmod(0o755)
    stage = folder / "scripts" / "stages" / "setup.sh"
    where = "/home/agent/.cache/compilewatch/shared"
    for variables, shared in (({}, "no"), ({"BUILD_TAG": "jenkins-compilewatch-1"}, where)):
        environment = {"PATH": os.environ["PATH"], "HOME": "/home/agent", **variables}
        assert subprocess.check_output([stage], env=environment, text=True) == f"shared: {shared}\n"


@pytest.mark.matrix  # in `make test`, environments/test_creation.py finishes an interrupted one
def test_an_interrupted_set_up_is_started_again(agent: Agent) -> None:
    """Some seconds: only pip can say whether it installs into what is left."""
    folder = workspace(agent.folder / "own", "1.0")
    locked = folder / "requirements" / "default.txt"
    locked.write_text("torch==1.0\nabsent==1.0\n")
    agent.setup(folder, status=1)
    # As a killed pip leaves it.
    (metadata,) = (folder / ".venv").rglob("torch-1.0.dist-info/METADATA")
    metadata.unlink()
    locked.write_text("torch==1.0\n")
    assert "interrupted; starting again" in agent.setup(folder)
    assert agent.setup(folder) == ""


def test_an_interpreter_that_the_sandbox_cannot_read_is_chosen_only_without_another(
    tmp_path: Path,
) -> None:
    """One in root's home is often the fastest, and `make papers` cannot run code with it."""
    script = (ROOT / "scripts" / "setup.sh").read_text()
    chooses = script[script.index("usable=") : script.index("\n}\n", script.index("find_python()"))]

    def interpreter(name: str, microseconds: int, *, readable: bool) -> Path:
        path = tmp_path / name / "python3.11"
        path.parent.mkdir()
        status = 0 if readable else 1
        cases = f"*geteuid*) exit {status} ;; *ensurepip*) echo {microseconds} ;;"
        path.write_text(f"#!/bin/sh\ncase $2 in {cases} esac\n")
        path.chmod(0o755)
        return path

    # Only what the function calls, and no interpreter of this machine: the choice among real ones
    # is a measurement.
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sort", "head", "cut"):
        (tools / name).symlink_to(str(shutil.which(name)))

    def chosen(*paths: Path) -> str:
        folders = [str(path.parent) for path in paths]
        return subprocess.run(
            [str(shutil.which("bash")), "-c", f"{chooses}\n}}\nfind_python"],
            env={"PATH": os.pathsep.join([*folders, str(tools)])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    fast, slow = interpreter("a", 1, readable=False), interpreter("b", 9_999_999, readable=True)
    faster = interpreter("c", 9_999_998, readable=True)
    assert chosen(fast, slow) == str(slow)
    assert chosen(fast, slow, faster) == str(faster)
    assert chosen(fast) == str(fast)
