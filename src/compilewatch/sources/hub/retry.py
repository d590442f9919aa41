"""Retries of requests to the Hub: one bounded retry policy under huggingface_hub's client.

huggingface_hub retries by itself, but without bounds that suit a tool somebody waits for: it
sleeps as long as `Retry-After` says, five times over, and lists without any timeout
(huggingface_hub 2.4, `utils/_http.py`). So the policy sits beneath it, in the HTTP client that
`set_client_factory` lets one provide; what it gives up on, huggingface_hub does not retry.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
from huggingface_hub import set_client_factory
from huggingface_hub.utils import parse_ratelimit_headers
from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook

from compilewatch.errors import SourceError
from compilewatch.records import Record
from compilewatch.retry import TransientError, retrying

_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})


class RetryLimits(Record, frozen=True, kw_only=True):
    """Limits of one request, in seconds; waits double from `first_wait` up to `longest_wait`.

    A server that asks for a longer wait (`Retry-After`) than `longest_wait` is given up on.
    """

    attempts: int = 5
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 60.0
    timeout_seconds: float = 20.0


class HubUnavailableError(SourceError):
    """The Hub could not be reached, or refused, for longer than the limits allow."""


class _RetryingClient(httpx2.Client):
    def __init__(self, limits: RetryLimits, stopped: threading.Event) -> None:
        super().__init__(
            event_hooks={"request": [hf_request_event_hook]},
            follow_redirects=True,
            timeout=limits.timeout_seconds,
        )
        self._limits = limits
        self._stopped = stopped

    def send(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        # Calls pass timeout=None, which switches the client's own timeout off.
        request.extensions["timeout"] = httpx2.Timeout(self._limits.timeout_seconds).as_dict()
        repeated = retrying(
            attempts=self._limits.attempts,
            first_wait_seconds=self._limits.first_wait_seconds,
            longest_wait_seconds=self._limits.longest_wait_seconds,
            sleep=self._sleep,
        )
        try:
            return repeated(self._attempt, request, **kwargs)
        except TransientError as exc:
            raise HubUnavailableError(f"{request.url.host}: {exc}") from exc

    def _sleep(self, seconds: float) -> None:
        # Ends early where the whole pull is given up.
        self._stopped.wait(seconds)

    def _attempt(self, request: httpx2.Request, **kwargs: Any) -> httpx2.Response:
        if self._stopped.is_set():
            raise HubUnavailableError(f"{request.url.host}: given up")
        try:
            response = super().send(request, **kwargs)
        except httpx2.TimeoutException as exc:
            limit = self._limits.timeout_seconds
            raise TransientError(f"no answer within {limit:g} s") from exc
        except httpx2.TransportError as exc:
            raise TransientError(f"cannot be reached ({exc})") from exc
        if response.status_code not in _TRANSIENT_STATUS:
            return response
        response.close()
        raise self._refusal(response)

    def _refusal(self, response: httpx2.Response) -> Exception:
        if response.status_code != 429:
            return TransientError(f"answers {response.status_code} {response.reason_phrase}")
        wait = _asked_wait(response)
        if wait is not None and wait > self._limits.longest_wait_seconds:
            self._stopped.set()
            return HubUnavailableError(
                f"{response.request.url.host}: rate limit reached, it asks to wait {wait:g} s; "
                "a token (HF_TOKEN) has a higher limit"
            )
        return TransientError("rate limit reached; a token (HF_TOKEN) has a higher limit", wait)


def _asked_wait(response: httpx2.Response) -> float | None:
    """Seconds to wait that a 429 asks for; an HTTP date is not understood, as in the client."""
    limits = parse_ratelimit_headers(response.headers)
    if limits is not None and limits.remaining == 0:
        return float(limits.reset_in_seconds)
    after = response.headers.get("Retry-After", "").strip()
    return float(after) if after.isdigit() else None


@contextmanager
def retrying_client(limits: RetryLimits, stopped: threading.Event) -> Iterator[None]:
    """Within it, all of huggingface_hub's requests keep to `limits`.

    Once `stopped` is set no further request is made and waits end; a rate limit that outlasts
    them sets it.
    """
    set_client_factory(lambda: _RetryingClient(limits, stopped))
    try:
        yield
    finally:
        set_client_factory(default_client_factory)
