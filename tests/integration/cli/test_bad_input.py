"""Wrong input: one line that says what to do, exit status 2, no traceback, nothing lost."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.team import PROGRAM, Compilewatch

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("sweeep", "no command 'sweeep'; did you mean 'sweep'?"),
        ("sweep --models bert --targets dynamoo", "dynamo"),
        ("sweep --source libary", "library"),
        ("sweep --modes evil", "eval"),
        ("sweep --shard 5/3", "1/3 to 3/3"),
        ("sweep --environments torch-1.0", "compilewatch env create torch-1.0 --torch VERSION"),
        ("sweep --resume", "nothing to resume"),
        ("sweep --source manifest --output /proc/outputs", "--output"),
        ("sweep --source manifest --output team.py", "--output"),
        ("report 20200101-000000-0000", "no run"),
        ("explain ./empty", "config.json"),
        ("explain nowhere:model", "nowhere"),
        ("explain team:broken --inputs team:nothing", "has no nothing"),
        ("inputs team/whole --source manifest --inputs team.py", ".safetensors"),
        ("publish", "no service is configured: set one of pushgateway.url"),
        ("publish --to pushgateway", "set url in the table [pushgateway]"),
        ("publish --to telegraph", "no sink 'telegraph'; known: html, "),
    ],
)
def test_one_line_that_helps(
    command: str, expected: str, compilewatch: Compilewatch, team: Path
) -> None:
    (team / "empty").mkdir(exist_ok=True)
    done = compilewatch(*command.split())
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert expected in done.stderr.strip().splitlines()[-1]


def test_an_output_that_cannot_be_written_is_one_line(team: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [PROGRAM, "runs"], cwd=team, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "compilewatch: No space left on device\n")


WRONG = ("team/whole", "--source", "manifest", "--inputs", "wrong.toml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("team:raises",), "error in create.*RuntimeError: the factory itself fails"),
        (("team:number",), r"team:number returned int, not a torch\.nn\.Module"),
        (WRONG, "unexpected keyword argument 'y'"),
    ],
)
def test_a_factory_or_inputs_that_fail_are_that_models_result(
    arguments: tuple[str, ...], said: str, compilewatch: Compilewatch, team: Path
) -> None:
    (team / "wrong.toml").write_text(
        'schema = 1\n[inputs.y]\nshape = [2, 3]\ndtype = "float32"\nfill = "normal"\n'
    )
    done = compilewatch("explain", *arguments)
    assert done.returncode == 3, done.stderr
    assert re.search(said, done.stdout, re.DOTALL)


# A build is aborted by SIGTERM in jenkins/test_stages.py.
def test_an_abort_keeps_what_is_done_and_resume_finishes_it(
    compilewatch: Compilewatch, team: Path
) -> None:
    """A real process, which alone can be sent a signal; this one finishes what it left."""
    outputs = team / "interrupted"
    entries = (
        f"[[model]]\nname = '{name}'\nfactory = 'tests.chaos:{name}'\n"
        f"inputs = 'tests.chaos:inputs_of_{name}'\npython_path = '{ROOT}'\n"
        for name in ("ok", "hang_compile")
    )
    (team / "chaos.toml").write_text("schema_version = 1\n" + "\n".join(entries))
    command = [str(PROGRAM), "sweep", "--source", "manifest", "--output", str(outputs)]
    # Long enough to be aborted in; what finishes the run waits for it a second time.
    slow = {"COMPILEWATCH_DEADLINES_COMPILE_SECONDS": "4", "COMPILEWATCH_JOBS": "1"}
    models = {"COMPILEWATCH_MODELS_FILE": str(team / "chaos.toml")}
    given = os.environ | slow | models
    with subprocess.Popen(
        command, cwd=team, stderr=subprocess.PIPE, text=True, env=given
    ) as sweeping:
        while not any(p.stat().st_size for p in outputs.glob("*/results.jsonl")):
            assert sweeping.poll() is None
            time.sleep(0.05)
        sweeping.send_signal(signal.SIGINT)
        _, said = sweeping.communicate(timeout=60)
    assert sweeping.returncode == 130
    assert "--resume" in said
    done = compilewatch("sweep", "--resume", "--output", str(outputs), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["statuses"] == {"pass": 1, "timeout": 1}
    (lines,) = outputs.glob("2*/results.jsonl")
    assert len(lines.read_bytes().splitlines()) == 2
