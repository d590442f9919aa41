"""Models of a team that fail on purpose, to test that failures are isolated; `factories.chaos`
names one without an import of torch."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from compilewatch.records import Phase

GARBAGE_BYTES = 10 * 2**20
HUGE_CHARACTERS = 5_000_000
GRANDCHILDREN_FILE = "artifacts/grandchildren"
"""File with the pids of the remaining processes, relative to the child's working folder."""


def build(behaviour: str) -> nn.Module:
    """Return the model of a behaviour. Raises KeyError for a name that is not in `BEHAVIOURS`."""
    phase, act = BEHAVIOURS[behaviour]
    if phase is Phase.CREATE:
        act()
    return _Chaotic(behaviour)


def inputs(behaviour: str) -> dict[str, torch.Tensor]:
    """Return the inputs of a behaviour."""
    phase, act = BEHAVIOURS[behaviour]
    if phase is Phase.INPUTS:
        act()
    return {"x": torch.ones(2, 4)}


def __getattr__(name: str) -> Callable[[], object]:
    """Each behaviour as a factory and, after `inputs_of_`, as a function that makes its inputs."""
    behaviour = name.removeprefix("inputs_of_")
    if behaviour not in BEHAVIOURS:
        raise AttributeError(name)
    return partial(build if name == behaviour else inputs, behaviour)


class _Chaotic(nn.Module):
    def __init__(self, behaviour: str) -> None:
        super().__init__()
        self.behaviour = behaviour
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        phase, act = BEHAVIOURS[self.behaviour]
        self.calls += 1
        # The first call is in eager mode, so the compiler makes the second one.
        if phase is Phase.EAGER or (phase is Phase.COMPILE and self.calls > 1):
            act()
        if self.behaviour == "break":
            torch._dynamo.graph_break()
        if self.behaviour == "reads_value" and y.sum().item() > 0:
            y = y + 1
        return y * 2


def _nothing() -> None:
    return


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _ignore_terminate() -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _hang()


def _segfault() -> None:
    ctypes.string_at(0)


def _die_at_the_end() -> None:
    """Crash where this process, but no fork of it, ends by itself."""
    builder, end = os.getpid(), os._exit

    def crash(status: int) -> NoReturn:
        if os.getpid() == builder:
            _segfault()
        end(status)

    os._exit = crash


def _exit() -> NoReturn:
    sys.stderr.write("exiting without a result\n")
    os._exit(3)


def _system_exit() -> NoReturn:
    sys.exit("a model that calls sys.exit")


def _allocate() -> NoReturn:
    hoard: list[Any] = []
    while True:
        hoard.append(bytearray(os.urandom(4096)) * (2**24 // 4096))


def _garbage() -> None:
    line = b'{"type":"exited","id":0}\n\xff\xfe'
    for descriptor in (1, 2):
        data = line * (GARBAGE_BYTES // len(line))
        while data:
            data = data[os.write(descriptor, data) :]


def _kill_server() -> NoReturn:
    os.kill(os.getppid(), signal.SIGKILL)
    _hang()


def _leave_grandchildren() -> None:
    pids = []
    for detached in (False, True):
        pid = os.fork()
        if pid == 0:
            if detached:
                os.setsid()
            os.execvp("sleep", ["sleep", "86400"])
        pids.append(pid)
    Path(GRANDCHILDREN_FILE).write_text(" ".join(map(str, pids)))


def _huge_error() -> NoReturn:
    raise RuntimeError("first words " + "x" * HUGE_CHARACTERS + " last words")


BEHAVIOURS: dict[str, tuple[Phase, Callable[[], None]]] = {
    "ok": (Phase.DONE, _nothing),
    "break": (Phase.DONE, _nothing),
    "reads_value": (Phase.DONE, _nothing),
    "hang_create": (Phase.CREATE, _hang),
    "hang_inputs": (Phase.INPUTS, _hang),
    "hang_eager": (Phase.EAGER, _hang),
    "hang_compile": (Phase.COMPILE, _hang),
    "ignore_terminate": (Phase.EAGER, _ignore_terminate),
    "segfault": (Phase.EAGER, _segfault),
    "abort": (Phase.EAGER, os.abort),
    "exit": (Phase.CREATE, _exit),
    "system_exit": (Phase.CREATE, _system_exit),
    "allocate": (Phase.CREATE, _allocate),
    "garbage": (Phase.EAGER, _garbage),
    "huge_error": (Phase.EAGER, _huge_error),
    "grandchildren": (Phase.CREATE, _leave_grandchildren),
    "kill_server": (Phase.EAGER, _kill_server),
    "die_after_result": (Phase.CREATE, _die_at_the_end),
}
"""Behaviour -> the phase in which it takes effect, and its function."""
