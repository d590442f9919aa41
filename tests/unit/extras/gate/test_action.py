"""What the page says of options, settings and action.yml, whose step runs the right command."""

import inspect
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from compilewatch.extras.gate import plugin
from compilewatch.extras.gate.judgement import RULES, SETTINGS
from tests.schemas import vendor_errors, workflow

ROOT = Path(__file__).parents[4]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
PAGE = (ROOT / "docs" / "gate.md").read_text()

STUB = """#!/bin/sh
printf '%s\\n' "$@"
for last; do case "$before" in *sarif) echo '{}' >"$last" ;; esac; before=$last; done
exit "$STATUS"
"""


def test_the_action_is_valid_and_its_inputs_are_documented() -> None:
    assert vendor_errors("github-actions", ACTION) == []
    section = PAGE[PAGE.index("## GitHub") : PAGE.index("## GitLab")]
    rows = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \| .* \|$", section, re.MULTILINE))
    assert rows == {name: entry["description"] for name, entry in ACTION["inputs"].items()}
    defaults = dict(re.findall(r"^\| `([\w-]+)` \| .+ \| (?:`(.*)`|–) \|$", section, re.MULTILINE))
    assert defaults == {name: entry["default"] for name, entry in ACTION["inputs"].items()}


def test_examples_of_other_systems_are_valid() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    kinds = {"github-workflows": 0, "gitlab-ci": 0}
    for block in blocks:
        content = workflow(block)
        kind = "github-workflows" if "jobs" in content else "gitlab-ci"
        assert vendor_errors(kind, content) == []
        kinds[kind] += 1
    assert all(kinds.values())


SARIF = "--compilewatch-sarif SARIF"


@pytest.mark.process
@pytest.mark.parametrize(
    ("variables", "expected", "status"),
    [
        ({}, f"pytest {SARIF}", 0),
        (
            {"ARGUMENTS": "tests -k 'a  b'", "STRICT": "true"},
            f"pytest tests -k 'a  b' {SARIF} --compilewatch-strict",
            1,
        ),
        ({"COMMAND": "gate", "ARGUMENTS": "m:f"}, "compilewatch gate m:f --sarif SARIF", 3),
    ],
)
def test_the_step_runs_the_command_and_keeps_its_status(
    tmp_path: Path, variables: dict[str, str], expected: str, status: int
) -> None:
    program, sarif, outputs = tmp_path / "python", tmp_path / "x.sarif", tmp_path / "outputs"
    program.write_text(STUB)
    program.chmod(0o755)
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "gate")
    defaults = {
        "PYTHON": str(program),
        "COMMAND": "pytest",
        "ARGUMENTS": "",
        "STRICT": "false",
        "SARIF": str(sarif),
        "GITHUB_OUTPUT": str(outputs),
        "STATUS": str(status),
    }
    assert set(step["env"]) <= defaults.keys()
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env=os.environ | defaults | variables,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == status, done.stderr
    words = shlex.split(expected.replace("SARIF", str(sarif)))
    assert done.stdout.splitlines() == ["-m", *words]
    assert outputs.read_text() == f"sarif={sarif}\n"


def test_every_option_and_setting_is_documented_and_no_other() -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    options = {name for option in parser._anonymous.options for name in option.names()}
    options |= {
        name for group in parser._groups for option in group.options for name in option.names()
    }
    assert set(re.findall(r"`(--compilewatch-[\w-]+)", PAGE)) == options
    rows = set(
        re.findall(r"^\| `(\w+)` \|", PAGE[: PAGE.index("The options of pytest")], re.MULTILINE)
    )
    assert rows == set(SETTINGS)


def test_the_marker_names_every_rule() -> None:
    """The rules are also the fixture's keywords, whose order `RULES` has."""
    from compilewatch.extras.gate.fixture import CompileCheck

    source = inspect.getsource(plugin.pytest_configure)
    assert all(f"{rule}=" in source for rule in RULES)
    keywords = inspect.signature(CompileCheck.__call__).parameters
    assert [name for name in keywords if name in RULES] == list(RULES)
