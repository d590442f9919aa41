"""`compilewatch init`: bring the gate into a repository: a test, the settings, and a workflow.

Which models it tries is read from the source, without importing it: what a package exports comes
first, then what its modules define. Each runs in a separate process before it is written.
"""

import ast
import contextlib
import itertools
import json
import os
import re
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click

from compilewatch.errors import ConfigError, UsageError
from compilewatch.extras.gate.command import check_named
from compilewatch.extras.gate.judgement import project_root
from compilewatch.files import write_atomically
from compilewatch.records import Result, Status, TensorSummary
from compilewatch.sources.own import possible_factories

TEST, WORKFLOW = "tests/test_compile.py", ".github/workflows/compilewatch.yml"
PROJECT = "pyproject.toml"

MOST_MODELS = 2
"""So many models are written; who has more knows which ones matter."""

MOST_TRIES, MOST_PARAMETERS = 6, 30_000_000

TRY_SECONDS, TRY_GIB = 15.0, 4.0
"""The limits of a model that is tried."""

_NO_PACKAGES = ("tests", "test", "docs", "doc", "examples", "example", "scripts", "build", "dist")

_MODULE = ("Module", "PreTrainedModel", "LightningModule")

_SIZES: Mapping[str, int] = {
    name: value
    for value, names in {
        1: "depth num_layers n_layers layers",
        2: "heads num_heads n_heads nhead",
        3: "channels in_channels in_chans image_channels",
        4: "num_classes classes n_classes",
        8: "patch_size kernel_size",
        16: "dim_head head_dim out_channels",
        32: "dim hidden_dim hidden_size embed_dim d_model width mlp_dim dim_in dim_out in_features "
        "out_features image_size img_size max_seq_len seq_len",
        64: "num_tokens vocab_size",
    }.items()
    for name in names.split()
}
"""Small values of the arguments that a model must be given, by their usual names."""

_REDUCED: Mapping[str, object] = {
    **dict.fromkeys(("depth", "num_layers", "n_layers"), 1),
    **dict.fromkeys(("weights", "encoder_weights")),
    "pretrained": False,
}
"""Values of optional arguments: fewer layers, and no weights to download."""

_EXAMPLES = '''"""A change that adds a graph break of torch.compile to this project's code fails.

The models are small, and their inputs are examples: put those of your own use in their place.
A missing fixture `compile_check` is that of `pip install compilewatch`.
"""

import compilewatch  # noqa: F401  (brings the fixture compile_check)
import torch

{imports}
{tests}'''

_TEST = '''"""A change that adds a graph break of torch.compile to this project's code fails here.

Each model is built in a separate process and called with example inputs. With inputs of your
own: `compile_check(Net(), torch.randn(2, 4))`.
A missing fixture `compile_check` is that of `pip install compilewatch`.
"""

import compilewatch  # noqa: F401  (brings the fixture compile_check)
import pytest

MODELS = [
{models}
]


@pytest.mark.parametrize("model", MODELS)
def test_compiles_without_new_graph_breaks(compile_check, model):
    compile_check(model)
'''

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


class TriedModel(NamedTuple):
    """A model that can be built: `from module import name`, and `call` as Python writes it."""

    module: str
    name: str
    call: str


def candidates(root: Path) -> Iterator[TriedModel]:
    """Yield models of a repository that small numbers build, exported ones first."""
    seen: set[str] = set()
    folder = root / "src" if (root / "src").is_dir() else root
    for top in sorted(path.parent for path in folder.glob("*/__init__.py")):
        inits = sorted(top.rglob("__init__.py"), key=lambda path: (len(path.parts), path))
        files = [*inits, *(path for path in sorted(top.rglob("*.py")) if path not in inits)]
        for path in files:
            parts = path.relative_to(top.parent).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if any(part.startswith("_") or part in _NO_PACKAGES for part in parts):
                continue
            for name, arguments in _exports(path) if path in inits else _defined(path):
                if name not in seen:
                    seen.add(name)
                    call = f"{name}({', '.join(arguments)})"
                    yield TriedModel(module=".".join(parts), name=name, call=call)


def _exports(init: Path) -> Iterator[tuple[str, list[str]]]:
    """The model classes that a package names, each with the arguments that it is built with."""
    for node in _body(init):
        names = [alias.asname or alias.name for alias in getattr(node, "names", ())]
        names = names if isinstance(node, ast.ImportFrom) else [getattr(node, "name", "")]
        for name in filter(None, names):
            resolved = _class(init, name)
            if resolved is not None and (arguments := _arguments(*resolved)) is not None:
                yield name, arguments


def _defined(path: Path) -> Iterator[tuple[str, list[str]]]:
    with contextlib.suppress(ConfigError):  # Python 2, or a template
        for name in possible_factories(path):
            resolved = _class(path, name)
            arguments = _arguments(*resolved) if resolved is not None else []
            if arguments is not None:
                yield name, arguments


