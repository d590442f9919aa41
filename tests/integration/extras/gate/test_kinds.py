"""Every kind of graph break that a few lines can meet is new at its line, as torch alone says.

The models of `breaks.py` and `kinds.py` are put into a repository. Its lines are shifted: equal
code at the same lines of two files is one code for Python, and other tests of this process may have
checked the original (a limit in docs/api.md).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import compilewatch
from compilewatch.extras.gate.judgement import CheckReport, Rules, judge
from compilewatch.records import source_line
from tests.cases import breaks, kinds

pytestmark = pytest.mark.torch

CASES_FOLDER = Path(kinds.__file__).parent

KINDS_OF_BREAKS = 71
"""So many codes of PyTorch's registry, at least, does the gate know to find."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("repository")


def copied(original: ModuleType, repository: Path) -> Iterator[ModuleType]:
    """The file of a module in the repository, imported from there."""
    name = f"own_{original.__name__.rpartition('.')[2]}"
    path = repository / "src" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    assert original.__file__ is not None
    path.write_text("# A copy.\n" + Path(original.__file__).read_text(encoding="utf-8"))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


@pytest.fixture(scope="module")
def own_breaks(repository: Path) -> Iterator[ModuleType]:
    yield from copied(breaks, repository)


@pytest.fixture(scope="module")
def own_kinds(repository: Path) -> Iterator[ModuleType]:
    yield from copied(kinds, repository)


def report(repository: Path, model: nn.Module) -> CheckReport:
    return judge(
        compilewatch.check(model, torch.ones(3, 4)), (), Rules(root=repository), name="t::a"
    )


@pytest.mark.matrix
@pytest.mark.parametrize("name", [case.name for case in breaks.CASES])
def test_every_break_of_the_cases_is_new_at_its_line(
    repository: Path, own_breaks: ModuleType, name: str
) -> None:
    (case,) = (case for case in own_breaks.CASES if case.name == name)
    found = report(repository, case.build())
    wanted = {(own_breaks.line_of(known.mark), known.code) for known in (*case.breaks, *case.later)}
    assert {(each.line, each.code) for each in found.of("new")} == wanted
    assert {each.file for each in found.of("new")} <= {"src/own_breaks.py"}
    assert all("# break: " in source_line(each) for each in found.of("new"))
    assert found.of("elsewhere") == ()


@pytest.mark.parametrize("name", kinds.KINDS)
@pytest.mark.filterwarnings("ignore")  # torch warns of what it cannot trace, once a process
def test_every_further_kind_is_new_at_its_line(
    repository: Path, own_kinds: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_BY_A_MODEL", "0")
    found = report(repository, own_kinds.module_of(own_kinds.KINDS[name])())
    assert {(each.line, each.code) for each in found.of("new")} == own_kinds.marked(name)
    assert {each.file for each in found.of("new")} == {"src/own_kinds.py"}
    assert {each.function for each in found.of("new")} == {name}
    # Eager code may go on in generators of Python's library, whose callers Dynamo does not see.
    assert {each.code for each in found.of("elsewhere")} <= {"GB0003"}


@pytest.mark.matrix
def test_the_marks_are_what_plain_torch_says() -> None:
    """A process with torch, for each model a fork: torch alone, which no test process is."""
    done = subprocess.run(
        [sys.executable, "plain_kinds.py"], cwd=CASES_FOLDER, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = {
        name: {(line, code) for line, code in found}
        for name, found in json.loads(done.stdout).items()
    }
    assert said == {name: kinds.marked(name, second_reports=True) for name in kinds.KINDS}


def test_the_cases_have_many_kinds_of_breaks() -> None:
    known = {each.code for case in breaks.CASES for each in (*case.breaks, *case.later)}
    marked = {code for name in kinds.KINDS for _, code in kinds.marked(name)}
    assert len(known | marked) >= KINDS_OF_BREAKS
