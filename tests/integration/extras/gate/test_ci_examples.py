"""The commands of the GitLab job and the Jenkins stage of docs/gate.md, in a repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.schemas import sarif_errors, vendor_errors

# `test_plugin.py` runs pytest in a repository as well, without the scripts of these pages.
pytestmark = [pytest.mark.torch, pytest.mark.matrix]

PAGE = (Path(__file__).parents[4] / "docs" / "gate.md").read_text(encoding="utf-8")

PIP = """#!/bin/sh
printf '%s\\n' "$@" >>"$PIP_CALLS"
"""
"""Instead of an installation, for which a test has no index: it notes what it is to install."""

TEST = """
import torch

def forward(x):
    return x * 2 if x.sum() > 0 else x

def test_forward(compile_check):
    compile_check(forward, torch.ones(2, 4))
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[[list[str]], list[int]]:
    """Run the lines of a script in a repository with a new graph break; return their statuses."""
    programs, calls = tmp_path / "programs", tmp_path / "pip_calls"
    programs.mkdir()
    (programs / "pip").write_text(PIP)
    (programs / "pip").chmod(0o755)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_compile.py").write_text(TEST)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mypkg"\nversion = "1"\n')
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PIP_CALLS": str(calls)}

    def lines(script: list[str]) -> list[int]:
        found = [
            subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, timeout=300)
            for line in script
        ]
        assert calls.read_text().split() == ["install", ".", "pytest", "compilewatch"]
        return [each.returncode for each in found]

    return lines


def test_the_gitlab_job_fails_and_leaves_its_reports(
    run: Callable[[list[str]], list[int]], tmp_path: Path
) -> None:
    """A session of pytest with torch, as a runner starts it: the options and files of the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (job,) = [found for block in blocks if "graph-breaks" in (found := yaml.safe_load(block))]
    assert vendor_errors("gitlab-ci", job) == []
    content: dict[str, Any] = job["graph-breaks"]
    assert run(content["script"]) == [0, 1]
    reports = content["artifacts"]["reports"]
    assert content["artifacts"]["when"] == "always"
    (issue,) = json.loads((tmp_path / reports["codequality"]).read_text())
    assert issue["location"] == {"path": "tests/test_compile.py", "lines": {"begin": 5}}
    assert ET.parse(tmp_path / reports["junit"]).find(".//testcase/failure") is not None


def test_the_jenkins_stage_fails_and_leaves_its_reports(
    run: Callable[[list[str]], list[int]], tmp_path: Path
) -> None:
    """A session of pytest with torch, as an agent starts it: the options and files of the page."""
    (stage,) = re.findall(r"^```groovy\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    script = re.findall(r"\bsh '(.*)'", stage)
    assert run(script) == [0, 1]
    (junit,) = re.findall(r"\bjunit '(.*)'", stage)
    assert ET.parse(tmp_path / junit).find(".//testcase/failure") is not None
    (sarif,) = re.findall(r"sarif\(pattern: '([^']*)'", stage)
    log = json.loads((tmp_path / sarif).read_text())
    assert sarif_errors(log) == []
    assert log["runs"][0]["results"][0]["baselineState"] == "new"
