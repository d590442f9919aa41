"""Retries of requests to the Hub: one bounded retry policy below huggingface_hub's client.

huggingface_hub retries by itself, but without limits that suit an interactive tool: it waits as
long as `Retry-After` says, five times, and lists models without a timeout (huggingface_hub 2.4,
`utils/_http.py`). The policy is therefore in the HTTP client below it, which `set_client_factory`
allows us to provide; huggingface_hub does not retry the errors that the policy raises.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils import parse_ratelimit_headers
from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook
from tenacity import RetryCallState

from compilewatch.errors import SourceError
from compilewatch.records import Record
from compilewatch.retry import TransientError, retrying, within

Notice = Callable[[str], None]
"""Told, in one line, each time that a request failed and is made again."""

_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class RetryLimits(Record, frozen=True, kw_only=True):
    """Limits of one request, in seconds; waits double from `first_wait` up to `longest_wait`.

    `timeout_seconds` limits each wait for the server, and `deadline_seconds` the request, without
    the body of a download. If a server demands a longer wait (`Retry-After`) than `longest_wait`,
    the request fails.
    """

    attempts: int = 5
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 60.0
    timeout_seconds: float = 20.0
    deadline_seconds: float = 120.0


class HubUnavailableError(SourceError):
    """The Hub was unreachable, or rejected requests, for longer than the limits allow."""


class _RetryingClient(httpx2.Client):
    def __init__(self, limits: RetryLimits, stopped: threading.Event, notice: Notice) -> None:
        super().__init__(
            event_hooks={"request": [hf_request_event_hook]},
            follow_redirects=True,
            timeout=limits.timeout_seconds,
        )
        self._limits = limits
        self._stopped = stopped
        self._notice = notice
        # huggingface_hub sends several requests for one call; they share the attempts.
        self._unreachable: dict[str, str] = {}

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        # Callers pass timeout=None, which would disable the client's own timeout.
        request.extensions["timeout"] = httpx2.Timeout(self._limits.timeout_seconds).as_dict()
        repeated = retrying(
            attempts=self._limits.attempts,
            first_wait_seconds=self._limits.first_wait_seconds,
            longest_wait_seconds=self._limits.longest_wait_seconds,
            sleep=self._sleep,
        ).copy(before_sleep=lambda state: self._tell(request.url.host, state))
        try:
            return repeated(self._attempt, request, **kwargs)
        except TransientError as exc:
            message = f"{request.url.host}: {exc}"
            if isinstance(exc.__cause__, httpx2.ConnectError):
                self._unreachable[request.url.host] = message
            raise HubUnavailableError(message) from exc

    def _tell(self, host: str, state: RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome else None
        last = self._limits.attempts
        self._notice(f"{host}: {failure}; attempt {state.attempt_number + 1} of {last}")

    def _sleep(self, seconds: float) -> None:
        # Ends early if the pull is stopped.
        self._stopped.wait(seconds)

    def _attempt(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        if self._stopped.is_set():
            raise HubUnavailableError(f"{request.url.host}: given up")
        if (message := self._unreachable.get(request.url.host)) is not None:
            raise HubUnavailableError(message)
        try:
            response = within(self._limits.deadline_seconds, super().send, request, **kwargs)
        except TimeoutError as exc:
            raise TransientError(str(exc)) from exc
        except httpx2.TimeoutException as exc:
            limit = self._limits.timeout_seconds
            raise TransientError(f"no response within {limit:g} s") from exc
        except httpx2.TransportError as exc:
            raise TransientError(f"cannot be reached ({exc})") from exc
        if response.status_code not in _TRANSIENT_STATUS:
            return response
        response.close()
        raise self._error_of(response)

    def _error_of(self, response: httpx2.Response) -> Exception:
        if response.status_code != 429:
            return TransientError(f"responds {response.status_code} {response.reason_phrase}")
        wait = _retry_after(response)
        if wait is not None and wait > self._limits.longest_wait_seconds:
            self._stopped.set()
            return HubUnavailableError(
                f"{response.request.url.host}: rate limit reached, wait {wait:g} s; "
                "a token (HF_TOKEN) has a higher limit"
            )
        return TransientError("rate limit reached; a token (HF_TOKEN) has a higher limit", wait)


def _retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of `Retry-After`; an HTTP date is ignored, as in huggingface_hub."""
    limits = parse_ratelimit_headers(response.headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    after = response.headers.get("Retry-After", "").strip()
    return float(after) if after.isdigit() else None


@contextmanager
def retrying_client(
    limits: RetryLimits, stopped: threading.Event, notice: Notice = lambda _: None
) -> Iterator[None]:
    """While entered, all requests of huggingface_hub obey `limits`; `notice` receives retries.

    Once `stopped` is set, no further request is sent and waits end. A rate limit that exceeds the
    limits sets it.
    """
    set_client_factory(lambda: _RetryingClient(limits, stopped, notice))
    try:
        yield
    finally:
        set_client_factory(default_client_factory)
