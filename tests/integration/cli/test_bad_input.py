"""Wrong input: one line that says what to do, exit status 2, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.team import PROGRAM, Compilewatch

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]

CASES = {
    "unknown model, near names": (
        ("explain", "LlamaForCasualLM"),
        "similar names: LlamaForCausalLM",
    ),
    "unknown target": (("sweep", "--models", "bert", "--targets", "dynamoo"), "dynamo"),
    "unknown source": (("sweep", "--source", "libary"), "library"),
    "unknown mode": (("sweep", "--modes", "evil"), "eval"),
    "impossible shard": (("sweep", "--shard", "5/3"), "1/3 to 3/3"),
    "no such run": (("report", "20200101-000000-0000"), "no run"),
    "no such baseline": (("sweep", "--models", "bert", "--baseline", "20200101"), "no run"),
    "no config.json": (("explain", "./empty"), "config.json"),
    "no such factory module": (("explain", "nowhere:model"), "nowhere"),
    "inputs of another kind": (
        ("inputs", "team/whole", "--source", "manifest", "--inputs", "team.py"),
        ".safetensors",
    ),
    "nothing to resume": (("sweep", "--resume"), "nothing to resume"),
    "unwritable outputs": (
        ("sweep", "--source", "manifest", "--output", "/proc/outputs"),
        "--output",
    ),
    "outputs is a file": (("sweep", "--source", "manifest", "--output", "team.py"), "--output"),
}

SAID = {
    "raises": "RuntimeError: the factory itself fails",
    "number": "team:number returned int, not a torch.nn.Module",
}
"""Factory of the team's module -> what is said of it."""


OF_ALL_SOURCES = "unknown model, near names"
"""Every library is read for it, which takes ten seconds: it is in the matrix."""


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[pytest.mark.matrix] if c == OF_ALL_SOURCES else []) for c in CASES],
)
def test_one_line_that_helps(case: str, compilewatch: Compilewatch, team: Path) -> None:
    arguments, expected = CASES[case]
    (team / "empty").mkdir(exist_ok=True)
    done = compilewatch(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert expected in last


def test_malformed_settings_name_file_and_key(compilewatch: Compilewatch, team: Path) -> None:
    file = team / "compilewatch.toml"
    file.write_text("jobs = 'two'\n")
    try:
        done = compilewatch("runs")
    finally:
        file.unlink()
    assert done.returncode == 2
    assert "compilewatch.toml: jobs" in done.stderr


@pytest.mark.parametrize("factory", SAID)
def test_a_factory_that_fails_is_that_models_result(
    factory: str, compilewatch: Compilewatch
) -> None:
    done = compilewatch("explain", f"team:{factory}")
    assert done.returncode == 3, done.stderr
    assert f"team:{factory}  dynamo  error in create" in done.stdout
    assert SAID[factory] in done.stdout


def test_inputs_that_do_not_fit_are_that_models_result(
    compilewatch: Compilewatch, team: Path
) -> None:
    (team / "wrong.toml").write_text(
        'schema = 1\n[inputs.y]\nshape = [2, 3]\ndtype = "float32"\nfill = "normal"\n'
    )
    done = compilewatch("explain", "team/whole", "--source", "manifest", "--inputs", "wrong.toml")
    assert done.returncode == 3
    assert "unexpected keyword argument 'y'" in done.stdout


def test_a_damaged_line_costs_that_line_only(compilewatch: Compilewatch) -> None:
    own = ("--output", "damaged")
    done = compilewatch("sweep", "--source", "manifest", *own, "--json")
    folder = Path(json.loads(done.stdout)["folder"])
    lines = (folder / "results.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "results.jsonl").write_bytes(b"{garbage\n" + lines[1])
    done = compilewatch("report", *own, "--json")
    assert done.returncode == 0, done.stderr
    page = (folder / "report" / "index.html").read_text()
    assert f"{folder}/results.jsonl:1: damaged line left out" in page
    assert "1 of 2 planned requests have no result" in page


# A build is aborted by SIGTERM in jenkins/test_stages.py, too.
@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.matrix)]
)
def test_an_abort_keeps_what_is_done_and_resume_finishes_it(
    how: signal.Signals, compilewatch: Compilewatch, team: Path
) -> None:
    """A real process, which alone can be sent a signal; this one finishes what it left."""
    outputs = team / f"interrupted-{how.name}"
    entries = (
        f"[[model]]\nname = '{name}'\nfactory = 'tests.chaos:{name}'\n"
        f"inputs = 'tests.chaos:inputs_of_{name}'\npython_path = '{ROOT}'\n"
        for name in ("ok", "hang_compile")
    )
    (team / "chaos.toml").write_text("schema_version = 1\n" + "\n".join(entries))
    command = [
        str(PROGRAM),
        *("sweep", "--source", "manifest"),
    ]
    command += ["--output", str(outputs), "--jobs", "1"]
    sweeping = subprocess.Popen(
        command,
        cwd=team,
        stderr=subprocess.PIPE,
        text=True,
        # Long enough to be aborted in; what finishes the run waits for it a second time.
        env=os.environ
        | {
            "COMPILEWATCH_DEADLINES_COMPILE_SECONDS": "4",
            "COMPILEWATCH_MODELS_FILE": str(team / "chaos.toml"),
        },
    )
    try:
        deadline = time.monotonic() + 120
        while not any(p.stat().st_size for p in outputs.glob("*/results.jsonl")):
            assert time.monotonic() < deadline
            assert sweeping.poll() is None
            time.sleep(0.05)
        sweeping.send_signal(how)
        _, said = sweeping.communicate(timeout=60)
    finally:
        sweeping.kill()
    assert sweeping.returncode == 130
    assert "--resume" in said
    done = compilewatch("sweep", "--resume", "--output", str(outputs), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["statuses"] == {"pass": 1, "timeout": 1}
    (lines,) = outputs.glob("2*/results.jsonl")
    assert len(lines.read_bytes().splitlines()) == 2
