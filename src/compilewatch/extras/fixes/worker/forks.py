"""Processes in which a requirement is examined: the second part of each verification's text.

Each requirement is examined in a fork, so that its model has never been called.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch

DIED: dict[str, Any] = {"raised": "the process ended"}

KILLED: dict[str, Any] = {"raised": "the process was killed, as happens where memory is short"}


class Fork:
    """A function that returns in a fork what JSON can hold; it begins when it is its turn."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.process, self.pipe, self.ended, self.killed = 0, -1, False, False
        self.said = b""

    def begin(self) -> None:
        self.pipe, write = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            if sys.platform == "linux":  # the kernel kills it when this process ends (prctl.h)
                ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
            os.close(self.pipe)
            torch.set_num_threads(1)  # before threads of autograd race for the pool of a fork
            try:
                said = json.dumps(self.function())
            except BaseException as error:  # noqa: BLE001  (the parent reports it)
                said = json.dumps({"raised": words_of(error)})
            with os.fdopen(write, "w") as stream:
                stream.write(said)
            os._exit(0)
        os.close(write)

    def read(self) -> None:
        """Take what the fork has written; at the end of its output it has ended."""
        said = os.read(self.pipe, 2**16)
        self.said += said
        if not said:
            self.end()

    def end(self) -> None:
        os.close(self.pipe)
        _, status = os.waitpid(self.process, 0)
        self.killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        self.ended = True


class Forks:
    """Runs functions in forks, so many at a time, in the order in which they were given."""

    def __init__(self, at_a_time: int) -> None:
        self.at_a_time = at_a_time
        self.forks: list[Fork] = []

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.running():
            os.kill(each.process, signal.SIGKILL)
            each.end()

    def start(self, function: Callable[[], Any]) -> Fork:
        fork = Fork(function)
        self.forks.append(fork)
        self.fill()
        return fork

    def result(self, fork: Fork) -> Any:
        """Wait for a fork, and return what its function did.

        That is `DIED` or `KILLED` if the process ended before.
        """
        while not fork.ended:
            running = {each.pipe: each for each in self.running()}
            for pipe in select.select(list(running), [], [])[0]:
                running[pipe].read()
            self.fill()
        if fork.said:
            return json.loads(fork.said)
        return KILLED if fork.killed else DIED

    def running(self) -> list[Fork]:
        return [each for each in self.forks if each.process and not each.ended]

    def fill(self) -> None:
        for each in self.forks:
            if not each.process and len(self.running()) < self.at_a_time:
                each.begin()


def untouched(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a fork; `DIED` or `KILLED` if that ends before."""
    with Forks(1) as forks:
        return forks.result(forks.start(function))


def words_of(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
