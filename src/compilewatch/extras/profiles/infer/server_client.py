"""The parent's handle on one profiling server: starts it, sends orders, waits for the replies."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Self, TypeVar

import msgspec

from compilewatch.contract.targets import CPU
from compilewatch.environments import Environments, module_command, worker_variables
from compilewatch.errors import LauncherError
from compilewatch.extras.profiles.infer.messages import (
    ProfileCommand,
    ProfileServerReady,
    Reply,
    SubjectFailed,
)
from compilewatch.extras.profiles.infer.records import ProfileFailure
from compilewatch.launchers.peer import Peer
from compilewatch.records import Environment, Phase, Record, Status

START_SECONDS = 180.0
GRACE_SECONDS = 10.0
"""How much longer than the deadline of an order its reply may take, before the server counts as
hung: it has to end a subject that takes too long."""

SEES_DEVICES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With it, asking torch for CUDA devices leaves a process able to fork."""

_replies = msgspec.json.Decoder(Reply)

R = TypeVar("R", bound=Record)


class SubjectError(Exception):
    """A subject did not carry out an order; `failure` says why. This is data about the model."""

    def __init__(self, failure: ProfileFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class ProfileServerClient:
    """A running profiling server of one environment. A context manager.

    `environment` is the server's own description of its environment.
    """

    def __init__(
        self, name: str, targets: Iterable[str], environments: Environments, device: str = CPU
    ) -> None:
        """Start it. Raises InterpreterError or LauncherError if that fails."""
        chosen = environments.interpreter(name)
        module = "compilewatch.extras.profiles.worker.server"
        command = module_command(chosen.path, module, "--environment", name)
        command += ["--device", device, "--targets", ",".join(targets)]
        self.name = name
        variables = worker_variables(chosen, devices=device != CPU)
        if device != CPU:
            variables |= SEES_DEVICES
        try:
            self._peer = Peer(command, variables)
        except OSError as error:
            raise LauncherError(
                f"environment {name!r}: {chosen.path} cannot be started: {error.strerror}"
            ) from None
        try:
            self.environment: Environment = self._receive(
                START_SECONDS, ProfileServerReady
            ).environment
        except SubjectError as error:
            self._peer.close(GRACE_SECONDS)
            raise LauncherError(f"environment {name!r}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close(GRACE_SECONDS)

    def ask(self, order: ProfileCommand, kind: type[R]) -> R:
        """Send an order and return its reply.

        Raises SubjectError if the subject could not carry it out, and LauncherError if the server
        itself has ended or hangs.
        """
        self._peer.send(order)
        return self._receive(order.deadline_seconds + GRACE_SECONDS, kind)

    def _receive(self, seconds: float, kind: type[R]) -> R:
        end = time.monotonic() + seconds
        while True:
            lines = self._peer.receive(max(0.0, end - time.monotonic()))
            if lines is None:
                raise self._lost("ended")
            if lines:
                break
            if time.monotonic() > end:
                raise self._lost(f"did not respond within {seconds:g} s")
        reply = _replies.decode(lines[0])
        if isinstance(reply, SubjectFailed):
            raise SubjectError(reply.failure)
        if not isinstance(reply, kind):
            failure = ProfileFailure(
                status=Status.CRASHED, phase=Phase.PROFILE, detail="sent a wrong reply"
            )
            raise SubjectError(failure)
        return reply

    def _lost(self, how: str) -> LauncherError:
        last = self._peer.last_line()
        self._peer.kill()
        return LauncherError(
            f"the profiling server of environment {self.name!r} {how}: {last} "
            f"(try: compilewatch env check {self.name})"
        )