@cache
def _body(path: Path) -> tuple[ast.stmt, ...]:
    try:
        return tuple(ast.parse(path.read_bytes()).body)
    except (OSError, SyntaxError, ValueError):
        return ()


def _class(path: Path, name: str, hops: int = 5) -> tuple[Path, ast.ClassDef] | None:
    """The class of a name in a file, also one that it imports from its own package."""
    for node in _body(path):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return path, node
        if not isinstance(node, ast.ImportFrom) or not hops:
            continue
        for alias in node.names:
            file = _imported(path, node) if (alias.asname or alias.name) == name else None
            if file is not None:
                return _class(file, alias.name, hops - 1)
    return None


def _imported(path: Path, node: ast.ImportFrom) -> Path | None:
    """The file of this repository that a module imports names from."""
    parts = (node.module or "").split(".") if node.module else []
    above = [path.parents[node.level - 1]] if node.level else path.parents
    for folder in above if parts else ():
        target = folder.joinpath(*parts)
        for file in (target.with_suffix(".py"), target / "__init__.py"):
            if file.is_file():
                return file
    return None


def _line(path: Path, node: ast.ClassDef, hops: int = 5) -> list[ast.ClassDef] | None:
    """A class and the classes that it derives from, if the last one is a module of torch."""
    for base in node.bases:
        name = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if name in _MODULE:
            return [node]
        resolved = _class(path, name) if hops and name != node.name else None
        if resolved is not None and (rest := _line(*resolved, hops - 1)) is not None:
            return [node, *rest]
    return None


def _arguments(path: Path, node: ast.ClassDef) -> list[str] | None:
    """The arguments that build a model as `name=value`; None if it cannot or is not to be built."""
    line = _line(path, node)
    if line is None or node.name.startswith("_") or "Base" in node.name:
        return None
    functions = [n for cls in line for n in cls.body if isinstance(n, ast.FunctionDef)]
    abstract = any("abstract" in ast.unparse(d) for f in functions for d in f.decorator_list)
    if abstract or not any(f.name == "forward" for f in functions):
        return None
    arguments: dict[str, str] = {}
    for build in (f.args for f in functions if f.name == "__init__"):
        positional = [*build.posonlyargs, *build.args][1:]
        optional = {a.arg for a in positional[len(positional) - len(build.defaults) :]}
        optional |= {a.arg for a, d in zip(build.kwonlyargs, build.kw_defaults, strict=True) if d}
        for name in (a.arg for a in (*positional, *build.kwonlyargs)):
            values = _REDUCED if name in optional else _SIZES
            if name in values:
                arguments.setdefault(name, f"{name}={values[name]}")
            elif name not in optional:
                return None
        if build.kwarg is None:
            break  # otherwise the class that it derives from gets the rest
    return list(arguments.values())


def examples(root: Path) -> str:
    """Return a test of models that were tried, each with example inputs; "" if none can be tested.

    Each runs in a separate process with limits of time and memory.
    """
    tried = list(itertools.islice(candidates(root), MOST_TRIES))
    if not tried:
        return ""
    with tempfile.TemporaryDirectory(prefix="compilewatch-") as folder:
        factories = Path(folder, "candidates.py")
        functions = (
            f"def model_{number}():\n    from {model.module} import {model.name}\n"
            f"    return {model.call}\n"
            for number, model in enumerate(tried)
        )
        factories.write_text("\n\n".join(functions), encoding="utf-8")
        names = [f"{factories}:model_{number}" for number in range(len(tried))]
        limits = {"memory_limit_gib": TRY_GIB, "deadlines": {"total_seconds": TRY_SECONDS}}
        models: dict[str, tuple[TriedModel, str]] = {}
        for name, checked, _ in check_named(root, names, jobs=1, limits=limits):
            candidate = tried[int(name.rpartition("_")[2])]
            arguments = _inputs(checked.result)
            if arguments is not None:
                models[candidate.name.lower()] = (candidate, ", ".join(("model", *arguments)))
            if len(models) == MOST_MODELS:
                break
    return _test_of(models)


def _inputs(result: Result) -> list[str] | None:
    """The arguments of a call as Python writes them; None if the model cannot be tested so."""
    works = result.status in (Status.PASS, Status.GRAPH_BREAK) and result.inputs
    if not works or (result.parameters or 0) > MOST_PARAMETERS:
        return None
    arguments: list[str] = []
    for summary in result.inputs:
        name = "" if re.fullmatch(r"args\[\d+\]", summary.name) else f"{summary.name}="
        value = _tensor(summary) if summary.shape is not None else summary.value
        if value is None or not re.fullmatch(r"(\w+=)?", name):
            return None
        arguments.append(f"{name}{value}")
    return arguments


