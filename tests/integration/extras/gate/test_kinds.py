"""Every kind of graph break that a few lines can meet is new at its line, as torch alone says.

The models of `breaks.py` and `kinds.py` are put into a repository. Its lines are shifted: equal
code at the same lines of two files is one code for Python, and other tests of this process may have
checked the original (a limit in docs/api.md).
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import compilewatch
from compilewatch.extras.gate.judgement import Rules, judge
from tests.cases import breaks, kinds

pytestmark = pytest.mark.torch

CASES_FOLDER = Path(kinds.__file__).parent

KINDS_OF_BREAKS = 71
"""So many codes of PyTorch's registry, at least, does the gate know to find."""


@pytest.fixture(scope="module")
def own_kinds(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The file of the kinds in a repository, imported from there."""
    path = tmp_path_factory.mktemp("repository") / "src" / "own_kinds.py"
    path.parent.mkdir()
    path.write_text("# A copy.\n" + Path(kinds.__file__).read_text(encoding="utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        return importlib.import_module("own_kinds")


@pytest.mark.parametrize(
    "name",
    [  # each fourth without the matrix
        pytest.param(name, marks=[pytest.mark.matrix] if number % 4 else [])
        for number, name in enumerate(kinds.KINDS)
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch warns of what it cannot trace, once a process
def test_every_kind_is_new_at_its_line(
    own_kinds: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_BY_A_MODEL", "0")
    model = own_kinds.module_of(own_kinds.KINDS[name])()
    checked = compilewatch.check(model, torch.ones(3, 4))
    report = judge(checked, (), Rules(root=Path(own_kinds.__file__).parents[1]), name="t::a")
    new = report.of("new")
    assert {(each.line, each.code) for each in new} == own_kinds.marked(name)
    assert {each.file for each in new} == {"src/own_kinds.py"}
    assert {each.function.removeprefix("Kinds.") for each in new} == {name}
    # Eager code may go on in generators of Python's library, whose callers Dynamo does not see.
    assert {each.code for each in report.of("elsewhere")} <= {"GB0003"}


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
