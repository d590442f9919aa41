"""A call in a fork leaves nothing behind, and its end is that of this process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from compilewatch.environments import WORKER_VARIABLES

PROGRAM = """
import os, random, signal, sys, time
from compilewatch.contract.failures import (
    RecordedError, error_code, error_record, one_line, type_names
)
from compilewatch.worker.forked import ForkEndedError, in_fork, possible

assert possible()
STATE = []

def call():
    STATE.append(1)
    random.random()
    return [len(STATE), os.getpid()]

def run(function, kind=list, **limits):
    log = ["before"]
    value = in_fork(lambda: (log.append("inside"), function())[1], kind, log, **limits)
    print(value, log)
    return value
"""


def ran(lines: str) -> subprocess.CompletedProcess[str]:
    """A program in a process with one thread, as a worker is."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM + lines],
        env=dict(WORKER_VARIABLES),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_each_call_is_the_first_one() -> None:
    done = ran(
        """
state = random.getstate()
first, second = run(call), run(call)
assert first[0] == second[0] == 1
assert len({first[1], second[1], os.getpid()}) == 3
assert STATE == [] and random.getstate() == state
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['before', 'inside']") == 2


def test_an_exception_comes_back_as_its_record() -> None:
    done = ran(
        """
class Own(ValueError):
    pass

def fail():
    raise Own("no rows\\nin detail") from KeyError("x")

try:
    run(fail)
except RecordedError as error:
    assert error_record(error).type == "Own"
    assert one_line(error) == "Own: no rows"
    assert error_code(error) == "own"
    assert {"Own", "ValueError", "KeyError"} <= type_names(error)
else:
    sys.exit(3)
"""
    )
    assert done.returncode == 0, done.stderr


def test_system_exit_is_an_exception_and_os_exit_is_the_end() -> None:
    done = ran(
        """
try:
    run(lambda: sys.exit(5))
except RecordedError as error:
    print(error_record(error).type)
run(lambda: os._exit(7))
print("not reached")
"""
    )
    assert (done.returncode, done.stdout) == (7, "SystemExit\n")


def test_a_fork_that_ends_well_without_a_value_has_failed() -> None:
    assert ran("run(lambda: os._exit(0))").returncode == 1


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "GeneratorExit", "BaseException"])
def test_whatever_a_model_raises_comes_back_with_its_message(kind: str) -> None:
    done = ran(
        f"""
def fail():
    raise {kind}("stopped at \\udc80")

try:
    run(fail)
except RecordedError as error:
    print(error_record(error).type, error_record(error).message)
"""
    )
    assert (done.returncode, done.stdout) == (0, f"{kind} stopped at \\udc80\n"), done.stderr


def test_a_value_with_a_lone_surrogate_comes_back() -> None:
    done = ran("""run(lambda: {"reason \\udc80": ["at \\udc80", b"bytes"]}, dict)""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'reason \\\\udc80': ['at \\\\udc80', b'bytes']}")


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_signal_ends_this_process_too(number: str) -> None:
    done = ran(f"run(lambda: os.kill(os.getpid(), signal.{number}))")
    assert done.returncode == -signal.Signals[number]


@pytest.mark.parametrize(
    ("end", "how"),
    [("os.abort()", "SIGABRT"), ("os._exit(7)", "exit code 7"), ("time.sleep(600)", "within 1 s")],
)
def test_with_a_limit_an_end_is_an_error(end: str, how: str) -> None:
    done = ran(
        f"""
try:
    run(lambda: {end}, limit_seconds=1)
except ForkEndedError as error:
    print(error)
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith(how)


def test_what_a_fork_has_started_does_not_delay_its_value() -> None:
    done = ran(
        """
def starts():
    return [os.getpid()] if os.fork() else time.sleep(15) or os._exit(0)

began = time.monotonic()
run(starts)
print(time.monotonic() - began)
"""
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.splitlines()[-1]) < 10


def test_the_stack_of_the_fork_is_dumped_before_that_of_its_parent() -> None:
    """The launcher sends SIGTERM to the whole group, and reads where the model was."""
    done = ran(
        """
import faulthandler
faulthandler.register(signal.SIGTERM, chain=True)
os.setsid()

def hangs():
    os.killpg(os.getpgid(0), signal.SIGTERM)
    time.sleep(30)

run(hangs)
"""
    )
    assert done.returncode == -15
    assert done.stderr.index("in hangs") < done.stderr.index("in in_fork")
    first, second = done.stderr.split("most recent call first")[1:]
    assert "in hangs" in first
    assert "in hangs" not in second


def test_no_fork_is_possible_beside_another_thread() -> None:
    done = ran(
        """
import threading
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
assert not possible()
"""
    )
    assert done.returncode == 0, done.stderr


def test_a_fork_ends_when_its_process_is_killed() -> None:
    """Nothing else would end it: its process group and its deadline go with the process."""
    lines = "run(lambda: (print(os.getpid(), flush=True), time.sleep(3600)))"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + lines], env=dict(WORKER_VARIABLES), stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        fork = int(program.stdout.readline())
        program.kill()
        try:
            assert program.communicate(timeout=20)[0] == b"", "the fork, too, has closed the pipe"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)
