"""Runs a step of a target in its own process, forked from this one.

What a step does to its process (a device client with threads, a flag that a failure leaves set)
ends with the process, and a step that crashes does not affect the results of others.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

from compilewatch.contract.failures import error_code, one_line
from compilewatch.contract.messages import encoded
from compilewatch.records import ErrorRecord, Phase, Record
from compilewatch.worker.forked import fork
from compilewatch.worker.targets.dynamo.failures import Codes, compiler_failure

StepResult = TypeVar("StepResult", bound=msgspec.Struct)
Enter = Callable[[Phase], None]

OUT_OF_MEMORY = "out_of_memory"
_EXIT_SECONDS = 10.0


class _Entered(Record, frozen=True, kw_only=True, tag="entered"):
    phase: Phase


class _Finished(Record, frozen=True, kw_only=True, tag="finished"):
    value: msgspec.Raw


class _Failed(Record, frozen=True, kw_only=True, tag="failed"):
    """`error` is None if memory ran out, which says nothing about the model."""

    line: str
    error: ErrorRecord | None = None


_LastWord = _Finished | _Failed
_Message = _Entered | _LastWord


class StepFailedError(Exception):
    """The step raised an exception: its record, and the exception in one line as the message."""

    def __init__(self, line: str, record: ErrorRecord) -> None:
        super().__init__(line)
        self.record = record


class StepDiedError(Exception):
    """The step's process ended by a signal (negative `code`) or without a result."""

    def __init__(self, code: int) -> None:
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        super().__init__(f"its process ended by {name}")
        self.code = code


class StepTimeoutError(Exception):
    """The step exceeded its time limit and was killed."""


def isolated(
    step: Callable[[Enter], StepResult],
    kind: type[StepResult],
    enter: Enter,
    codes: Codes,
    limit_seconds: float | None = None,
) -> StepResult:
    """Run `step` in a fork and return its result, a struct of type `kind`.

    The step announces phases through its argument; `enter` is called with them in this process.
    `codes` are those of `compiler_failure`. Raises MemoryError if memory ran out in the step, and
    the three errors above.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = fork()
    if pid == 0:
        os.close(reading)
        _live(step, writing, codes)
    os.close(writing)
    try:
        message = _listen(reading, enter, limit_seconds)
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise StepTimeoutError(f"it did not end within {limit_seconds:.0f} s") from None
    finally:
        os.close(reading)
    code = _reap(pid, message is not None)
    if message is None:
        raise StepDiedError(code)
    if isinstance(message, _Finished):
        return msgspec.json.decode(message.value, type=kind)
    if message.error is None:
        raise MemoryError(message.line)
    raise StepFailedError(message.line, message.error)


def die_alike(error: StepDiedError) -> NoReturn:
    """End this process in the same way as the step's, so that the launcher reports it."""
    if error.code < 0:
        if -error.code != signal.SIGKILL:
            signal.signal(-error.code, signal.SIG_DFL)
        os.kill(os.getpid(), -error.code)
    os._exit(error.code if error.code > 0 else 70)


def _live(step: Callable[[Enter], Any], writing: int, codes: Codes) -> NoReturn:
    """In the fork: run the step, send its result, and exit without any tear-down."""

    def send(message: _Message) -> None:
        data = encoded(message) + b"\n"
        while data:
            data = data[os.write(writing, data) :]

    try:
        value = step(lambda phase: send(_Entered(phase=phase)))
        send(_Finished(value=msgspec.Raw(encoded(value))))
    except BaseException as error:  # noqa: BLE001  (the edge to the compiler)
        traceback.print_exc()
        send(_failed(error, codes))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _failed(error: BaseException, codes: Codes) -> _Failed:
    if error_code(error) == OUT_OF_MEMORY:
        return _Failed(line=one_line(error))
    try:
        record = compiler_failure(error, codes)
        return _Failed(line=one_line(error), error=record if record.code != OUT_OF_MEMORY else None)
    except Exception as cause:  # noqa: BLE001  (`compiler_failure` raises a cause that ran out)
        return _Failed(line=one_line(cause))


def _listen(reading: int, enter: Enter, limit_seconds: float | None) -> _LastWord | None:
    """Return the step's last message, None without one. Raises TimeoutError."""
    end = None if limit_seconds is None else time.monotonic() + limit_seconds
    rest = b""
    while True:
        left = None if end is None else end - time.monotonic()
        if left is not None and (left <= 0 or not select.select([reading], [], [], left)[0]):
            raise TimeoutError
        data = os.read(reading, 1 << 16)
        if not data:
            return None
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            message: _Message = msgspec.json.decode(line, type=_Message)
            if not isinstance(message, _Entered):
                return message
            enter(message.phase)


def _reap(pid: int, finished: bool) -> int:
    """Return the exit status, negative for a signal; kill a process that does not exit."""
    end = time.monotonic() + _EXIT_SECONDS
    while finished and time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    if finished:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
