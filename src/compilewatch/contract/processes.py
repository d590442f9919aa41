"""Programs that run to their end, and what /proc says of processes: alive, started, memory.

Without /proc, no process is alive and nothing is measured. `getrusage` cannot measure the peak of
a child: its `ru_maxrss` includes the memory that the parent had when it forked, and a worker with
torch uses more memory than most compilers.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

SAMPLE_SECONDS = 0.05
"""The kernel records the peak of each process, so only growth after the last sample and processes
that live shorter than this are missed."""


GRACE_SECONDS = 2.0
"""The time for a program to write its last words."""


def run(
    command: Sequence[str],
    *,
    seconds: float,
    content: bytes = b"",
    **options: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program in a session of its own, and end all that it has started at its end.

    Its output goes to files, as a pipe stays open in what it has started. `content` is its standard
    input, `options` are those of `Popen`. Raises subprocess.TimeoutExpired, with what it printed,
    where it takes longer than `seconds`; it gets the signal SIGTERM first.
    """
    with (
        tempfile.TemporaryFile() as feed,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):

        def printed(file: Any) -> bytes:
            file.seek(0)
            return bytes(file.read())

        feed.write(content)
        feed.seek(0)
        process = subprocess.Popen(
            command, stdin=feed, stdout=output, stderr=errors, start_new_session=True, **options
        )
        late = False
        try:
            process.wait(None if seconds == math.inf else seconds)
        except subprocess.TimeoutExpired:
            late = True
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if late:
            raise subprocess.TimeoutExpired(command, seconds, printed(output), printed(errors))
        return subprocess.CompletedProcess(
            command, process.returncode, printed(output), printed(errors)
        )


class PeakMemory:
    """Measures the peak memory of processes that are started while the context is entered.

    `bytes` is the peak of the largest one below this process; None if there was none, or if the
    system has no /proc.
    """

    def __init__(self) -> None:
        self.bytes: int | None = None
        self._others: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._others = frozenset(descendants(os.getpid()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            for pid in frozenset(descendants(os.getpid())) - self._others:
                if peak := peak_bytes(pid):
                    self.bytes = max(peak, self.bytes or 0)


def peak_bytes(pid: int) -> int | None:
    """Return `VmHWM`, proc(5): the peak resident memory of a process since its exec."""
    return field_bytes(pid, "status", "VmHWM")


def field_bytes(pid: int | str, file: str, name: str) -> int | None:
    """Return what a file of a process in proc(5) gives in kB under a name, in bytes."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def resident_bytes(pid: int | str = "self") -> int | None:
    """Return the resident memory of a process now: statm, proc(5). None if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


def is_alive(pid: int | str) -> bool:
    """Return whether there is such a process; one that nobody has waited for counts."""
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> Iterator[int]:
    """Yield the processes that a process started and that still run."""
    tasks: list[Path] = []
    with suppress(OSError):  # it may end at any time
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    for task in tasks:
        with suppress(OSError, ValueError):
            yield from map(int, (task / "children").read_text().split())


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process and its descendants started and that still run."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def program(name: str, folder: str = "") -> str | None:
    """Find a program: next to this Python (a venv need not be activated), on PATH, in a folder."""
    beside = Path(sys.executable).with_name(name)
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which(name) or (shutil.which(name, path=folder) if folder else None)


def tail(path: Path, size: int) -> str:
    """Return the last `size` bytes of a log as text, "" if it does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
