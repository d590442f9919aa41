"""What /proc says of this process, of one that it starts, and of one that has ended."""

import os
import subprocess
import sys
import time

import pytest

from compilewatch.contract import processes

MIB = 2**20
HOLD = "held = bytearray(b'x' * ({} * 2**20)); import time; time.sleep({})"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.mark.process
def test_a_process_what_it_started_and_the_largest_of_them() -> None:
    resident, own = processes.resident_bytes(), processes.peak_bytes(os.getpid())
    assert MIB < resident <= own
    assert processes.field_bytes("self", "status", "NoSuchField") is None
    inner = f"import subprocess; subprocess.run({python(HOLD.format(60, 1))!r})"
    held = bytearray(b"x" * (200 * MIB))  # of the parent, which does not count
    with subprocess.Popen(python(HOLD.format(200, 60))) as earlier:
        with (
            processes.PeakMemory() as peak,
            subprocess.Popen(python(inner), stdin=subprocess.PIPE) as outer,
        ):
            while not (started := list(processes.children(outer.pid))):
                assert outer.poll() is None
                time.sleep(0.01)
            assert list(processes.descendants(outer.pid)) == started
            assert {outer.pid, *started} <= set(processes.descendants(os.getpid()))
            assert processes.is_alive(outer.pid)
        earlier.kill()
    assert 60 * MIB < peak.bytes < 160 * MIB < len(held)
    assert not processes.is_alive(outer.pid)
    assert (processes.resident_bytes(outer.pid), processes.peak_bytes(outer.pid)) == (None, None)
    assert list(processes.descendants(outer.pid)) == []
    with processes.PeakMemory() as peak:
        pass  # nothing is started
    assert peak.bytes is None
