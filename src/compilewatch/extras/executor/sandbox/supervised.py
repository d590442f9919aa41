"""The handle on one sandbox: started, awaited and cancelled from any thread."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from compilewatch.errors import SandboxError
from compilewatch.extras.executor.sandbox import memory
from compilewatch.extras.executor.sandbox.frames import receive_frame, send_frame
from compilewatch.extras.executor.sandbox.policy import SandboxResult, SandboxSpec

_PACKAGES = str(Path(__file__).parents[4])
_START = (
    f"import sys; sys.path.insert(0, {_PACKAGES!r}); "
    "from compilewatch.extras.executor.sandbox.supervisor import main; main()"
)


class Supervised:
    """One run that has been started. It ends with this process, or when it is cancelled."""

    def __init__(self, run: SandboxSpec) -> None:
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,  # Ctrl-C in the terminal is for the caller
            )
        except OSError as error:
            raise SandboxError(f"a sandbox cannot be started: {error.strerror}") from None
        assert self._process.stdin is not None
        self._cancelled = threading.Lock()
        with contextlib.suppress(BrokenPipeError):  # `wait` says why
            send_frame(self._process.stdin, msgspec.msgpack.encode(run))

    def cancel(self) -> None:
        """End the run; `wait` returns its result. A run that has ended is not changed."""
        with self._cancelled:
            assert self._process.stdin is not None
            if not self._process.stdin.closed:
                self._process.stdin.close()

    def wait(self) -> SandboxResult:
        """Wait for the end. Raises SandboxError if the supervisor itself failed."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        try:
            result = msgspec.msgpack.decode(receive_frame(self._process.stdout), type=SandboxResult)
        except (EOFError, msgspec.MsgspecError):
            self._process.kill()
            self._process.wait()
            memory.clean_up()
            lines = self._process.stderr.read().decode(errors="replace").strip().splitlines()
            raise SandboxError(
                f"the supervisor of a sandbox ended early: {lines[-1] if lines else 'no message'}"
            ) from None
        finally:
            self.cancel()
            self._process.wait()
            self._process.stdout.close()
            self._process.stderr.close()
        return result
