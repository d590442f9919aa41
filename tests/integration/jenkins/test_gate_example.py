"""The stage of a Jenkinsfile that docs/gate.md shows, in the smallest pipeline around it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PIPELINE = """\
pipeline {{
    agent any
    stages {{
{stage}
    }}
}}
"""


@pytest.mark.matrix
def test_the_linter_accepts_the_stage(groovy_lint: Path, tmp_path: Path) -> None:
    """A start of Java: npm-groovy-lint's parser is what reads a Jenkinsfile here."""
    page = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
    (stage,) = re.findall(r"^```groovy\n(.*?)\n^```", page, re.MULTILINE | re.DOTALL)
    indented = "\n".join(f"        {line}" for line in stage.splitlines())
    path = tmp_path / "Jenkinsfile"
    path.write_text(PIPELINE.format(stage=indented))
    done = subprocess.run(
        [ROOT / "scripts" / "groovy_lint.sh", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
