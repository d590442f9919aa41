"""One child: it gets its own session and limits, evaluates one request, and ends by `os._exit`.

`worker.process.child FOLDER SERVER_PID` is one that is not a fork of the server, which starts it
where it cannot fork. It reads its request from `start.json` in FOLDER and imports torch itself, in
the phase `setup`, whose deadline includes the import.

Reserve memory for Python frames, so that deep recursion does not map memory again and again.

CPython keeps the frames of a thread in chunks of 16 KiB that it maps when a call needs one and
unmaps when that call returns (`push_chunk` in Python/pystate.c, 3.11 and newer). Tracing compilers
recurse deeply and return often, so that one capture of a small model mapped and unmapped 25,000
chunks: with the page faults, this was a tenth of its time. A chunk is never smaller than the frame
it was mapped for, and the calls inside that frame use the rest of the chunk.
"""

import faulthandler
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from compilewatch import extras, files, plugins
from compilewatch.contract import messages
from compilewatch.records import Phase, Tier
from compilewatch.worker import forked

SLOTS = 2**20 + 2**16
"""Words in the frame of `with_large_frame`: 8.5 MiB. Its chunk has 16 MiB, which leaves 7 MiB.

Only the pages that are used occupy memory.
"""

_Result = TypeVar("_Result")


def with_large_frame(function: Callable[[], _Result]) -> _Result:
    """Call a function, with memory for all frames below it reserved in one chunk."""
    return function()


with_large_frame.__code__ = with_large_frame.__code__.replace(co_stacksize=SLOTS)


FILE_LIMIT_BYTES = 2**30
"""The limit for each file that a child writes: endless output of a model must not fill the disk."""

_LARGEST_INT = 2**31 - 1
_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_PR_SET_CHILD_SUBREAPER = 36


def main(
    start: messages.Start, server_pid: int, *, prepare: Callable[[], None] = lambda: None
) -> NoReturn:
    """Evaluate one request and end this process. Called in a child of the server; never returns.

    `prepare` is called first, in the phase `setup`: there, a process that is not a fork of the
    server imports the modules that the server has imported for its forks.

    A failure that cannot be written as a result ends with exit code `NO_RESULT` and a traceback on
    stderr. There is no tear-down: the kernel frees memory faster than Python does, and tear-down
    code can hang or crash.
    """
    code = messages.NO_RESULT
    try:
        folder = Path(start.folder)
        become_child(folder, server_pid, start.request.memory_limit_bytes)
        os.chdir(folder)  # files that model code writes to the current folder go here
        work = start.request.work
        if work is not None and work.name in extras.CHILDREN:  # as torch ships, for its times
            prepare()
            plugins.load(extras.CHILDREN[work.name])(start.request)
        else:
            if start.tier is Tier.FAKE:
                _leave_garbage()
            else:
                _keep_freed_memory()
            forked.renew_thread_pool()
            evaluate(start, folder, prepare)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def become_child(folder: Path, server_pid: int, memory_limit_bytes: int) -> None:
    """Give this process a session, output files and limits, and let it end with its server."""
    os.setsid()
    forked.die_with(server_pid)
    _redirect_output(folder)
    _reset_signals()
    _limit_resources(memory_limit_bytes)


def evaluate(start: messages.Start, folder: Path, prepare: Callable[[], None]) -> None:
    """Evaluate one request and write its phases and its result into `folder`."""
    marks: list[tuple[Phase, float]] = []
    mark = _marker(folder, marks)
    mark(Phase.SETUP)
    prepare()
    from compilewatch.worker import phases

    (folder / messages.ARTIFACTS_FOLDER).mkdir(exist_ok=True)
    written = with_large_frame(lambda: phases.evaluate(start.request, start.tier, folder, mark))
    mark(Phase.DONE)
    spent = messages.durations(tuple(marks), marks[-1][1])
    written = msgspec.structs.replace(
        written, result=msgspec.structs.replace(written.result, durations=spent)
    )
    files.replace(folder / messages.RESULT_FILE, messages.encoded(written))


def _marker(folder: Path, marks: list[tuple[Phase, float]]) -> Callable[[Phase], None]:
    path = folder / messages.PHASES_FILE

    def mark(phase: Phase) -> None:
        marks[:] = messages.read_marks(folder)  # a fork of this process may have entered phases
        if marks and marks[-1][0] is phase:
            return  # a target has reported the phase in which it was called
        marks.append((phase, time.monotonic()))
        files.replace(path, msgspec.json.encode(marks))

    return mark


def become_subreaper() -> None:
    """Make orphaned descendants children of this process, so that it can end them (Linux only)."""
    if forked.LIBC is not None:
        forked.LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _redirect_output(folder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    for name, descriptor in ((messages.STDOUT_FILE, 1), (messages.STDERR_FILE, 2)):
        opened = os.open(folder / name, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # A crash, and the SIGTERM for a child that hangs, write the Python stack to stderr.
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)


def _limit_resources(memory_limit_bytes: int) -> None:
    """Limit the address space, as a second line of defence.

    The launcher measures resident memory and ends a child that uses too much. The kernel counts
    private mappings whether they are touched or not, so this limit allows for mappings that stay
    empty: those of the server, and twice the limit of the request.
    """
    forked.limit(resource.RLIMIT_DATA, forked.mapped_bytes() + 2 * memory_limit_bytes)
    forked.limit(resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES)
    forked.limit(resource.RLIMIT_CORE, 0)
    # If the machine runs out of memory, the kernel should kill a child, not the server or parent.
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.exists():
        adjustment.write_text("1000")


def _leave_garbage() -> None:
    """Disable garbage collection, also after the compilation of a frame.

    Fake tensors hold no memory that it could free. It takes a twentieth of a capture, and a tenth
    of a capture with many breaks (torch 2.13).
    """
    gc.disable()
    config: Any = sys.modules.get("torch._dynamo.config")  # imported by the server if possible
    if hasattr(config, "run_gc_after_compile"):  # not in torch 2.9
        config.run_gc_after_compile = False


def _keep_freed_memory() -> None:
    """Let malloc keep freed memory for the next tensor instead of returning it to the kernel.

    Otherwise each large tensor gets a new mapping, and each of its pages is faulted in and cleared:
    that is a fifth of the capture of a training step (glibc; other libraries lack `mallopt`).
    """
    if forked.LIBC is not None and hasattr(forked.LIBC, "mallopt"):
        forked.LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT)
        forked.LIBC.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)


if __name__ == "__main__":
    from compilewatch.worker.process import warmup

    path, server = sys.argv[1:]
    given = msgspec.json.decode(
        (Path(path) / messages.START_FILE).read_bytes(), type=messages.Start
    )
    target = given.request.target.name
    main(given, int(server), prepare=lambda: warmup.import_modules([target]))
