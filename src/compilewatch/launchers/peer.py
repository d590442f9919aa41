"""A process of ours at the other end of a socket: started, talked to, ended."""

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
    """Runs `command` with `--channel FD` added, in a session of its own.

    What it prints goes into a log. Raises OSError where it cannot be started.
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
                start_new_session=True,  # Ctrl-C in the terminal is the launcher's to handle
            )
        except OSError:
            ours.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self._lines = Lines(ours)

    def send(self, message: Record) -> None:
        """Send one message; that it is gone is noticed at the next `receive`."""
        with contextlib.suppress(OSError):
            self._lines.send(message)

    def receive(self, timeout_seconds: float) -> list[bytes] | None:
        """The lines it sent, waiting at most so long for the first; None when it is gone."""
        readable, _, _ = select.select([self._lines], [], [], timeout_seconds)
        return self._lines.receive() if readable else []

    def exit_status(self, patience_seconds: float) -> int:
        """How it ended, negative by a signal; killed where it has not within this time."""
        try:
            return self.process.wait(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def last_words(self) -> str:
        """The last line it printed, of its last 16 KiB."""
        size = self._log.seek(0, 2)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it printed nothing"

    def kill(self) -> None:
        """End it now."""
        self.process.kill()
        self.process.wait()
        self._lines.channel.close()

    def close(self, patience_seconds: float) -> None:
        """Close the socket, by which it knows to go; kill it where it does not in this time."""
        self._lines.channel.close()
        self.exit_status(patience_seconds)
        self._log.close()
