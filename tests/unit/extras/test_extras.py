"""Extras of pip: what they install, what is said without them, and what does not need them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement

from compilewatch import extras, plugins
from compilewatch.cli import COMMANDS
from tests.sweeping import run_sweep

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

DISTRIBUTIONS = {
    "PIL": "pillow",
    "huggingface_hub": "huggingface-hub",
    "logging_loki": "python-logging-loki",
    "opensearchpy": "opensearch-py",
    "pynvml": "nvidia-ml-py",
    "pysource_minimize": "pysource-minimize",
    "sklearn": "scikit-learn",
}
"""Modules whose package has another name."""

PARTS = ("all", "dev", "docs")
"""Extras that are made of others, or for those who develop compilewatch."""

HELPS = """
import click
from click.testing import CliRunner
from tests.refusing import refuse
refuse()
from compilewatch.cli import group
def walk(path, command):
    done = CliRunner().invoke(group, [*path, "--help"], catch_exceptions=True)
    assert done.exit_code == 0, (path, done.exception)
    count = 1
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            count += walk([*path, name], command.get_command(context, name))
    return count
print(walk([], group))
"""

NAMED = sorted(
    reference
    for path in (ROOT / "src" / "compilewatch").glob("*/*.py")
    for reference in re.findall(r'"(compilewatch\.extras\.[\w.]+:\w+)"', path.read_text())
    if ".worker." not in reference  # needs torch
)
"""What the core names of extras as text."""

RUN = "from tests.refusing import refuse; refuse(); from compilewatch.cli import main; main()"


def requirements(lines: list[str]) -> set[str]:
    return {Requirement(line).name for line in lines}


def refused(code: str, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env={
            "PYTHONPATH": str(ROOT),
            "HOME": str(cwd),
            "COMPILEWATCH_CACHE": str(cwd / "cache"),
            "COMPILEWATCH_OUTPUT_DIR": str(cwd / "outputs"),
        },
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_table_names_the_modules_of_the_packages_that_pip_installs() -> None:
    offered = PROJECT["optional-dependencies"]
    installed = {name: extra for name, extra in extras.EXTRAS.items() if extra.modules}
    assert offered.keys() - set(PARTS) == installed.keys()
    for name, extra in installed.items():
        named = {DISTRIBUTIONS.get(module, module) for module in extra.modules}
        assert named == requirements(offered[name]), name
    (every,) = offered["all"]
    assert Requirement(every).extras == installed.keys() - {"gpu"}


def test_the_lock_of_the_checkout_has_the_extras_but_ray_and_streamlit() -> None:
    offered = PROJECT["optional-dependencies"]
    wanted = requirements(PROJECT["dependencies"])
    assert len(wanted) <= 11
    assert "transformers" not in wanted
    for name in extras.EXTRAS.keys() & offered.keys() - {"cluster", "gpu", "monitor"}:
        wanted |= requirements(offered[name])
    lines = (ROOT / "requirements" / "default.in").read_text().splitlines()
    assert requirements([line for line in lines if line and not line.startswith("#")]) == wanted
    pinned = (ROOT / "requirements" / "default.txt").read_text()
    assert [name for name in wanted if not re.search(rf"^{name}==", pinned, re.MULTILINE)] == []


def test_a_package_of_several_extras_is_installed_with_that_of_the_command() -> None:
    def said(module: str, command: str = "") -> str:
        return str(plugins.missing(ModuleNotFoundError(name=module), command))

    assert said("boto3", "papers").endswith("papers needs: pip install 'compilewatch[papers]'")
    assert said("botocore.config", "trainium").endswith("pip install 'compilewatch[executor]'")
    assert said("boto3").endswith("pip install 'compilewatch[publish]'")
    assert plugins.missing(ModuleNotFoundError(name="nowhere"), "papers") is None


def test_what_a_row_names_is_there() -> None:
    for name, row in extras.COMMANDS.items():
        assert isinstance(plugins.load(row.implementation, name), click.Command), name
    assert len(NAMED) > 20
    for reference in NAMED:
        assert plugins.load(reference), reference


@pytest.mark.process
def test_help_of_every_command_needs_no_extra() -> None:
    """One process imports what all commands import: about two seconds, once."""
    done = refused(HELPS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len(COMMANDS)


@pytest.mark.process
@pytest.mark.parametrize(
    ("command", "extra"),
    [("pull", "transformers"), ("executor serve", "executor"), ("papers run --random", "papers")],
)
def test_a_command_of_an_extra_says_in_one_line_what_to_install(
    command: str, extra: str, tmp_path: Path
) -> None:
    done = refused(RUN, *command.split(), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"pip install 'compilewatch[{extra}]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.process
def test_stored_runs_are_compared_shown_and_reported_without_extras(tmp_path: Path) -> None:
    """The commands of a stored run, which start no worker: half a second each."""
    before, after = (run_sweep(tmp_path).run.id for _ in range(2))
    for command in (f"compare {before} {after}", f"report {after}", "show A", "runs", "leverage"):
        done = refused(RUN, *command.split(), cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), command
    assert (tmp_path / "outputs" / after / "report" / "index.html").is_file()
    assert (tmp_path / "outputs" / after / "metrics.prom").is_file()
