"""The executor's client: submits jobs, follows them and fetches what they left behind."""

import hashlib
import math
import os
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from compilewatch.config import Settings
from compilewatch.errors import ExecutorError, ExecutorUnavailableError
from compilewatch.extras.executor import protocol
from compilewatch.extras.executor.protocol import PROTOCOL_VERSION
from compilewatch.files import write_atomically
from compilewatch.retry import TransientError, retrying

T = TypeVar("T")

POLL_SECONDS = (0.2, 5.0)
"""The shortest and the longest wait between two questions for the state of a job."""

HEALTH = "/health"
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class ExecutorClient:
    """Calls one executor; safe to use from several threads.

    Each call is repeated with growing waits while the service cannot be reached or is overloaded:
    all calls can be repeated without harm. Raises ExecutorUnavailableError (exit status 1) when
    that takes longer than `retry_seconds`, and ExecutorError (exit status 2) for a rejected call or
    for another service at the endpoint.

    Args:
        endpoint: `http://host:port` or `https://…` (usually the variable TRAINIUM_ENDPOINT).
        token: the bearer token; empty: none is sent.
        certificates: a file of certificates to trust; None: those of the system.
    """

    def __init__(
        self,
        endpoint: str,
        token: str = "",
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 60.0,
        certificates: Path | None = None,
    ) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ExecutorError(
                f"{endpoint!r} is not the address of an executor: set TRAINIUM_ENDPOINT or "
                "--endpoint to http://HOST:PORT"
            )
        self.endpoint = endpoint.rstrip("/")
        self._retry_seconds = retry_seconds
        self._authorization = {"Authorization": f"Bearer {token}"} if token else {}
        self._checked = False
        self._http = httpx2.Client(
            timeout=timeout_seconds,
            follow_redirects=False,
            verify=str(certificates) if certificates is not None else True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> dict[str, Any]:
        """The service's state; verifies that it is an executor of this protocol."""
        health = self._decoded(self._call("GET", HEALTH), dict[str, Any])
        if health.get("service") != protocol.SERVICE:
            raise self._foreign()
        if (version := health.get("protocol")) != PROTOCOL_VERSION:
            raise ExecutorError(
                f"{self.endpoint} speaks version {version} of the protocol, and this "
                f"compilewatch {PROTOCOL_VERSION}: install the same version on both"
            )
        self._checked = True
        return health

    def submit(self, key: str, request: protocol.JobRequest) -> protocol.JobState:
        """Store a job. Submitting the same request under the same key again changes nothing.

        Raises ExecutorError (`code` conflict) if the key belongs to a different request.
        """
        return self._state("PUT", key, msgspec.json.encode(request))

    def status(self, key: str) -> protocol.JobState:
        """The job's state. Raises ExecutorError (`code` not_found)."""
        return self._state("GET", key)

    def jobs(self) -> tuple[protocol.JobState, ...]:
        """The jobs that were submitted last, the newest first."""
        return self._decoded(self._call("GET", "/jobs"), tuple[protocol.JobState, ...])

    def parts(self, key: str, *, stream: str = "stdout", follow: bool = False) -> Iterator[bytes]:
        """Yield all parts of a log that have been written so far; `follow`: until the job ends."""
        offset, waits = "0", _waits()
        while True:
            part = self._call("GET", f"{_path(key)}/log?stream={stream}&offset={offset}")
            offset = part.headers["x-next-offset"]
            if part.content:
                waits = _waits()
                yield part.content
            if part.headers["x-ended"] == "1" or not (part.content or follow):
                return
            if not part.content:
                time.sleep(next(waits))

    def wait(self, key: str, *, timeout_seconds: float = math.inf) -> protocol.JobState:
        """Wait until the job has ended, and return its final state.

        Raises ExecutorUnavailableError if it has not ended after `timeout_seconds`.
        """
        begun, waits = time.monotonic(), _waits()
        while not (state := self.status(key)).ended:
            if time.monotonic() - begun > timeout_seconds:
                raise ExecutorUnavailableError(
                    f"job {key} is still {state.state} after {timeout_seconds:g} s: wait for it "
                    f"with compilewatch executor status {key} --wait"
                )
            time.sleep(next(waits))
        return state

    def cancel(self, key: str) -> protocol.JobState:
        """Cancel a job that has not ended; the state may still be `running` in the response."""
        return self._state("DELETE", key)

    def artifact(self, key: str, artifact: protocol.Artifact) -> bytes:
        """The content of one artifact, verified against its digest."""
        content = self._call("GET", f"{_path(key)}/artifacts/{quote(artifact.name)}").content
        if hashlib.sha256(content).hexdigest() != artifact.sha256:
            raise ExecutorError(f"{artifact.name} of job {key} arrived damaged: fetch it again")
        return content

    def fetch(self, key: str, folder: Path) -> tuple[Path, ...]:
        """Write what the job left in `/job/out` below a folder and return the paths."""
        artifacts = self.status(key).artifacts
        for artifact in artifacts:
            write_atomically(folder / artifact.name, self.artifact(key, artifact))
        return tuple(folder / artifact.name for artifact in artifacts)

    def drain(self) -> dict[str, Any]:
        """Let the service take no more jobs. Raises ExecutorError (`code` conflict) if any is left.

        After it, the instance can be stopped without harm to anybody's job.
        """
        return self._decoded(self._call("PUT", "/drain"), dict[str, Any])

    def undrain(self) -> dict[str, Any]:
        """Let a service that was drained take jobs again."""
        return self._decoded(self._call("DELETE", "/drain"), dict[str, Any])

    def _state(self, method: str, key: str, body: bytes | None = None) -> protocol.JobState:
        return self._decoded(self._call(method, _path(key), body), protocol.JobState)

    def _call(self, method: str, path: str, body: bytes | None = None) -> httpx2.Response:
        """One call, repeated while that may help. Raises ExecutorError."""
        if path != HEALTH and not self._checked:
            self.health()  # no code and no token for a service that is not an executor
        repeat = retrying(seconds=self._retry_seconds, first_wait_seconds=0.2)
        try:
            return repeat(self._attempt, method, path, body)
        except TransientError as error:
            raise ExecutorUnavailableError(
                f"the executor {self.endpoint} {error}: is it started, and its port open?"
            ) from None

    def _attempt(self, method: str, path: str, body: bytes | None) -> httpx2.Response:
        headers = dict(self._authorization) if path != HEALTH else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            url = self.endpoint + path
            response = self._http.request(method, url, content=body, headers=headers)
        except httpx2.TimeoutException:
            raise TransientError("does not respond in time") from None
        except httpx2.TransportError as error:
            if isinstance(error, httpx2.RemoteProtocolError) and not self._checked:
                raise self._foreign() from None
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ExecutorError(
                    f"{self.endpoint} has a certificate that is not trusted: name its authority "
                    "with --certificates FILE"
                ) from None
            raise TransientError(f"fails ({error})") from None
        if response.is_success:
            return response
        raise self._error_of(response)

    def _error_of(self, response: httpx2.Response) -> Exception:
        try:
            problem = msgspec.json.decode(response.content, type=protocol.Problem)
        except msgspec.MsgspecError:
            if response.status_code in _TRANSIENT:
                return TransientError(f"responds with {response.status_code}")
            return self._foreign()
        status = response.status_code
        if status == HTTPStatus.SERVICE_UNAVAILABLE:  # it is drained
            return ExecutorUnavailableError(f"{self.endpoint}: {problem.message}", status)
        if status in _TRANSIENT:
            return TransientError(f"responds: {problem.message}")
        hint = ""
        if status == HTTPStatus.UNAUTHORIZED:
            hint = ": set COMPILEWATCH_EXECUTOR_TOKEN or --token-file"
        return ExecutorError(f"{self.endpoint}: {problem.message}{hint}", status)

    def _decoded(self, response: httpx2.Response, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise self._foreign() from None

    def _foreign(self) -> ExecutorError:
        return ExecutorError(
            f"{self.endpoint} is not an executor of compilewatch: set TRAINIUM_ENDPOINT or "
            "--endpoint to the address of `compilewatch executor serve`"
        )


def _waits() -> Iterator[float]:
    """The waits between two questions for the state of a job."""
    wait, longest = POLL_SECONDS
    while True:
        yield wait
        wait = min(wait * 1.5, longest)


def _path(key: str) -> str:
    return f"/jobs/{quote(key, safe='')}"


def open_client(settings: Settings, **options: Any) -> ExecutorClient:
    """The client of the executor that the settings or TRAINIUM_ENDPOINT name.

    `options` are further arguments of `ExecutorClient`. Raises ExecutorError.
    """
    own = settings.executor
    endpoint = own.endpoint or os.environ.get("TRAINIUM_ENDPOINT", "")
    certificates = Path(own.certificates) if own.certificates else None
    return ExecutorClient(endpoint, own.secret(), certificates=certificates, **options)
