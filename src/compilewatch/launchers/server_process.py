"""The launcher's handle on one warm server: start it, talk to it, know when it is gone."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable

import msgspec

from compilewatch.environments import Interpreter, worker_command, worker_variables
from compilewatch.errors import LauncherError
from compilewatch.records import Environment
from compilewatch.worker.protocol import Lines, Order, Ping, Ready, Report

START_SECONDS = 180.0
"""For the imports: a cold disk is slow, but a server that has not come by then never will."""

PING_SECONDS = 5.0
LOG_TAIL_BYTES = 16 * 1024

_reports = msgspec.json.Decoder(Report)


class ServerProcess:
    """A running server. `environment` is None until it is ready; `alive` turns False for good.

    `patience_seconds` is how long it may leave a ping unanswered before it counts as hung.
    `targets` are those it shall be warm for.
    """

    def __init__(
        self,
        environment: str,
        chosen: Interpreter,
        jobs: int,
        patience_seconds: float,
        targets: Iterable[str] = (),
    ) -> None:
        self.name = environment
        self.patience_seconds = patience_seconds
        self.environment: Environment | None = None
        self.alive = True
        self.gone_because = ""
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the server)
        command = worker_command(chosen, "server")
        command += ["--channel", str(theirs.fileno()), "--jobs", str(jobs)]
        command += ["--environment", environment, "--device", chosen.device]
        command += ["--targets", ",".join(targets)]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env=worker_variables(chosen),
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's to handle
            )
        except OSError as error:
            ours.close()
            raise LauncherError(
                f"environment {environment!r}: {chosen.path} cannot be started: {error.strerror}"
            ) from None
        finally:
            theirs.close()
        self._lines = Lines(ours)
        self._heard_at = self._started_at = time.monotonic()
        self._pinged_at: float | None = None

    def send(self, order: Order) -> None:
        """Send one order; a server that is gone is noticed at the next `receive`."""
        with contextlib.suppress(OSError):
            self._lines.send(order)

    def receive(self, timeout_seconds: float) -> list[Report]:
        """What it reported, waiting at most so long for the first; sets `alive`.

        Raises LauncherError where it ended or hung before it was ready.
        """
        readable, _, _ = select.select([self._lines], [], [], timeout_seconds)
        lines = self._lines.receive() if readable else []
        if lines is None:
            self._lost("ended")
            return []
        reports = [_reports.decode(line) for line in lines]
        if reports:
            self._heard_at, self._pinged_at = time.monotonic(), None
        for report in reports:
            if isinstance(report, Ready):
                self.environment = report.environment
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
        code = self.process.returncode
        end = f" by {signal.Signals(-code).name}" if code < 0 and how == "ended" else ""
        self.gone_because = f"the worker server {how}{end}"
        if self.environment is None:
            lines = self.log_tail().strip().splitlines() or ["it printed nothing"]
            raise LauncherError(
                f"the worker of environment {self.name!r} {how} before it was ready: "
                f"{lines[-1][:300]} (try: compilewatch doctor)"
            )

    def log_tail(self) -> str:
        """The end of what the server itself printed."""
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        return self._log.read().decode(errors="replace")

    def kill(self) -> None:
        """End it now; the kernel ends its children with it."""
        self.alive = False
        self.process.kill()
        self.process.wait()
        self._lines.channel.close()

    def close(self) -> None:
        """Let it end its children and go; kill it where it does not."""
        if self.alive:
            self._dismiss()
        self._log.close()

    def _dismiss(self) -> None:
        self.alive = False
        self._lines.channel.close()
        try:
            self.process.wait(timeout=self.patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
