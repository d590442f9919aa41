"""Environments and targets as a person asks about them."""

import json
from pathlib import Path

import pytest

from compilewatch.contract.targets import TARGETS
from compilewatch.sources import SOURCES
from tests.team import Compilewatch


def test_what_is_not_made_is_listed_with_what_to_type(
    compilewatch: Compilewatch, tmp_path: Path
) -> None:
    done = compilewatch("env", "list", "--json", COMPILEWATCH_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    listed = {one["name"]: one for one in json.loads(done.stdout)}
    assert listed["default"]["state"] == "ready"
    assert listed["xla"]["state"] == "not_created"
    assert listed["xla"]["advice"] == "compilewatch env create xla"
    done = compilewatch("env", "check", "xla", COMPILEWATCH_CACHE=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.endswith("compilewatch env create xla")


@pytest.mark.torch
def test_every_target_is_listed_and_says_why_it_cannot_run(
    compilewatch: Compilewatch, tmp_path: Path
) -> None:
    """Takes seconds: only an interpreter that imports torch says what each target lacks there."""
    done = compilewatch("list-targets", "--json", COMPILEWATCH_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    assert [one["target"] for one in listed] == [
        *TARGETS,
        *("dynamo/cuda", "export/cuda", "dynamo/neuron", "export/neuron"),
    ]
    assert all(one["runs"] or one["why"] for one in listed)
    assert listed[0] == {"target": "dynamo", "environment": "default", "runs": True, "why": ""}
    done = compilewatch("env", "check", "default", "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["working"]["start_seconds"] > 0


@pytest.mark.torch
@pytest.mark.xla
def test_one_sweep_evaluates_on_two_versions_of_torch_and_compares_them(
    compilewatch: Compilewatch, team: Path, xla_python: str
) -> None:
    """Starts a worker of another environment: only two real ones differ in their torch."""
    own = ("--output", str(team / "two"))
    done = compilewatch(
        "sweep", "--source", "manifest", "--environments", "default,xla", *own, "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["summary"]["statuses"] == {"pass": 2, "graph_break": 2}
    assert [e["name"] for e in found["run"]["environments"]] == ["default", "xla"]
    compared = compilewatch("compare", "latest", "--environments", "default,xla", *own, "--json")
    assert compared.returncode == 0, compared.stderr
    between = json.loads(compared.stdout)
    assert between["changes"] == []
    assert any(line.startswith("torch 2.") for line in between["differences"])


@pytest.mark.torch
@pytest.mark.transformers_5_5
@pytest.mark.matrix
@pytest.mark.timeout(400)
def test_one_sweep_has_the_models_of_each_transformers(
    compilewatch: Compilewatch, tmp_path: Path
) -> None:
    """Two real environments with one torch: only they show that each reads and builds its own."""
    own = ("--output", str(tmp_path), "--json")
    names = "transformers-5.5.4,default"
    models = ("--source", "library", "--models", "BertModel,GteModel", "--depth", "reduced")
    done = compilewatch("sweep", *models, "--environments", names, *own)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["planned"] == 3
    compared = compilewatch("compare", "latest", "--environments", names, *own)
    assert compared.returncode == 0, compared.stderr
    between = json.loads(compared.stdout)
    assert [(c["kind"], c["model"]) for c in between["changes"]] == [("new", "GteModel")]
    assert any(line.startswith("transformers 5.5.4 -> ") for line in between["differences"])
    assert not any(line.startswith("torch ") for line in between["differences"])


@pytest.mark.matrix
def test_list_sources_says_which_libraries_are_missing_and_what_to_type(
    compilewatch: Compilewatch, tmp_path: Path
) -> None:
    done = compilewatch("list-sources", "--json", COMPILEWATCH_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    listed = {one["source"]: one for one in json.loads(done.stdout)}
    assert listed.keys() == SOURCES.keys()
    assert listed["library"]["environment"] == "default"
    assert listed["library"]["models"] > 100
    for source, environment in (("timm", "vision"), ("open_clip", "libraries")):
        assert listed[source]["models"] is None
        assert listed[source]["why"].endswith(f"compilewatch env create {environment}")
