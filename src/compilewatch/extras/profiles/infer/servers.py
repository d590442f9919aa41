"""The profiling servers: one for each environment, which the parent starts and asks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Self, TypeVar

import msgspec

from compilewatch.contract.targets import CPU, default_environment
from compilewatch.environments import Environments, module_command, worker_variables
from compilewatch.errors import LauncherError
from compilewatch.extras.profiles.infer.messages import Order, StepReply
from compilewatch.extras.profiles.infer.records import EAGER, ProfileFailure, target_kind
from compilewatch.launchers.peer import Peer
from compilewatch.records import DEFAULT_ENVIRONMENT, Environment

START_SECONDS = 180.0
GRACE_SECONDS = 10.0
"""How much longer than the deadline of an order its reply may take, before the server counts as
hung: it has to end a subject that takes too long."""

SEES_DEVICES = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With it, asking torch for CUDA devices leaves a process able to fork."""

_replies = msgspec.json.Decoder(StepReply)

T = TypeVar("T")


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
        interpreter = environments.interpreter(name)
        module = "compilewatch.extras.profiles.worker.server"
        command = module_command(interpreter.path, module, "--environment", name)
        command += ["--device", device, "--targets", ",".join(targets)]
        self.name = name
        variables = worker_variables(interpreter, devices=device != CPU)
        if device != CPU:
            variables |= SEES_DEVICES
        try:
            self._peer = Peer(command, variables)
        except OSError as error:
            raise LauncherError(
                f"environment {name!r}: {interpreter.path} cannot be started: {error.strerror}"
            ) from None
        try:
            self.environment = self._receive(START_SECONDS, Environment)
        except SubjectError as error:
            self._peer.close(GRACE_SECONDS)
            raise LauncherError(f"environment {name!r}: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._peer.close(GRACE_SECONDS)

    def ask(self, order: Order, kind: type[T]) -> T:
        """Send an order and return what its step returned.

        Raises SubjectError if the subject could not carry it out, and LauncherError if the server
        itself has ended or hangs.
        """
        self._peer.send(order)
        return self._receive(order.deadline_seconds + GRACE_SECONDS, kind)

    def _receive(self, seconds: float, kind: type[T]) -> T:
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
        if reply.failure is not None:
            raise SubjectError(reply.failure)
        return msgspec.json.decode(reply.value, type=kind)

    def _lost(self, how: str) -> LauncherError:
        last = self._peer.last_line()
        self._peer.kill()
        return LauncherError(
            f"the profiling server of environment {self.name!r} {how}: {last} "
            f"(try: compilewatch env check {self.name})"
        )


def environment_of(target: str) -> str:
    """The environment in which a target is profiled: the one that it names, or its default."""
    kind, _, named = target.partition("@")
    return named or (DEFAULT_ENVIRONMENT if kind == EAGER else default_environment(kind))


class Profilers(ExitStack):
    """The profiling servers of some targets, one for each environment. A context manager."""

    def __init__(
        self, targets: Sequence[str], environments: Environments, device: str = CPU
    ) -> None:
        super().__init__()
        self._of: dict[str, ProfileServerClient] = {}
        try:
            for name in dict.fromkeys(map(environment_of, targets)):
                kinds = [target_kind(t) for t in targets if environment_of(t) == name]
                compiled = [kind for kind in kinds if kind != EAGER]
                server = ProfileServerClient(name, compiled, environments, device)
                self._of[name] = self.enter_context(server)
        except BaseException:
            self.close()
            raise

    def of(self, target: str) -> ProfileServerClient:
        return self._of[environment_of(target)]
