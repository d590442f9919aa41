"""A call in a copy of the caller's process, a fork, which leaves nothing in the process itself.

The caller's process may have threads, which a fork does not have: OpenMP's, those of a notebook.
The copy therefore computes with one thread, and if it waits for a lock or a thread that does not
exist in it, it is ended.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
import torch
from torch._dynamo.utils import get_compilation_metrics
from torch._subclasses.fake_tensor import FakeTensor

from compilewatch.contract.messages import encoded
from compilewatch.worker import forked

IDLE_SECONDS = 30.0
"""A copy that has used no CPU time for so long waits for something that it does not have."""

_ACCELERATORS = ("cuda", "xpu", "mtia", "hpu", "npu")
_Value = TypeVar("_Value")


class CopyIdleError(Exception):
    """The copy waited for a thread or a lock of its parent, and was ended."""


class CopyDiedError(Exception):
    """The copy ended without a value; the message says how."""


def hindrance(tensors: list[torch.Tensor]) -> str:
    """Return why this process cannot be copied for a call that uses `tensors`; "" if it can.

    A driver's state cannot be used in a fork, and macOS ends forks that use its frameworks.
    """
    if sys.platform != "linux":
        return f"{sys.platform} has no safe fork"
    real = (tensor for tensor in tensors if not isinstance(tensor, FakeTensor))
    for kind in sorted({tensor.device.type for tensor in real} - {"cpu", "meta"}):
        return f"tensors are on the device {kind}"
    for name in _ACCELERATORS:
        initialized = getattr(getattr(torch, name, None), "is_initialized", None)
        if initialized is not None and initialized():
            return f"the process uses the device {name}"
    return ""


def in_copy(function: Callable[[], _Value], kind: type[_Value]) -> _Value:
    """Call `function` in a copy of this process, and return what it returns.

    `kind` is the type of the value, which msgspec must be able to encode. Modules of torch that the
    copy imports are imported here too, so that the next copy has them. Raises OSError if there can
    be no copy, CopyIdleError, and CopyDiedError if the call ended the process or failed.
    """
    _start_autograd()
    read, write = os.pipe()
    _flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        pid = forked.fork()
    if pid == 0:
        _call(function, write)
    os.close(write)
    try:
        data = _read(read, pid)
    finally:
        os.close(read)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # also what the copy has started
        code = _reap(pid)
    if not data:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise CopyDiedError(f"the model ended its process with {name}")
    written: Any = tuple[kind, list[str]]  # type: ignore[valid-type]
    value, modules = msgspec.msgpack.decode(data, type=written)
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    result: _Value = value
    return result


def _call(function: Callable[[], object], write: int) -> NoReturn:
    code = 1
    try:
        os.setpgid(0, 0)  # Ctrl-C is for the parent, which then ends this group
        with contextlib.suppress(ValueError):  # if another thread than the main one has forked
            signal.set_wakeup_fd(-1)
        torch.set_num_threads(1)
        gc.freeze()  # a collection would copy the pages of all objects
        before = set(sys.modules)
        value = function()
        modules = [
            name
            for name in sys.modules
            if name not in before
            and name.startswith(("torch.", "sympy."))
            and not name.startswith("torch._inductor")  # which starts processes
        ]
        with os.fdopen(write, "wb") as stream:
            stream.write(encoded((value, modules), msgspec.msgpack.encode))
        code = 0
    finally:
        if code:
            sys.excepthook(*sys.exc_info())
        _flush()
        os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


@functools.cache
def _start_autograd() -> None:
    """Run a first backward before a `FakeTensorMode`, so that autograd starts no threads.

    After one, it would start a thread for each device of a guard that reports eight, and could not
    be used in a fork (see `worker.process.warmup`); then it is left to start in the copy.
    """
    was_compiled = bool(get_compilation_metrics())  # which `torch._dynamo.reset` keeps
    if not was_compiled and not torch._C._len_torch_dispatch_stack():
        with torch.inference_mode(mode=False):
            torch.ones((), device="cpu", requires_grad=True).backward()


def _read(read: int, pid: int) -> bytes:
    """Return what the copy writes. Raises CopyIdleError."""
    poll = select.poll()
    poll.register(read, select.POLLIN)
    data = b""
    used, since = -1.0, time.monotonic()
    while True:
        if poll.poll(1000):
            received = os.read(read, 1 << 20)
            if not received:
                return data
            data += received
        elif os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return data  # a process that the copy has started may still hold the pipe
        elif (now := _cpu_seconds(pid)) != used:
            used, since = now, time.monotonic()
        elif time.monotonic() - since > IDLE_SECONDS:
            raise CopyIdleError(f"a fork of it did nothing for {IDLE_SECONDS:.0f} s")


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
