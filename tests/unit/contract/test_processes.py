"""What /proc says of this process, of one that it starts, and of one that has ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from compilewatch.contract import processes

_NESTED = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"


def test_memory_of_this_process() -> None:
    resident, peak = processes.resident_bytes(), processes.peak_bytes(os.getpid())
    assert resident is not None
    assert peak is not None
    assert 2**20 < resident <= peak
    assert processes.field_bytes("self", "status", "VmHWM") == processes.peak_bytes(os.getpid())
    assert processes.field_bytes("self", "status", "NoSuchField") is None


@pytest.mark.process
def test_children_and_what_they_started() -> None:
    # Only below `outer`: other tests may have left a server that starts processes at this moment.
    with subprocess.Popen([sys.executable, "-c", _NESTED], stdin=subprocess.PIPE) as outer:
        while not (inner := list(processes.children(outer.pid))):
            assert outer.poll() is None
        assert list(processes.descendants(outer.pid)) == inner
        assert outer.pid in processes.children(os.getpid())
        assert {outer.pid, *inner} <= set(processes.descendants(os.getpid()))
        assert processes.is_alive(outer.pid)
        outer.communicate(b"\n")
    assert not processes.is_alive(outer.pid)
    assert (processes.resident_bytes(outer.pid), processes.peak_bytes(outer.pid)) == (None, None)
    assert list(processes.descendants(outer.pid)) == []


def test_a_process_that_ends_while_it_is_read_has_no_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(path: object = ".") -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", gone)
    monkeypatch.setattr(os, "scandir", gone)
    assert list(processes.descendants(os.getpid())) == []
