"""Calls in forks of this process, so that no call sees what another one has left behind.

The first call of a model fills caches, counts, issues a warning, or changes its inputs or a global.
What a compiler captures afterwards is not what it captures for a user, who compiles a model that
nothing has called. A process that builds a model therefore never calls it: each call has a fork of
its own. Only a fork restores everything; a copy of the module restores no globals and no generators
of random numbers, and not every module can be copied.
"""

import contextlib
import ctypes
import faulthandler
import os
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from compilewatch.contract.failures import RecordedError, error_record, one_line, type_names
from compilewatch.contract.messages import encoded
from compilewatch.records import ErrorRecord

LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

_PR_SET_PDEATHSIG = 1  # prctl.h
_POLL_SECONDS = 1.0

_Value = TypeVar("_Value")
_Answer = tuple[msgspec.Raw, list[str], tuple[ErrorRecord, str, list[str]] | None]
"""What a fork writes at its end: the value, the log, and the exception that ended the call."""


class ForkEndedError(Exception):
    """A fork ended without a value: by itself (`how` says it), or for a limit (`late`)."""

    def __init__(self, how: str, *, late: bool) -> None:
        super().__init__(how if late else f"its process ended by {how}")
        self.how = how
        self.late = late


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
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


def limit(kind: int, most: int) -> None:
    """Lower a soft limit of this process, such as `resource.RLIMIT_DATA`."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(kind, (most, hard))


def mapped_bytes() -> int:
    """Return the size of this process's private mappings, which RLIMIT_DATA counts."""
    try:
        data_pages = int(Path("/proc/self/statm").read_text().split()[5])
    except OSError:
        return 4 * 2**30
    return data_pages * os.sysconf("SC_PAGE_SIZE")


def in_fork(
    function: Callable[[], _Value],
    kind: Any,
    log: list[str] | None = None,
    *,
    limit_seconds: float | None = None,
    idle_seconds: float | None = None,
) -> _Value:
    """Call a function in a fork of this process and return what it returns.

    `kind` is the type of the value, which msgspec must be able to encode. What the function adds to
    `log` in the fork is added to it here too. An exception of the function becomes a
    `RecordedError`.

    If a signal or `os._exit` ends the fork, this process ends in the same way, because the call
    would have ended it. With a limit, that raises `ForkEndedError`, and so does a fork that takes
    longer than `limit_seconds`, or uses no CPU time for `idle_seconds`; it is killed with its
    process group, if it has one.
    """
    (value,) = _in_forks([function], kind, [] if log is None else log, limit_seconds, idle_seconds)
    return value


def in_two_forks(
    functions: tuple[Callable[[Connection], _Value], Callable[[Connection], _Value]], kind: Any
) -> tuple[_Value, _Value]:
    """Call two functions at the same time, each in a fork and with one end of a pipe between them.

    See `in_fork`. An end raises EOFError or OSError where the other function has ended.
    """
    ends = Pipe()

    def connected() -> Iterator[Callable[[], _Value]]:
        for function, own, other in zip(functions, ends, reversed(ends), strict=True):
            yield partial(_with_end, function, own, other)
        for end in ends:  # no process but the two has them, so that each learns of the other's end
            end.close()

    first, second = _in_forks(connected(), kind, [], None, None)
    return first, second


def _with_end(
    function: Callable[[Connection], _Value], own: Connection, other: Connection
) -> _Value:
    other.close()
    with own:
        return function(own)


