"""The life of one child: made its own session, limited, asked one question, gone by `os._exit`."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from compilewatch import files
from compilewatch.contract.messages import (
    ARTIFACTS_FOLDER,
    NO_RESULT,
    PHASES_FILE,
    RESULT_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    Answer,
    Start,
    durations,
)
from compilewatch.records import ChaosBuild, Phase, Tier
from compilewatch.worker import phases
from compilewatch.worker.process.frame_stack import with_frame_space

FILE_LIMIT_BYTES = 2**30
"""Of any one file a child writes: a model that prints without end must not fill the disk."""

_LARGEST_INT = 2**31 - 1
_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_THRESHOLD = -3
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def main(start: Start, server_pid: int, *, prepare: Callable[[], None] = lambda: None) -> NoReturn:
    """Answer one request and end this process. Called in a child of the server, never returns.

    `prepare` is done first, in the phase `setup`: a process that is no fork of the server imports
    there what the server has imported for its forks.

    What cannot be said in a result ends with exit code `NO_RESULT` and a traceback on stderr.
    Nothing is torn down: the kernel frees faster than Python does, and tear-down code can hang or
    crash.
    """
    code = NO_RESULT
    try:
        os.setsid()
        _die_with_parent(server_pid)
        folder = Path(start.folder)
        _redirect_output(folder)
        _reset_signals()
        _limit_resources(start.request.memory_limit_bytes)
        if start.tier is Tier.FAKE:
            _leave_garbage()
        else:
            _keep_freed_memory()
        os.chdir(folder)  # stray files of model code stay here
        _answer(start, folder, prepare)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        os._exit(code)


def _answer(start: Start, folder: Path, prepare: Callable[[], None]) -> None:
    marks: list[tuple[Phase, float]] = []
    mark = _marker(folder, marks)
    mark(Phase.SETUP)
    prepare()
    (folder / ARTIFACTS_FOLDER).mkdir(exist_ok=True)
    answer = with_frame_space(lambda: phases.evaluate(start.request, start.tier, folder, mark))
    mark(Phase.DONE)
    spent = durations(tuple(marks), marks[-1][1])
    answer = Answer(
        result=msgspec.structs.replace(answer.result, durations=spent),
        fake_failure=answer.fake_failure,
    )
    files.replace(folder / RESULT_FILE, msgspec.json.encode(answer))
    build = start.request.model.build
    if isinstance(build, ChaosBuild):
        from compilewatch.worker.model import chaos

        chaos.misbehave(build.behaviour, Phase.DONE)


def _marker(folder: Path, marks: list[tuple[Phase, float]]) -> Callable[[Phase], None]:
    path = folder / PHASES_FILE

    def mark(phase: Phase) -> None:
        if marks and marks[-1][0] is phase:
            return  # a target that announces the phase it was called in
        marks.append((phase, time.monotonic()))
        files.replace(path, msgspec.json.encode(marks))

    return mark


def become_subreaper() -> None:
    """Let orphans below this process become its children, so that it can end them (Linux only)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that dies (Linux only)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between the fork and the call
            os._exit(0)


def _redirect_output(folder: Path) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    for name, descriptor in ((STDOUT_FILE, 1), (STDERR_FILE, 2)):
        opened = os.open(folder / name, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # A crash, and the SIGTERM that ends a hang, leave the Python stack in stderr.
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)


def _limit_resources(memory_limit_bytes: int) -> None:
    """A backstop only: the launcher watches resident memory and ends a child that has too much.

    The kernel counts private mappings, touched or not, so the limit leaves room for mappings that
    stay empty: what the server had mapped, and twice the request's limit.
    """
    limit = _mapped_bytes() + 2 * memory_limit_bytes
    _lower(resource.RLIMIT_DATA, limit)
    _lower(resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES)
    _lower(resource.RLIMIT_CORE, 0)
    # Where the machine itself runs out, the kernel shall choose a child, not the server or parent.
    adjustment = Path("/proc/self/oom_score_adj")
    if adjustment.exists():
        adjustment.write_text("1000")


def _leave_garbage() -> None:
    """Collect none, after a frame's compile neither: fake tensors hold no memory to win back.

    Collecting takes a twentieth of a capture, a tenth of one with many breaks (torch 2.13).
    """
    gc.disable()
    config: Any = sys.modules.get("torch._dynamo.config")  # the server has imported it, if it can
    if hasattr(config, "run_gc_after_compile"):  # not in torch 2.9
        config.run_gc_after_compile = False


def _keep_freed_memory() -> None:
    """Have malloc keep what is freed for the next tensor, instead of giving it back to the kernel.

    Large tensors come from mappings of their own otherwise, and each page of each is faulted in and
    cleared again: a fifth of a training step's capture (glibc; other libraries lack `mallopt`).
    """
    if _LIBC is not None and hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_THRESHOLD, _LARGEST_INT)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(kind, (limit, hard))


def _mapped_bytes() -> int:
    try:
        data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return 4 * 2**30
    return data_pages * os.sysconf("SC_PAGE_SIZE")
