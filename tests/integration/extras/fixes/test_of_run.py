"""`fix --all-of` on a stored run: real workers, real scripts, and everything that shows them."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests import cases
from tests.team import run_here
from tests.warm import WarmLauncher

pytestmark = pytest.mark.torch

NAMES = {"small": 500, "large": None, "breaking": None}

MANIFEST = "".join(
    f'[[model]]\nname = "team/{name}"\nfactory = "fixable:{name}"\ninputs = "fixable:inputs"\n'
    f'python_path = "."\n' + (f"downloads = {downloads}\n\n" if downloads else "\n")
    for name, downloads in NAMES.items()
)


@pytest.mark.matrix
def test_the_fixes_of_a_run_are_found_verified_stored_and_shown(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    """A minute or more: only real processes show what is verified for one model and for another."""
    del warm_launcher
    shutil.copy(Path(next(iter(cases.__path__)), "fixable.py"), tmp_path)
    (tmp_path / "models.toml").write_text(MANIFEST)
    variables = {
        "NO_COLOR": "1",
        "COMPILEWATCH_JOBS": "1",
        "COMPILEWATCH_MODELS_FILE": str(tmp_path / "models.toml"),
        "COMPILEWATCH_OUTPUT_DIR": str(tmp_path / "outputs"),
    }
    run = partial(run_here, tmp_path, variables)
    assert run("sweep", "--source", "manifest").returncode == 0
    folder = tmp_path / "outputs" / "latest"

    done = run("fix", "--all-of", "latest", "--json")
    assert done.returncode == 1, done.stderr
    assert "3 of 3  " in done.stderr
    found = json.loads(done.stdout)
    fixes = {each["model"]: each for each in found["fixes"]}
    states = {name: (each["fix"]["status"], each["origin"]) for name, each in fixes.items()}
    assert states == {
        "team/small": ("verified", "search"),
        "team/large": ("verified", "known"),
        "team/breaking": ("nothing", "search"),
    }
    assert found["total"]["models"] == ["team/small", "team/large"]
    assert found["total"]["downloads"] == 500

    regions = fixes["team/breaking"]["fix"]["regions"]
    assert [(region["name"], region["kind"]) for region in regions] == [("linear", "Linear")]
    large = fixes["team/large"]
    assert large["fix"]["verification"]["steps"][0]["detail"] == "both shapes"
    assert "import compilewatch" not in (folder / large["script_file"]).read_text()

    again = run("fix", "--all-of", "latest")
    assert "3 of them known from before" in again.stderr
    assert "Verified: this change leaves 2 more models without graph breaks" in again.stdout

    assert run("report", "latest").returncode == 0
    page = (folder / "report" / "models" / "team--large.html").read_text()
    assert "<h5>Verified fix</h5>" in page
    line = 'compilewatch_fixes_models{fix_state="verified",mode="eval",source="manifest",'
    assert f'{line}target="dynamo"}} 2.0' in (folder / "metrics.prom").read_text()
    ranked = run("leverage", "latest")
    assert "ignore_logging_functions: info (2 of 2 models)" in ranked.stdout
    explained = run("explain", "./fixable.py:large", "--inputs", "fixable:inputs")
    assert "where it is verified for team/small" in explained.stdout.replace("large", "small")
    assert "For ./fixable.py:large nothing is verified" in explained.stdout
