"""`compilewatch init`: bring the gate into a repository: a test, the settings, and a workflow."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from compilewatch.errors import ConfigError, UsageError
from compilewatch.extras.gate.settings import project_root
from compilewatch.files import write_atomically
from compilewatch.sources.factories import possible_factories
from compilewatch.sources.select import FACTORY

TEST, WORKFLOW = "tests/test_compile.py", ".github/workflows/compilewatch.yml"

MOST_MODELS = 5
"""So many models are proposed; who has more names the ones that matter."""

_NO_PACKAGES = ("tests", "test", "docs", "doc", "examples", "example", "scripts", "build", "dist")

_TEST = '''"""A change that adds a graph break of torch.compile to this project's code fails here.

Each model is built in a process of its own and called with example inputs. With inputs of your
own: `compile_check(Net(), torch.randn(2, 4))`.
"""

import pytest

MODELS = [
{models}
]


@pytest.mark.parametrize("model", MODELS)
def test_compiles_without_new_graph_breaks(compile_check, model):
    compile_check(model)
'''

_STEPS = """\
      - run: python -m pip install compilewatch
      - run: python -m pytest {test} --compilewatch-sarif=compilewatch.sarif
      - uses: github/codeql-action/upload-sarif@v4
        if: >-
          !cancelled() && hashFiles('compilewatch.sarif') != ''
          && github.event.pull_request.head.repo.fork != true
        with:
          sarif_file: compilewatch.sarif
          category: compilewatch
"""

_ACTION = """\
      - uses: {action}
        with:
          arguments: {test}
"""

_WORKFLOW = """\
name: compilewatch
on:
  pull_request:
  push:
    branches: [{branch}]
permissions:
  contents: read
  security-events: write
jobs:
  graph-breaks:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v7
      - uses: actions/setup-python@v7
        with:
          python-version: "3.12"
      - run: python -m pip install . pytest
{steps}"""


@dataclass(frozen=True, kw_only=True)
class PlannedFile:
    """A file that is written, or one that is there and gets `content` at its end."""

    path: Path
    content: str
    appended: bool = False

    def write(self) -> None:
        """Write it. Raises OSError, and UsageError if another program made the file meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.appended:
            before = self.path.read_bytes()
            write_atomically(self.path, before + self.content.encode())
            return
        try:
            with self.path.open("x", encoding="utf-8") as stream:
                stream.write(self.content)
        except FileExistsError:
            raise UsageError(f"{self.path} exists now: it is left as it is") from None


def proposed_models(root: Path) -> list[str]:
    """Return models of a repository that need no arguments, as MODULE:NAME.

    They are read in the source of its packages; nothing is imported.
    """
    found: list[str] = []
    for top in _packages(root):
        for path in sorted(top.rglob("*.py")):
            parts = path.relative_to(top.parent).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            try:
                names = possible_factories(path)
            except ConfigError:
                continue  # Python 2, or a template
            found += [f"{module}:{name}" for name in names if FACTORY.fullmatch(f"{module}:{name}")]
    return found


def _packages(root: Path) -> Iterator[Path]:
    folders = [root / "src"] if (root / "src").is_dir() else [root]
    for folder in folders:
        for path in sorted(folder.iterdir()):
            if (path / "__init__.py").is_file() and path.name not in _NO_PACKAGES:
                yield path


def changes(
    root: Path, models: Sequence[str], action: str | None
) -> tuple[list[PlannedFile], list[str]]:
    """Return what is to be written, and a line for each file that is left as it is.

    `action` is `OWNER/REPOSITORY@REF` of a copy of compilewatch whose action the workflow uses.
    """
    listed = "\n".join(f"    {json.dumps(model)}," for model in models)
    steps = (_ACTION if action else _STEPS).format(action=action, test=TEST)
    wanted = [
        PlannedFile(path=root / TEST, content=_TEST.format(models=listed)),
        PlannedFile(
            path=root / WORKFLOW, content=_WORKFLOW.format(branch=_branch(root), steps=steps)
        ),
    ]
    made = [change for change in wanted if not os.path.lexists(change.path)]
    left = [f"{change.path.relative_to(root)} exists" for change in wanted if change not in made]
    project = root / "pyproject.toml"
    if not project.is_file():
        return made, [*left, "there is no pyproject.toml: the settings have their defaults"]
    text = project.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text).get("tool", {}).get("compilewatch")
    except ValueError as error:
        raise ConfigError(f"{project}: {error}") from None
    if table is not None:
        return made, [*left, "pyproject.toml has a table [tool.compilewatch]"]
    start = "" if text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    content = f"{start}[tool.compilewatch]\nmodels = [\n{listed}\n]\n"
    return [*made, PlannedFile(path=project, content=content, appended=True)], left


def _branch(root: Path) -> str:
    """The branch that is checked out where there is a clone, otherwise `main`."""
    try:
        head = (root / ".git" / "HEAD").read_text(encoding="utf-8").strip()
    except OSError:
        return "main"
    return head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else "main"


@click.command("init")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODULE:FACTORY",
    help="A model to check; may be given several times (default: the first ones of the packages).",
)
@click.option(
    "--action",
    metavar="OWNER/REPOSITORY@REF",
    help="Where the workflow finds compilewatch's action (default: it installs it by pip).",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
def command(*, models: tuple[str, ...], action: str | None, yes: bool) -> int:
    """Write a test, the settings and a GitHub workflow of the gate into this repository.

    It shows what it will write, and asks on a terminal. A file that exists is never overwritten;
    pyproject.toml gets the table `[tool.compilewatch]` at its end if it has none.
    """
    root = project_root(Path.cwd())
    if action is not None and not re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[\w./-]+", action):
        raise UsageError(f"--action {action}: name OWNER/REPOSITORY@REF")
    chosen = list(models) or proposed_models(root)
    if not chosen:
        raise UsageError(
            "no model was found that needs no arguments: name one with --model MODULE:FACTORY"
        )
    if not models and len(chosen) > MOST_MODELS:
        click.echo(
            f"{len(chosen)} models need no arguments; the first {MOST_MODELS} are used. "
            "Name others with --model."
        )
        chosen = chosen[:MOST_MODELS]
    made, left = changes(root, chosen, action)
    for change in made:
        what = "add to the end of" if change.appended else "write"
        click.echo(f"{what} {change.path.relative_to(root)}:\n")
        click.echo(textwrap.indent(change.content.strip(), "    ") + "\n")
    for line in left:
        click.echo(f"left as it is: {line}")
    if not made:
        return 0
    if not yes:
        if not _on_terminal():
            raise UsageError("nothing is written without a terminal to ask: add --yes")
        if not click.confirm("Write this?"):
            click.echo("Nothing is written.")
            return 0
    for change in made:
        change.write()
    click.echo(f"Next: pytest {TEST} --compilewatch-update, and commit the baseline with them.")
    return 0


def _on_terminal() -> bool:
    return sys.stdin.isatty()
