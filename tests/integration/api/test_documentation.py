"""The examples of docs/api.md, run as they stand there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.mark.matrix
@pytest.mark.timeout(300)
@pytest.mark.torch
def test_the_examples_run_one_after_another(tmp_path: Path) -> None:
    """Starts Python as a reader does; the last examples are a script and a sweep with a worker."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) >= 4
    script = tmp_path / "examples.py"
    script.write_text("\n".join(blocks), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "GB0170 Data-dependent branching" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("report/index.html")
    assert done.stderr == ""
