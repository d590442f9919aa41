"""The executor's client: submits jobs, follows them and fetches what they left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from compilewatch.executor.protocol import Artifact, Health, JobRequest, JobState, LogPart


class ExecutorClient:
    """Calls one executor; safe to use from several threads.

    Each call is repeated with growing waits while the service cannot be reached or is overloaded:
    all calls can be repeated without harm. Raises ExecutorUnavailableError (exit status 1) when
    that takes longer than `retry_seconds`, and ExecutorError (exit status 2) for a rejected call or
    for another service at the endpoint.

    Args:
        endpoint: `http://host:port` or `https://…` (usually the variable TRAINIUM_ENDPOINT).
        token: the bearer token; empty: none is sent.
    """

    def __init__(
        self,
        endpoint: str,
        token: str = "",
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 60.0,
    ) -> None:
        raise NotImplementedError

    def health(self) -> Health:
        """The service's state; verifies that it is an executor of this protocol."""
        raise NotImplementedError

    def submit(self, key: str, request: JobRequest) -> JobState:
        """Store a job. Submitting the same request under the same key again changes nothing.

        Raises ExecutorError (`code` conflict) if the key belongs to a different request.
        """
        raise NotImplementedError

    def status(self, key: str) -> JobState:
        """The job's state. Raises ExecutorError (`code` not_found)."""
        raise NotImplementedError

    def log(self, key: str, offset: int = 0, *, stream: str = "stdout") -> LogPart:
        """Part of a log, from a byte offset: stdout or stderr."""
        raise NotImplementedError

    def follow(self, key: str, *, stream: str = "stdout") -> Iterator[bytes]:
        """Yield the parts of a log as they are written, until the job has ended."""
        raise NotImplementedError

    def wait(
        self,
        key: str,
        *,
        timeout_seconds: float | None = None,
        on_change: Callable[[JobState], None] | None = None,
    ) -> JobState:
        """Wait until the job has ended, and return its final state.

        Raises ExecutorUnavailableError if it has not ended after `timeout_seconds`.
        """
        raise NotImplementedError

    def cancel(self, key: str) -> JobState:
        """Cancel a job that has not ended; the state may still be `running` in the answer."""
        raise NotImplementedError

    def artifacts(self, key: str) -> tuple[Artifact, ...]:
        """What the job left in `/job/out`."""
        raise NotImplementedError

    def artifact(self, key: str, name: str) -> bytes:
        """The content of one artifact, verified against its digest."""
        raise NotImplementedError

    def fetch(self, key: str, folder: Path) -> tuple[Path, ...]:
        """Write all artifacts below a folder and return their paths."""
        raise NotImplementedError
