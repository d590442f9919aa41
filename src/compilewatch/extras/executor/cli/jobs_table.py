"""Jobs of the executor on a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compilewatch.extras.executor.protocol import JobState


def print_output(data: bytes) -> None:
    """Print untrusted text: no escape sequence may reach the terminal."""
    text = data.decode(errors="replace")
    safe = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    sys.stdout.write(safe)
    sys.stdout.flush()


def line_of(state: JobState) -> str:
    """One line about a job."""
    said = [f"{state.key}: {state.state}"]
    if state.failure is not None and state.failure.value != state.state.value:
        said.append(f"({state.failure})")
    result = state.result
    if result is not None:
        if result.exit_code:
            said.append(f"exit status {result.exit_code},")
        said.append(f"{result.duration_seconds:.1f} s")
        if result.peak_memory_bytes is not None:
            said.append(f"and {result.peak_memory_bytes / 2**20:.0f} MiB")
        if result.artifacts:
            said.append(f"with files: {len(result.artifacts)}")
    if state.message:
        said.append(f"- {state.message}")
    return " ".join(said)
