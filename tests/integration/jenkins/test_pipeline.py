"""scripts/pipeline.sh with stages that only say that they ran: order, states, and the way out."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jenkins.conftest import ROOT

NAMES = (
    "setup",
    "pull",
    "inputs",
    "sweep",
    "merge",
    "first",
    "neuron",
    "compare",
    "fix",
    "publish",
)
LAST = ("archive", "trainium_down", "summary")
STUB = """#!/usr/bin/env bash
name=$(basename "$0" .sh)${1:+ $1}
echo "$name${RESULT:+ $RESULT}" >>ran
if [ "$name" = summary ]; then echo '{"text": "24 of 25"}'; fi
if [ "$name" = "${WAIT:-}" ]; then sleep 60; fi
case " ${FAIL:-} " in *" ${name// /-}="*) rest=${FAIL#*"${name// /-}="}; exit "${rest%% *}" ;; esac
"""
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    stages = tmp_path / "scripts" / "stages"
    stages.mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "pipeline.sh", tmp_path / "scripts")
    shutil.copy(ROOT / "scripts" / "stages" / "common.sh", stages)
    for name in (*NAMES, *LAST):
        path = stages / f"{name}.sh"
        path.write_text(STUB)
        path.chmod(0o755)
    return tmp_path


def environ(**variables: str) -> dict[str, str]:
    mine = ("SHARDS", "TRAINIUM", "FIX", "RESULT", "PIPELINE_DIR", "FAIL_ON_REGRESSION")
    return {k: v for k, v in os.environ.items() if k not in mine} | variables


@pytest.fixture
def pipeline(place: Path) -> Run:
    def run(**variables: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [place / "scripts" / "pipeline.sh"],
            check=False,
            stdout=subprocess.DEVNULL,
            env=environ(**variables),
        )
        return done.returncode, (place / "ran").read_text().splitlines()

    return run


def test_all_stages_in_their_order(pipeline: Run) -> None:
    assert pipeline(SHARDS="3") == (
        0,
        [
            *("setup", "inputs", "pull", "sweep 1", "sweep 2", "sweep 3"),
            *("merge", "compare", "publish", "archive", "summary"),
        ],
    )


@pytest.mark.parametrize(
    ("given", "status", "last"),
    [
        ({"FAIL": "compare=1"}, 1, ["publish"]),
        ({"FAIL": "compare=2"}, 2, ["compare"]),
        ({"FAIL": "sweep-1=2"}, 2, ["publish"]),
        ({"FAIL": "sweep-1=2 compare=1"}, 2, ["publish"]),
        ({"FAIL": "sweep-1=130"}, 130, ["sweep 1"]),
        ({"FAIL": "publish=3"}, 2, ["publish"]),
        ({"FAIL": "setup=1"}, 2, ["setup"]),
        ({"FAIL": "inputs=2"}, 2, ["inputs"]),
        ({"FAIL": "merge=2"}, 2, ["merge"]),
        ({"FAIL": "archive=2"}, 2, ["publish"]),
        # What is only wanted now and then never costs the rest.
        ({"FIX": "30"}, 0, ["compare", "fix", "publish"]),
        ({"FIX": "30", "FAIL": "fix=2"}, 0, ["compare", "fix", "publish"]),
        (
            {"TRAINIUM": "true", "FAIL": "neuron=2"},
            0,
            ["merge", "first", "neuron", "merge neuron", "compare", "publish"],
        ),
    ],
)
def test_how_it_ends(pipeline: Run, given: dict[str, str], status: int, last: list[str]) -> None:
    ended, ran = pipeline(**given)
    assert ended == status
    assert [name for name in ran if name != "trainium_down"][-len(last) - 2 :] == [
        *last,
        *("archive", "summary"),
    ]


@pytest.mark.parametrize("where", ["setup", "sweep 1", "publish"])
def test_an_abort_archives_what_is_finished(place: Path, where: str) -> None:
    process = subprocess.Popen(
        [place / "scripts" / "pipeline.sh"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environ(WAIT=where),
    )
    ran = place / "ran"
    until = time.monotonic() + 60
    while not (ran.exists() and where in ran.read_text().splitlines()):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 130
    assert ran.read_text().splitlines()[-3:] == [where, "archive", "summary"]
