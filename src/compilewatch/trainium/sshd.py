"""Whether the agent answers: Jenkins reaches it by SSH, so that is what is tried."""

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
    """Where the agent's SSH server listens, and a command of sh that must succeed too, if any."""

    instance: str
    host: str
    port: int
    command: str = ""

    def problem(self) -> str:
        """Why it cannot be used now, in a few words; empty if it can."""
        return self._no_banner() or self._command_fails()

    def wait(self, seconds: float, poll_seconds: float) -> None:
        """Until it can be used. Raises TrainiumUnavailableError after `seconds`."""
        problem = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(seconds),
            wait=wait_fixed(poll_seconds),
            retry_error_callback=lambda state: state.outcome and state.outcome.result(),
        )(self.problem)
        if problem:
            raise TrainiumUnavailableError(
                f"{self.instance} runs, but its agent did not answer on {self.host}:{self.port} "
                f"within {seconds:g} s: {problem}; see that its security group lets this machine "
                "in, and trainium.host"
            )

    def _no_banner(self) -> str:
        # An SSH server speaks first (RFC 4253, 4.2): a port that is merely open is not enough.
        try:
            with socket.create_connection((self.host, self.port), CONNECT_SECONDS) as connection:
                said = connection.recv(4)
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return "" if said == b"SSH-" else "what listens there is no SSH server"

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
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        return f"trainium_ready_command ended with {done.returncode}: {said}"