def _in_forks(
    functions: Iterable[Callable[[], _Value]],
    kind: Any,
    log: list[str],
    limit_seconds: float | None,
    idle_seconds: float | None,
) -> list[_Value]:
    """Call functions at the same time; see `in_fork`."""
    limited = limit_seconds is not None or idle_seconds is not None
    started: list[tuple[int, int]] = []
    statuses: list[int] = []
    flush()
    # The fork gets a SIGTERM too, and its stack, written first, says where a model was.
    delayed = () if limited else (signal.SIGTERM,)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, delayed)
    try:
        try:
            for function in functions:
                read, write = os.pipe()
                pid = fork()
                if pid == 0:
                    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                    os.close(read)
                    _call(function, write, log)
                os.close(write)
                started.append((read, pid))
            answers = [_read(read, pid, limit_seconds, idle_seconds) for read, pid in started]
        finally:
            for read, pid in started:
                os.close(read)
                for kill in (os.killpg, os.kill) if limited else ():
                    with contextlib.suppress(OSError):
                        kill(pid, signal.SIGKILL)
                statuses.append(_reap(pid))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for answer, status in zip(answers, statuses, strict=True):
        if not answer and not limited:
            _end_like(status)
        if not answer:
            how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
            raise ForkEndedError(how, late=False)
    decoded = [msgspec.msgpack.decode(answer, type=_Answer) for answer in answers]
    for _, ended_log, failure in decoded:
        log[:] = ended_log
        if failure is not None:
            record, line, names = failure
            raise RecordedError(record, line=line, names=names)
    return [msgspec.msgpack.decode(value, type=kind) for value, _, _ in decoded]


def _call(function: Callable[[], object], write: int, log: list[str]) -> NoReturn:
    code = 1
    try:
        renew_thread_pool()
        answer = _answer(function, log)
        flush()
        with os.fdopen(write, "wb") as stream:
            stream.write(answer)
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
            flush()
        os._exit(code)


def _answer(function: Callable[[], object], log: list[str]) -> bytes:
    try:
        return encoded((function(), log, None), msgspec.msgpack.encode)
    except BaseException as error:  # noqa: BLE001  (whatever code of the model raises)
        failure = (error_record(error), one_line(error), sorted(type_names(error)))
        return encoded((None, log, failure), msgspec.msgpack.encode)


def flush() -> None:
    """Write what Python holds back, so that no fork writes it again."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def renew_thread_pool() -> None:
    """Let torch replace the thread pool of its parent while this process has one thread.

    A fork does so when a thread count is set for the first time (`caffe2::pthreadpool`). Autograd
    sets one in each of its threads at once, one thread for each CUDA device: one may find no pool,
    and aborts the process ("Invalid thread pool!", torch 2.15).
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _read(read: int, pid: int, limit: float | None, idle: float | None) -> bytearray:
    """Return what the fork writes until its end. Raises ForkEndedError for a limit."""
    poll = select.poll()
    poll.register(read, select.POLLIN)
    data, ended = bytearray(), False  # not bytes, which are copied whole for each part
    used, began = -1.0, time.monotonic()
    since = began
    wait = 1000 * min(_POLL_SECONDS, limit or _POLL_SECONDS)
    while True:
        if poll.poll(0 if ended else wait):
            received = os.read(read, 1 << 20)
            if not received:
                return data
            data += received
            continue
        if ended:
            return data  # a process that the fork has started may still hold the pipe
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        now = time.monotonic()
        if limit is not None and now - began > limit:
            raise ForkEndedError(f"it did not end within {limit:.0f} s", late=True)
        if idle is None:
            continue
        if (spent := _cpu_seconds(pid)) != used:
            used, since = spent, now
        elif now - since > idle:
            raise ForkEndedError(f"a fork of it did nothing for {idle:.0f} s", late=True)


def _cpu_seconds(group: int) -> float:
    """Return the CPU time of the processes of a group; the time of day where that is hidden."""
    ticks = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks.append(int(fields[11]) + int(fields[12]))
    return sum(ticks) / os.sysconf("SC_CLK_TCK") if ticks else time.monotonic()


def _reap(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the caller ignores SIGCHLD
        return 1


def _end_like(code: int) -> NoReturn:
    """End this process as a fork ended; one that ended with 0 has no value, and so has failed."""
    if code < 0:
        faulthandler.disable()  # the fork has written its stack
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code or 1)
