"""The launcher's handle on one warm server: start it, talk to it, know when it is gone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable

import msgspec

from compilewatch.contract.messages import Order, Ping, Ready, Report
from compilewatch.environments import Interpreter, worker_command, worker_variables
from compilewatch.errors import LauncherError
from compilewatch.launchers.peer import Peer
from compilewatch.records import Environment

START_SECONDS = 180.0
"""For the imports: a cold disk is slow, but a server that has not come by then never will."""

PING_SECONDS = 5.0

_reports = msgspec.json.Decoder(Report)


class ServerProcess:
    """A running server. `environment` is None until it is ready; `alive` turns False for good.

    `threads` is how many it has once it is ready: with more than one it cannot fork, and starts a
    new process for each request.

    `patience_seconds` is how long it may leave a ping unanswered before it counts as hung.
    `targets` are those it shall be warm for; with `single`, for one request only.
    """

    def __init__(
        self,
        environment: str,
        chosen: Interpreter,
        jobs: int,
        patience_seconds: float,
        targets: Iterable[str] = (),
        *,
        single: bool = False,
    ) -> None:
        self.name = environment
        self.patience_seconds = patience_seconds
        self.environment: Environment | None = None
        self.threads = 1
        self.alive = True
        self.gone_because = ""
        command = worker_command(chosen, "server", "--jobs", str(jobs))
        command += ["--environment", environment, "--device", chosen.device]
        command += ["--targets", ",".join(targets), *(["--single"] if single else [])]
        try:
            self._peer = Peer(command, worker_variables(chosen))
        except OSError as error:
            raise LauncherError(
                f"environment {environment!r}: {chosen.path} cannot be started: {error.strerror}"
            ) from None
        self._heard_at = self._started_at = time.monotonic()
        self._pinged_at: float | None = None

    def age_seconds(self) -> float:
        """How long ago it was started."""
        return time.monotonic() - self._started_at

    def send(self, order: Order) -> None:
        """Send one order; a server that is gone is noticed at the next `receive`."""
        self._peer.send(order)

    def receive(self, timeout_seconds: float) -> list[Report]:
        """What it reported, waiting at most so long for the first; sets `alive`.

        Raises LauncherError where it ended or hung before it was ready.
        """
        lines = self._peer.receive(timeout_seconds)
        if lines is None:
            self._lost("ended")
            return []
        reports = [_reports.decode(line) for line in lines]
        if reports:
            self._heard_at, self._pinged_at = time.monotonic(), None
        for report in reports:
            if isinstance(report, Ready):
                self.environment, self.threads = report.environment, report.threads
        self._check_pulse()
        return reports

    def _check_pulse(self) -> None:
        now = time.monotonic()
        if self.environment is None:
            if now - self._started_at > START_SECONDS:
                self._lost(f"was not ready after {START_SECONDS:g} s")
        elif self._pinged_at is None:
            if now - self._heard_at > min(PING_SECONDS, self.patience_seconds):
                self._pinged_at = now
                self.send(Ping())
        elif now - self._pinged_at > self.patience_seconds:
            self._lost(f"did not answer for {self.patience_seconds:g} s")

    def _lost(self, how: str) -> None:
        self.kill()
        code = self._peer.process.returncode
        end = f" by {signal.Signals(-code).name}" if code < 0 and how == "ended" else ""
        self.gone_because = f"the worker server {how}{end}"
        if self.environment is None:
            raise LauncherError(
                f"the worker of environment {self.name!r} {how} before it was ready: "
                f"{self._peer.last_words()} (try: compilewatch env check {self.name})"
            )

    def kill(self) -> None:
        """End it now; the kernel ends its children with it."""
        self.alive = False
        self._peer.kill()

    def close(self) -> None:
        """Let it end its children and go; kill it where it does not."""
        self.alive = False
        self._peer.close(self.patience_seconds)
