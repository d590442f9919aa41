"""The structured trace of a capture as artifacts: the log, and the pages made by tlparse."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

LOG_FOLDER = "torch_trace"
PAGES_FOLDER = "tlparse"
_TIMEOUT_SECONDS = 60.0


def render(artifacts: Path) -> tuple[tuple[str, ...], str]:
    """Render the log in `artifacts/torch_trace` into `artifacts/tlparse`.

    Returns the paths to keep, relative to `artifacts` (the log, and the first page if there is
    one), and what went wrong in one line, or "". Never raises, because an artifact is not a
    verdict.
    """
    logs = sorted((artifacts / LOG_FOLDER).glob("*.log"))
    if not logs:
        return (), "torch wrote no structured trace"
    kept = tuple(str(log.relative_to(artifacts)) for log in logs)
    program = find_tlparse()
    if program is None:
        return kept, "tlparse is not installed: the structured trace is kept, but not rendered"
    pages = artifacts / PAGES_FOLDER
    command = [program, "--overwrite", "--no-browser", "-o", str(pages), str(logs[-1])]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return kept, f"tlparse did not run: {type(error).__name__}"
    index = pages / "index.html"
    if done.returncode != 0 or not index.is_file():
        errors = done.stderr.strip().splitlines()
        return kept, f"tlparse failed ({done.returncode}): {errors[-1] if errors else 'no message'}"
    return (str(index.relative_to(artifacts)), *kept), ""


def discard(artifacts: Path) -> None:
    """Delete the log of a capture without graph breaks."""
    shutil.rmtree(artifacts / LOG_FOLDER, ignore_errors=True)


def find_tlparse() -> str | None:
    """Find the binary of the tlparse wheel: next to the interpreter, or else on PATH."""
    beside = Path(sys.executable).with_name("tlparse")
    return str(beside) if beside.is_file() else shutil.which("tlparse")
