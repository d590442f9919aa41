"""A call in a fork leaves nothing behind, and its end is that of this process."""

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
from compilewatch.worker.forked import ForkEndedError, in_fork, in_two_forks, possible

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


def ran(lines: str, status: int = 0) -> list[str]:
    """What a program in a process with one thread, as a worker is, prints."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + lines],
        env=dict(WORKER_VARIABLES) | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == status, done.stderr
    return [*done.stdout.splitlines(), done.stderr]


def test_each_call_is_the_first_one_and_an_exception_comes_back_as_its_record() -> None:
    """A value with a lone surrogate comes back, too, and what no handler of Exception catches."""
    *said, _ = ran(
        """
state = random.getstate()
first, second = run(call), run(call)
assert first[0] == second[0] == 1
assert len({first[1], second[1], os.getpid()}) == 3
assert STATE == [] and random.getstate() == state

class Own(ValueError):
    pass

def fail():
    raise Own("no rows\\nin detail") from KeyError("x")

def stop(error):
    raise error

try:
    run(fail)
except RecordedError as error:
    assert error_record(error).type == "Own"
    assert one_line(error) == "Own: no rows"
    assert error_code(error) == "own"
    assert {"Own", "ValueError", "KeyError"} <= type_names(error)
for kind in (KeyboardInterrupt, GeneratorExit, BaseException, SystemExit):
    try:
        run(lambda: stop(kind("stopped at \\udc80")))
    except RecordedError as error:
        print(error_record(error).type, error_record(error).message)
run(lambda: {"reason \\udc80": ["at \\udc80", b"bytes"]}, dict)
import threading
threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
assert not possible()
"""
    )
    assert sum("['before', 'inside']" in line for line in said) == 3
    kinds = ("KeyboardInterrupt", "GeneratorExit", "BaseException", "SystemExit")
    assert said[2:6] == [f"{kind} stopped at \\udc80" for kind in kinds]
    assert said[6].startswith("{'reason \\\\udc80': ['at \\\\udc80', b'bytes']}")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os._exit(7)", 7),
        ("os._exit(0)", 1),  # without a value
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.abort()", -signal.SIGABRT),
    ],
)
def test_the_end_of_a_fork_is_that_of_this_process(end: str, status: int) -> None:
    ran(f"run(lambda: {end})", status=status)


def test_two_forks_talk_and_each_learns_that_the_other_one_has_ended() -> None:
    *said, _ = ran(
        """
def asks(other):
    other.send_bytes(b"who?")
    return [os.getpid(), other.recv_bytes()]

def answers(other):
    return [other.recv_bytes(), other.send_bytes(str(os.getpid()).encode())]

(one, answer), (question, _) = in_two_forks((asks, answers), list)
assert len({one, int(answer), os.getpid()}) == 3
print(question)

def waits(other):
    try:
        other.recv_bytes()
    except EOFError:
        print("the end", flush=True)

def fails(other):
    raise KeyError("x")

for both in ((waits, fails), (fails, waits)):
    try:
        in_two_forks(both, list)
    except RecordedError as error:
        print(error_record(error).type)
"""
    )
    assert said == ["b'who?'", *("the end", "KeyError") * 2]


@pytest.mark.parametrize("order", ["waits, crashes", "crashes, waits"])
def test_the_end_of_one_of_two_forks_is_that_of_this_process(order: str) -> None:
    ran(
        f"""
def crashes(other):
    os.kill(os.getpid(), signal.SIGSEGV)

def waits(other):
    other.recv_bytes()

in_two_forks(({order}), list)
""",
        status=-signal.SIGSEGV,
    )


def test_with_a_limit_an_end_is_an_error_and_what_a_fork_has_started_delays_nothing() -> None:
    *said, _ = ran(
        """
for end in (os.abort, lambda: os._exit(7), lambda: time.sleep(600)):
    try:
        run(end, limit_seconds=1)
    except ForkEndedError as error:
        print(error)

def starts():
    if os.fork():
        return [os.getpid()]
    os.closerange(1, 3)  # what the test reads to its end
    time.sleep(15)
    os._exit(0)

began = time.monotonic()
run(starts)
print(time.monotonic() - began)
"""
    )
    for line, end in zip(said, ("SIGABRT", "exit code 7", "within 1 s"), strict=False):
        assert line.endswith(end)
    assert float(said[-1]) < 10


def test_a_backward_runs_in_each_fork_of_a_process_that_has_compiled() -> None:
    """Only torch shows it: where forks take over its thread pool, every second one aborts."""
    ran(
        """
import torch

torch.set_num_threads(2)
torch.compile(torch.nn.Linear(3, 3), backend="eager")(torch.ones(2, 3))

def step():
    torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
    return []

for _ in range(8):
    run(step)
"""
    )


def test_the_stack_of_the_fork_is_dumped_before_that_of_its_parent() -> None:
    """The launcher sends SIGTERM to the whole group, and reads where the model was."""
    *_, errors = ran(
        """
import faulthandler
faulthandler.register(signal.SIGTERM, chain=True)
os.setsid()

def hangs():
    os.killpg(os.getpgid(0), signal.SIGTERM)
    time.sleep(30)

run(hangs)
""",
        status=-signal.SIGTERM,
    )
    assert errors.index("in hangs") < errors.index("in in_fork")
    first, second = errors.split("most recent call first")[1:]
    assert "in hangs" in first
    assert "in hangs" not in second


def test_a_fork_ends_when_its_process_is_killed() -> None:
    """Nothing else would end it: its process group and its deadline go with the process."""
    lines = "run(lambda: (print(os.getpid(), flush=True), time.sleep(3600)))"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM + lines], env=dict(WORKER_VARIABLES), stdout=subprocess.PIPE
    ) as program:
        fork = int(program.stdout.readline())
        program.kill()
        try:
            assert program.communicate(timeout=20)[0] == b"", "the fork, too, has closed the pipe"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)


def test_a_value_of_a_hundred_megabytes_is_read_once() -> None:
    """Logits of a large vocabulary: copied with each part that arrives, they take over a minute."""
    assert ran("print(len(in_fork(lambda: bytes(100 << 20), bytes)))")[0] == str(100 << 20)
