"""Calls in forks of this process, so that no call sees what another one has left behind.

The first call of a model fills caches, counts, issues a warning, or changes its inputs or a global.
What a compiler captures afterwards is not what it captures for a user, who compiles a model that
nothing has called. A process that builds a model therefore never calls it: each call has a fork of
its own. Only a fork restores everything; a copy of the module restores no globals and no generators
of random numbers, and not every module can be copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from compilewatch.contract.failures import RecordedError, error_record, one_line, type_names
from compilewatch.contract.messages import encoded
from compilewatch.records import ErrorRecord, Record

LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_PR_SET_PDEATHSIG = 1  # prctl.h

_Value = TypeVar("_Value")


class _Ending(Record, frozen=True, kw_only=True):
    """What a fork writes at its end: an encoded value, or the exception that ended the call."""

    value: bytes = b""
    log: tuple[str, ...] = ()
    record: ErrorRecord | None = None
    line: str = ""
    names: tuple[str, ...] = ()


def possible() -> bool:
    """Whether this process may fork: only the thread that forks exists in the fork."""
    return hasattr(os, "fork") and threads() == 1


def threads() -> int:
    """How many threads this process has, including those that Python does not know."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def fork() -> int:
    """Fork this process; the fork ends with it, even if nothing is left that could kill the fork.

    A fork does not inherit the death signal of its parent, so each needs one of its own.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        die_with(parent)
    return pid


def die_with(parent: int) -> None:
    """Let the kernel kill this process when its parent dies for any reason (Linux only)."""
    if LIBC is not None:
        LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died between the fork and the call
            os._exit(0)


def in_fork(function: Callable[[], _Value], kind: type[_Value], log: list[str]) -> _Value:
    """Call a function in a fork of this process and return what it returns.

    `kind` is the type of the value, which msgspec must be able to encode. What the function adds to
    `log` in the fork is added to it here too. An exception of the function becomes a
    `RecordedError`. If a signal or `os._exit` ends the fork, this process ends in the same way,
    because the call would have ended it.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with _termination_delayed() as mask:
        pid = fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(read)
            _call(function, write, log)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            written = stream.read()
        _, status = os.waitpid(pid, 0)
    if not written:
        _end_like(status)
    ending = msgspec.msgpack.decode(written, type=_Ending)
    log[:] = ending.log
    if ending.record is not None:
        raise RecordedError(ending.record, line=ending.line, names=ending.names)
    return msgspec.msgpack.decode(ending.value, type=kind)


def _call(function: Callable[[], object], write: int, log: list[str]) -> NoReturn:
    code = 1
    try:
        renew_thread_pool()
        ending = msgspec.structs.replace(_ending(function), log=tuple(log))
        with os.fdopen(write, "wb") as stream:
            stream.write(encoded(ending, msgspec.msgpack.encode))
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ending(function: Callable[[], object]) -> _Ending:
    try:
        return _Ending(value=encoded(function(), msgspec.msgpack.encode))
    except BaseException as error:  # noqa: BLE001  (whatever code of the model raises)
        names = tuple(sorted(type_names(error)))
        return _Ending(record=error_record(error), line=one_line(error), names=names)


def renew_thread_pool() -> None:
    """Let torch replace the thread pool of its parent while this process has one thread.

    A fork does so when a thread count is set for the first time (`caffe2::pthreadpool`). Autograd
    sets one in each of its threads at once, one thread for each CUDA device: one may find no pool,
    and aborts the process ("Invalid thread pool!", torch 2.15).
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(torch.get_num_threads())


@contextmanager
def _termination_delayed() -> Iterator[Iterable[int]]:
    """Delay SIGTERM: the fork gets it too, and its stack, written first, says where a model was.

    Yields the signals that were blocked before.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        faulthandler.disable()  # the fork has written its stack
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)