def _tensor(summary: TensorSummary) -> str:
    shape = ", ".join(map(str, summary.shape or ()))
    if (summary.dtype or "").startswith(("float", "bfloat")):
        kind = "" if summary.dtype == "float32" else f", dtype=torch.{summary.dtype}"
        return f"torch.randn({shape}{kind})" if shape else f"torch.tensor(0.5{kind})"
    return f"torch.ones(({shape}{',' if shape else ''}), dtype=torch.{summary.dtype})"


def _test_of(models: Mapping[str, tuple[TriedModel, str]]) -> str:
    imports: dict[str, list[str]] = {}
    for candidate, _ in models.values():
        imports.setdefault(candidate.module, []).append(candidate.name)
    lines = [f"from {module} import {', '.join(names)}" for module, names in imports.items()]
    tests = (
        f"\n\ndef test_{name}(compile_check):\n    model = {candidate.call}\n"
        f"    compile_check({arguments})\n"
        for name, (candidate, arguments) in models.items()
    )
    return _EXAMPLES.format(imports="\n".join(lines), tests="".join(tests)) if models else ""


def changes(root: Path, test: str, models: Sequence[str]) -> tuple[dict[Path, str], list[str]]:
    """Return what is to be written into each file, and a line for each that is left as it is.

    `test` is the content of the test; `models` are those that `compilewatch gate` checks.
    What is for pyproject.toml comes to its end.
    """
    workflow = _WORKFLOW.format(branch=_branch(root), test=TEST)
    files = {root / TEST: test, root / WORKFLOW: workflow}
    left = [f"{path.relative_to(root)} exists" for path in files if os.path.lexists(path)]
    files = {path: text for path, text in files.items() if not os.path.lexists(path)}
    project = root / PROJECT
    if not project.is_file():
        return files, [*left, f"there is no {PROJECT}: the settings have their defaults"]
    text = project.read_text(encoding="utf-8")
    try:
        table = tomllib.loads(text).get("tool", {}).get("compilewatch")
    except ValueError as error:
        raise ConfigError(f"{project}: {error}") from None
    if table is not None:
        return files, [*left, f"{PROJECT} has a table [tool.compilewatch]"]
    start = "" if text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
    setting = f"models = [\n{_listed(models)}\n]" if models else 'third_party = "report"'
    return files | {project: f"{start}[tool.compilewatch]\n{setting}\n"}, left


def _write(path: Path, content: str) -> None:
    """Write a file. Raises OSError, and UsageError if another program made it meanwhile."""
    if path.name == PROJECT:
        write_atomically(path, path.read_bytes() + content.encode())
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(content)
    except FileExistsError:
        raise UsageError(f"{path} exists now: it is left as it is") from None


def _listed(models: Sequence[str]) -> str:
    return "\n".join(f"    {json.dumps(model)}," for model in models)


def _branch(root: Path) -> str:
    """The branch that is checked out where there is a clone, otherwise `main`."""
    head = root / ".git" / "HEAD"
    text = head.read_text(encoding="utf-8").strip() if head.is_file() else ""
    return text.removeprefix("ref: refs/heads/") if text.startswith("ref: refs/heads/") else "main"


@click.command("init")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODULE:FACTORY",
    help="A model to check; may be given several times (default: small ones that work).",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
def command(*, models: tuple[str, ...], yes: bool) -> int:
    """Write a test, the settings and a GitHub workflow of the gate into this repository.

    Without --model, it tries models of the packages, and writes a test of up to two that work with
    example inputs. It shows what it will write, and asks on a terminal. A file that exists is never
    overwritten; pyproject.toml gets the table `[tool.compilewatch]` at its end if it has none.
    """
    root = project_root(Path.cwd())
    if not all(model.strip() for model in models):
        raise UsageError("--model is empty: name MODULE:FACTORY")
    test = _TEST.format(models=_listed(models)) if models else ""
    if not models and not os.path.lexists(root / TEST):
        click.echo("Models are tried, each in a separate process …", err=True)
        test = examples(root)
        if not test:
            raise UsageError(
                "no model was found that can be built and called with examples: name one with "
                "--model MODULE:FACTORY"
            )
    files, left = changes(root, test, models)
    for path, content in files.items():
        what = "add to the end of" if path.name == PROJECT else "write"
        click.echo(f"{what} {path.relative_to(root)}:\n")
        click.echo(textwrap.indent(content.strip(), "    ") + "\n")
    for line in left:
        click.echo(f"left as it is: {line}")
    if not files:
        return 0
    if not yes:
        if not _on_terminal():
            raise UsageError("nothing is written without a terminal to ask: add --yes")
        if not click.confirm("Write this?"):
            click.echo("Nothing is written.")
            return 0
    for path, content in files.items():
        _write(path, content)
    click.echo(
        f"Next: python -m pytest {TEST} --compilewatch-update, and commit the baseline with them."
    )
    return 0


def _on_terminal() -> bool:
    return sys.stdin.isatty()
