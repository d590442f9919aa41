"""Whether the agent is ready: checked over SSH, by which Jenkins connects to it."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import Any

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from compilewatch.errors import TrainiumUnavailableError
from compilewatch.records import Record

CONNECT_SECONDS = 10.0
COMMAND_SECONDS = 60.0


class Agent(Record, frozen=True, kw_only=True):
    """The address of the agent's SSH server, and a shell command that must succeed, if any."""

    instance: str
    host: str
    port: int
    command: str = ""

    def problem(self) -> str:
        """Return why the agent is not ready, in a few words; empty if it is."""
        return self._no_banner() or self._command_fails()

    def wait(self, seconds: float, poll_seconds: float) -> None:
        """Wait until the agent is ready. Raises TrainiumUnavailableError after `seconds`."""
        problem = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(seconds),
            wait=wait_fixed(poll_seconds),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )(self.problem)
        if problem:
            raise TrainiumUnavailableError(
                f"{self.instance} runs, but its agent did not respond on {self.host}:{self.port} "
                f"within {seconds:g} s: {problem}; check that its security group admits this "
                "machine, and check trainium.host"
            )

    def _no_banner(self) -> str:
        # An SSH server sends first (RFC 4253, 4.2), so an open port alone is not sufficient.
        try:
            with socket.create_connection((self.host, self.port), CONNECT_SECONDS) as connection:
                said = connection.recv(4)
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return "" if said == b"SSH-" else "not an SSH server"

    def _command_fails(self) -> str:
        if not self.command:
            return ""
        variables: dict[str, Any] = {
            "TRAINIUM_HOST": self.host,
            "TRAINIUM_PORT": str(self.port),
            "TRAINIUM_INSTANCE": self.instance,
        }
        try:
            done = subprocess.run(
                ["sh", "-c", self.command],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"trainium_ready_command took more than {COMMAND_SECONDS:g} s"
        if done.returncode == 0:
            return ""
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return f"trainium_ready_command ended with {done.returncode}: {said}"
