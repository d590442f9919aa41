"""A child process of compilewatch that is connected by a socket."""

import contextlib
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from compilewatch.contract.messages import Lines, Ping, Ready, Report
from compilewatch.environments import Interpreter, worker_command, worker_variables
from compilewatch.errors import LauncherError, OsErrorsAs
from compilewatch.records import DeclaredDevice, Environment, Record

LOG_TAIL_BYTES = 16 * 1024


class Peer:
    """Runs `command` with `--channel FD` added, in a new session.

    Its output goes to a log. Raises OSError if it cannot be started.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self.process = subprocess.Popen(
                [*command, "--channel", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env=variables,
                start_new_session=True,  # only the launcher handles Ctrl-C in the terminal
            )
        except OSError:
            ours.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self._lines = Lines(ours)

    def fileno(self) -> int:
        return self._lines.fileno()

    def send(self, message: Record) -> None:
        """Send one message. The next `receive` reports it if the process has ended."""
        with contextlib.suppress(OSError):
            self._lines.send(message)

    def receive(self, timeout_seconds: float) -> list[bytes] | None:
        """The lines that it sent, after waiting up to the timeout; None if it has ended."""
        readable, _, _ = select.select([self._lines], [], [], timeout_seconds)
        return self._lines.receive() if readable else []

    def exit_status(self, timeout_seconds: float) -> int:
        """Its exit status, negative for a signal; it is killed if it has not ended in this time."""
        try:
            return self.process.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def last_line(self) -> str:
        """The last line that it printed (only its last 16 KiB are read)."""
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "no output"

    def kill(self) -> None:
        """Kill it and wait until it has ended."""
        self.process.kill()
        self.process.wait()
        self._lines.channel.close()

    def close(self, timeout_seconds: float) -> None:
        """Close the socket, upon which it ends; kill it if it has not ended in this time."""
        self._lines.channel.close()
        self.exit_status(timeout_seconds)
        self._log.close()


START_SECONDS = 180.0
"""The limit for the imports: a cold disk is slow, but a later start is not to be expected."""

PING_SECONDS = 5.0

ANSWER_SECONDS = 30.0
"""How long a reply to a ping may take before the server counts as hung."""

_reports = msgspec.json.Decoder(Report)


class ServerProcess(Peer):
    """A running server. `environment` is None until it is ready; `alive` never becomes True again.

    `threads` is the number of its threads once it is ready: with more than one it cannot fork, and
    starts a new process for each request.

    The server imports in advance what `targets` need; with `single`, what one request needs. Its
    children evaluate for `device` (None: the CPU), which is declared, or present if `real_device`.
    Raises LauncherError if it cannot be started.
    """

    def __init__(
        self,
        environment: str,
        chosen: Interpreter,
        jobs: int,
        targets: Iterable[str] = (),
        *,
        single: bool = False,
        device: DeclaredDevice | None = None,
        real_device: bool = False,
    ) -> None:
        self.name = environment
        self.device = device
        self.real_device = real_device
        self.environment: Environment | None = None
        self.threads = 1
        self.alive = True
        self.end_reason = ""
        command = worker_command(chosen, "server", "--jobs", str(jobs))
        command += ["--environment", environment, "--targets", ",".join(targets)]
        command += ["--single"] if single else []
        if real_device:
            # CUDA cannot be used in a fork of a process that has asked for its devices.
            command.append("--no-forks")
        elif device is not None:
            command += ["--declare", msgspec.json.encode(device).decode()]
        where = f"environment {environment!r}: {chosen.path}"
        with OsErrorsAs(LauncherError, f"{where} cannot be started"):
            super().__init__(command, worker_variables(chosen, devices=real_device))
        self._heard_at = self._started_at = time.monotonic()
        self._pinged_at: float | None = None

    def suits(self, environment: str, device: DeclaredDevice | None, real_device: bool) -> bool:
        """Whether it is alive and can evaluate requests for this environment and device."""
        asked = (environment, device, real_device)
        return self.alive and (self.name, self.device, self.real_device) == asked

    def age_seconds(self) -> float:
        """The time since its start."""
        return time.monotonic() - self._started_at

    def reports(self, timeout_seconds: float) -> list[Report]:
        """Its reports, after waiting up to the timeout for the first; updates `alive`.

        Raises LauncherError if the server ended or hung before it was ready.
        """
        lines = self.receive(timeout_seconds)
        if lines is None:
            self._lost("ended")
            return []
        reports = [_reports.decode(line) for line in lines]
        if reports:
            self._heard_at, self._pinged_at = time.monotonic(), None
        for report in reports:
            if isinstance(report, Ready):
                self.environment, self.threads = report.environment, report.threads
        now = time.monotonic()
        if self.environment is None:
            if now - self._started_at > START_SECONDS:
                self._lost(f"was not ready after {START_SECONDS:g} s")
        elif self._pinged_at is None:
            if now - self._heard_at > PING_SECONDS:
                self._pinged_at = now
                self.send(Ping())
        elif now - self._pinged_at > ANSWER_SECONDS:
            self._lost(f"did not respond for {ANSWER_SECONDS:g} s")
        return reports

    def _lost(self, how: str) -> None:
        self.kill()  # and the kernel kills its children with it
        self.alive = False
        code = self.process.returncode
        end = f" by {signal.Signals(-code).name}" if code < 0 and how == "ended" else ""
        self.end_reason = f"the worker server {how}{end}"
        if self.environment is None:
            raise LauncherError(
                f"the worker of environment {self.name!r} {how} before it was ready: "
                f"{self.last_line()} (try: compilewatch env check {self.name})"
            )

    def close(self, timeout_seconds: float = ANSWER_SECONDS) -> None:
        """Let it end its children and itself; kill it if it does not."""
        self.alive = False
        super().close(timeout_seconds)
