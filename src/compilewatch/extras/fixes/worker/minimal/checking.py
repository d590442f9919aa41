"""Runs candidates of a reproducer, each in a fork of a process that has imported only torch.

The server is forked before a library of models is imported, so that no candidate works only
because that library has changed something (Transformers adds methods to `logging.Logger`).
"""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, NoReturn

import msgspec
import torch
import torch._dynamo

from compilewatch.records import Record
from compilewatch.worker.forked import fork
from compilewatch.worker.targets.dynamo.capture import capture, unmeasured_guards

CHECK_SECONDS = 30
"""A candidate that does not end by then is rejected."""

FILE = "reproducer.py"


class Check(Record, frozen=True, kw_only=True):
    """What a candidate did: the reasons of its graph breaks, or the error that ended it."""

    reasons: tuple[str, ...] = ()
    error: str = ""


class CheckServer:
    """Use as a context manager: the process ends with it."""

    def __enter__(self) -> CheckServer:
        warm_up()
        read_source, self._write = os.pipe()
        self._read, write_check = os.pipe()
        self._pid = fork()
        if self._pid == 0:
            os.close(self._write)
            os.close(self._read)
            with os.fdopen(read_source, "rb") as sources, os.fdopen(write_check, "wb") as checks:
                _serve(sources, checks)
        os.close(read_source)
        os.close(write_check)
        self._sources = os.fdopen(self._write, "wb")
        self._checks = os.fdopen(self._read, "rb")
        self.count = 0
        self.last = Check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):
            self._sources.close()
        self._checks.close()
        os.waitpid(self._pid, 0)

    def check(self, source: str) -> Check:
        """Run a candidate, which ends with a call of `torch.compile(…, backend="eager")`."""
        self.count += 1
        _send(self._sources, source.encode())
        self.last = msgspec.json.decode(_receive(self._checks), type=Check)
        return self.last


def warm_up() -> None:
    """Let Dynamo import what it imports when it first compiles and first breaks a graph."""

    def broken(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + x.sum().item()
        return x

    capture(lambda f: f(torch.ones(2)), broken, backend=_eager(), dynamic=None)
    torch._dynamo.reset()


def _eager() -> Any:
    return torch._dynamo.lookup_backend("eager")


def _send(stream: BinaryIO, content: bytes) -> None:
    stream.write(len(content).to_bytes(8, "big") + content)
    stream.flush()


def _receive(stream: BinaryIO) -> bytes:
    size = stream.read(8)
    if len(size) < 8:
        raise EOFError("the process that checks candidates ended")
    return stream.read(int.from_bytes(size, "big"))


def _serve(sources: BinaryIO, checks: BinaryIO) -> NoReturn:
    gc.collect()
    gc.freeze()  # no fork copies pages of what exists by now
    try:
        while True:
            source = _receive(sources).decode()
            _send(checks, _in_fork(lambda: _run(source)))  # noqa: B023  (called at once)
    except EOFError:
        os._exit(0)
    finally:
        os._exit(1)


def _in_fork(function: Callable[[], Check]) -> bytes:
    read, write = os.pipe()
    pid = fork()
    if pid == 0:
        os.close(read)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHECK_SECONDS)
        gc.disable()
        silence = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(silence, number)
        try:
            with os.fdopen(write, "wb") as stream:
                stream.write(msgspec.json.encode(function()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        written = stream.read()
    os.waitpid(pid, 0)
    return written or msgspec.json.encode(Check(error="the process ended"))


class UnusableError(Exception):
    """The candidate is no reproducer, whatever graph breaks it has."""


def _run(source: str) -> Check:
    """Run a candidate, in which `torch.compile` listens to the graph breaks."""
    reasons: list[str] = []

    original = torch.compile

    def compiled(
        function: Any = None, *, backend: str = "inductor", fullgraph: bool = False
    ) -> Any:
        if backend != "eager" or function is None:
            raise UnusableError("only a compilation with the backend eager is captured")

        def call(*args: Any, **kwargs: Any) -> None:
            _check_inputs(args)
            if fullgraph:
                try:
                    original(function, backend=backend, fullgraph=True)(*args, **kwargs)
                except torch._dynamo.exc.Unsupported as error:
                    reasons.append(str(error).partition("\n\nfrom user code:")[0])
                return
            with unmeasured_guards():
                captured = capture(
                    lambda optimized: optimized(*args, **kwargs),
                    function,
                    backend=_eager(),
                    dynamic=None,
                )
            reasons.extend(graph_break.reason for graph_break in captured.log.breaks())

        return call

    torch.compile = compiled
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.setrecursionlimit(3000)
    # Dynamo compiles no function of a file without lines.
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    try:
        exec(compile(source, FILE, "exec"), {"__name__": "__main__"})
    except BaseException as error:  # noqa: BLE001  (whatever a candidate raises)
        return Check(error=f"{type(error).__name__}: {str(error)[:300]}")
    return Check(reasons=tuple(reasons))


def _check_inputs(args: tuple[Any, ...]) -> None:
    """An empty tensor would show the graph break, but nobody calls a model with one."""
    for argument in args:
        if torch.is_tensor(argument) and argument.numel() == 0:
            raise UnusableError("an input is empty")
