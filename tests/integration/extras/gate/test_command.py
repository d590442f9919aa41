"""`compilewatch gate` in a repository of an author, with real workers."""

import json
from functools import partial
from pathlib import Path

import pytest

from compilewatch.extras.gate.baseline import load
from tests.cases import suite
from tests.gating import BRANCH, NET, SOURCE, WHERE
from tests.schemas import sarif_errors
from tests.team import Compilewatch, run_here
from tests.warm import WarmLauncher

pytestmark = pytest.mark.torch

MODELS = """
import os, sys

class Different(torch.nn.Module):
    def forward(self, x):
        return x * 2 if torch.compiler.is_compiling() else x

class Exits(torch.nn.Module):
    def forward(self, x):
        sys.exit(3)

class Crashes(torch.nn.Module):
    def forward(self, x):
        if torch.compiler.is_compiling():
            return x
        os.abort()

def inputs():
    return {"x": torch.ones(2, 4)}
"""

MANIFEST = """
schema_version = 1
[[model]]
name = "zoo/net"
factory = "mypkg.net:Net"
python_path = "src"
inputs = "mypkg.net:inputs"
"""


@pytest.fixture
def gate(tmp_path: Path, warm_launcher: WarmLauncher) -> Compilewatch:
    (tmp_path / "pyproject.toml").write_text('[tool.compilewatch]\nmodels = ["mypkg.net:Net"]\n')
    net(tmp_path)
    return partial(run_here, tmp_path, {"NO_COLOR": "1", "COMPILEWATCH_JOBS": "1"}, "gate")


def net(root: Path, line: str = WHERE) -> None:
    package = root / "src" / "mypkg"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (root / "src" / "vendored.py").touch()
    (package / "net.py").write_text(NET.format(line=line) + MODELS)


def test_a_new_break_fails_until_it_is_accepted_and_a_resolved_one_is_reported(
    tmp_path: Path, gate: Compilewatch
) -> None:
    net(tmp_path, BRANCH)
    broken = gate("--sarif", "found.sarif", "--summary", "found.md")
    assert broken.returncode == 1, broken.stderr
    assert "src/mypkg/net.py:14 in Net.scaled: GB0170 Data-dependent branching" in broken.stdout
    assert "reproduce:  compilewatch gate mypkg.net:Net" in broken.stdout
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert sarif_errors(log) == []
    (result,) = log["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 14
    assert "src/mypkg/net.py:14 in Net.scaled" in (tmp_path / "found.md").read_text()

    assert gate("--update").returncode == 0
    known = gate("--json")
    assert known.returncode == 0
    said = json.loads(known.stdout)
    assert (said["counts"]["known"], said["counts"]["new"]) == (1, 0)
    assert said["checks"][0]["breaks"][0]["line"] == 14

    net(tmp_path)
    assert gate().returncode == 0
    strict = gate("--strict")
    assert strict.returncode == 1
    assert "resolved: GB0170 Data-dependent branching in Net.scaled" in strict.stdout
    assert gate("--update").returncode == 0
    assert load(tmp_path / "compilewatch.baseline.json") == ()


def test_models_of_a_list_and_what_their_results_are(tmp_path: Path, gate: Compilewatch) -> None:
    (tmp_path / "models.toml").write_text(MANIFEST)
    listed = gate("--manifest", "models.toml", "--backend", "aot_eager", "--numerics")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "passed zoo/net" in listed.stdout
    differs = gate("mypkg.net:Different", "--backend", "aot_eager", "--numerics")
    assert differs.returncode == 1
    assert "differs from eager mode" in differs.stdout


def test_a_model_that_ends_its_process_is_no_pass_and_ends_nothing_else(gate: Compilewatch) -> None:
    done = gate("mypkg.net:Exits", "mypkg.net:Crashes", "mypkg.net:Net")
    assert done.returncode == 3, done.stdout
    assert "passed mypkg.net:Net" in done.stdout
    assert "FAILED mypkg.net:Exits\nerror in the phase " in done.stdout
    assert "FAILED mypkg.net:Crashes\ncrashed in the phase " in done.stdout


def test_wrong_input_is_one_line_and_status_2(tmp_path: Path, gate: Compilewatch) -> None:
    baseline, project = tmp_path / "compilewatch.baseline.json", tmp_path / "pyproject.toml"
    rows: tuple[tuple[str, tuple[str, ...], str], ...] = (
        ("", (), "name a model (./FILE.py:NAME, MODULE:FACTORY)"),
        ("[tool.compilewatch]\nstrict = 1\n", ("x:y",), "has no setting 'strict'"),
        ("[tool.compilewatch", ("x:y",), "pyproject.toml: "),
        ("", ("./none.py:build",), "the file none.py does not exist"),
        ("", ("./src/mypkg/net.py:Net", "--sarif", "pyproject.toml/x"), "cannot be written"),
    )
    for settings, arguments, words in rows:
        project.write_text(settings)
        done = gate(*arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
    baseline.write_text("{")  # and a damaged baseline is kept
    done = gate("mypkg.net:Net", "--update")
    assert (done.returncode, baseline.read_text()) == (2, "{")
    assert "cannot be read" in done.stderr


@pytest.mark.torch_2_13
@pytest.mark.matrix
def test_another_torch_has_the_same_verdicts_with_one_baseline(
    tmp_path: Path, gate: Compilewatch
) -> None:
    """Two workers with torch and twenty models on each, since their breaks are what is compared."""
    inputs = "\n\ndef inputs():\n    return (torch.ones(4, 16),)\n"
    (tmp_path / "src" / "models.py").write_text(SOURCE + inputs)
    (tmp_path / "models.toml").write_text(
        "schema_version = 1\n"
        + "".join(
            f'[[model]]\nname = "{model.__name__}"\nfactory = "models:{model.__name__}"\n'
            'python_path = "src"\ninputs = "models:inputs"\n'
            for model in suite.MODELS
        )
    )
    written = gate("--manifest", "models.toml", "--update")
    assert written.returncode == 0, written.stdout
    other = gate("--manifest", "models.toml", "--environment", "torch-2.13")
    assert other.returncode == 0, other.stdout
    assert "checks: 20  new: 0  known: 8  moved: 0  resolved: 0" in other.stdout
