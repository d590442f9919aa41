"""A child process of compilewatch that is connected by a socket."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from compilewatch.contract.messages import Lines
from compilewatch.records import Record

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
