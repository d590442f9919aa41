"""What the processes below a process take."""

from __future__ import annotations

import subprocess
import sys

from compilewatch.contract.processes import PeakMemory

HOLD = "import time; held = bytearray(b'x' * ({} * 2**20)); time.sleep(1)"
MIB = 2**20


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_the_largest_process_counts_also_below_another_one() -> None:
    inner = f"import subprocess, sys; subprocess.run([*{python(HOLD.format(60))!r}])"
    with PeakMemory() as peak:
        subprocess.run(python(inner), check=True)
    assert peak.bytes is not None
    assert 60 * MIB < peak.bytes < 160 * MIB


def test_what_the_parent_holds_and_what_was_there_before_are_not_counted() -> None:
    held = bytearray(b"x" * (200 * MIB))
    with subprocess.Popen(python(HOLD.format(200))) as earlier:
        with PeakMemory() as peak:
            subprocess.run(python(HOLD.format(1)), check=True)
        earlier.kill()
    assert len(held) == 200 * MIB
    assert peak.bytes is not None
    assert peak.bytes < 100 * MIB
    with PeakMemory() as peak:
        pass  # nothing is started
    assert peak.bytes is None
