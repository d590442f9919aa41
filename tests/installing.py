"""Installations of the wheel in separate environments, outside the checkout.

An environment gets hard links to the packages that the wheel requires and to what these require
(`environments.creation`), and to nothing else: pip could do the same, but would unpack five
gigabytes of torch. `pip check` proves that nothing is missing. `python -m tests.installing FOLDER`
makes one by hand.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from compilewatch.environments import INTERPRETERS, package_folder
from compilewatch.environments.creation import share

ROOT = Path(__file__).parents[1]


def build(folder: Path) -> Path:
    """Build the wheel from a copy of what it is made of; setuptools leaves files in its source."""
    source = folder / "source"
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    _run([*pip, "--wheel-dir", str(folder), str(source)])
    (made,) = folder.glob("compilewatch-*.whl")
    return made


def install(
    wheel: Path, folder: Path, extras: Iterable[str] = (), *, torch: Path | None = None
) -> Path:
    """Install a wheel with exactly what it requires; return the interpreter.

    `torch` is the package folder whose torch is used (default: that of this interpreter).
    """
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    into = next(folder.glob("lib/python*/site-packages"))
    own = package_folder(INTERPRETERS["default"])
    share(own, into, ["pip"])
    _run([str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
    share(torch or own, into, ["torch"])
    share(own, into, required(into, extras))
    _run([str(python), "-m", "pip", "check"])
    return python


def required(packages: Path, extras: Iterable[str]) -> list[str]:
    """The names of what an installed compilewatch requires, with these extras."""
    (own,) = metadata.distributions(name="compilewatch", path=[str(packages)])
    lines = [Requirement(line) for line in own.requires or ()]
    chosen = ("", *extras)
    return [
        line.name
        for line in lines
        if line.marker is None or any(line.marker.evaluate({"extra": each}) for each in chosen)
    ]


def call(
    python: Path, *arguments: str, cwd: Path, statuses: Sequence[int] = (0,)
) -> subprocess.CompletedProcess[str]:
    """Run the installed program in a folder, with nothing of the checkout in its environment."""
    hidden = ("COMPILEWATCH_", "PYTHON", "VIRTUAL_ENV")
    variables = {n: v for n, v in os.environ.items() if not n.startswith(hidden)}
    variables |= {"HOME": str(cwd), "COMPILEWATCH_CACHE": str(cwd / "cache")}
    done = subprocess.run(
        [str(python), "-m", "compilewatch", *arguments],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode in statuses, f"{arguments}: {done.stdout}\n{done.stderr}"
    return done


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="", help="names with commas between them")
    parser.add_argument("--torch", type=Path, help="the package folder with the torch to use")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    extras = [name for name in given.extras.split(",") if name]
    wheel = build(given.folder)
    print(install(wheel, given.folder / "venv", extras, torch=given.torch))


if __name__ == "__main__":
    main()
