"""A sweep of a team's list in its repository: stored, printed, exposed."""

import json
from functools import partial
from pathlib import Path

import pytest

from tests.gating import BRANCH
from tests.integration.extras.gate.test_command import MANIFEST, net
from tests.team import run_here
from tests.warm import WarmLauncher

pytestmark = pytest.mark.torch


@pytest.mark.matrix
def test_a_sweep_of_a_teams_list_is_judged_by_the_baseline_of_its_repository(
    tmp_path: Path, warm_launcher: WarmLauncher
) -> None:
    del warm_launcher
    (tmp_path / "inputs").mkdir()
    manifest = MANIFEST.replace('"src"', '"../src"')
    (tmp_path / "inputs" / "models.toml").write_text(manifest)
    (tmp_path / "pyproject.toml").write_text('[tool.compilewatch]\nthird_party = "report"\n')
    net(tmp_path, BRANCH)
    variables = {
        "NO_COLOR": "1",
        "COMPILEWATCH_JOBS": "1",
        "COMPILEWATCH_INPUTS": str(tmp_path / "inputs"),
        "COMPILEWATCH_OUTPUT_DIR": str(tmp_path / "outputs"),
    }
    run = partial(run_here, tmp_path, variables)

    swept = run("sweep", "--source", "manifest")
    assert swept.returncode == 0, swept.stderr
    line = "new graph break in own code: src/mypkg/net.py:14 in Net.scaled: GB0170"
    assert line in " ".join((swept.stdout + swept.stderr).split())
    folder = tmp_path / "outputs" / "latest"
    (new,) = json.loads((folder / "gate.json").read_text())["new"]
    assert (new["line"], new["models"]) == (14, ["zoo/net"])
    (log,) = (folder / "logs").glob("*.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (named,) = [event for event in events if event["event"] == "gate_break"]
    assert (named["place"], named["function"]) == ("src/mypkg/net.py:14", "Net.scaled")
    assert (named["level"], named["models"]) == ("warning", "zoo/net")
    metrics = (folder / "metrics.prom").read_text()
    assert 'compilewatch_gate_breaks{baseline_state="new",source="manifest"} 1.0' in metrics
    assert "compilewatch_gate_baseline_timestamp_seconds" not in metrics

    assert run("gate", "--manifest", "inputs/models.toml", "--update").returncode == 0
    accepted = run("sweep", "--source", "manifest", "--fresh")
    assert accepted.returncode == 0, accepted.stderr
    stored = json.loads((folder / "gate.json").read_text())
    assert (stored["new"], stored["known"]) == ([], 1)
    (log,) = (folder / "logs").glob("*.jsonl")
    assert "gate_break" not in log.read_text()
    assert "compilewatch_gate_baseline_timestamp_seconds" in (folder / "metrics.prom").read_text()
