"""The way into Loki: python-logging-loki with times, batches, limits and errors.

python-logging-loki 0.3.1 posts every record by itself, without a timeout and without a retry,
stamps it with the time of sending and makes each of its tags a label. What stays is its emitter
for Loki's v1 push API (https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs)
and its handler; here are the event's own time, structured metadata, batches, limits and errors.

Loki refuses a line that is more than an hour behind the newest of its stream (half of
`max_chunk_age`), and keeps the same time, line and structured metadata in the same stream once.
So each line carries the hour it belongs to as the label `hour`, and its labels and metadata are
those that alloy/config.alloy makes of it, to the byte: no stream spans more than that hour, lines
may come in any order, by any way and any number of times, and are still there once.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import requests
from logging_loki.emitter import LokiEmitterV1

from compilewatch.errors import ConfigError
from compilewatch.events import LABELS, METADATA
from compilewatch.retry import TransientError, retrying

PUSH_PATH = "/loki/api/v1/push"
BATCH_BYTES = 400_000
"""A batch is closed beyond it, far below the 4 MB that Loki takes in one request."""
BATCH_LINES = 1000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class RefusedError(Exception):
    """Loki will not take this batch; where `always`, not any other either. One line."""

    def __init__(self, why: str, *, always: bool = False) -> None:
        super().__init__(why)
        self.always = always


class _TooLargeError(Exception):
    """Something on the way takes no request of this size."""


class LineRecord(logging.LogRecord):
    """One line of a run's log as a logging record, with what Loki files it under."""

    def __init__(self, line: str, nanoseconds: int, event: dict[str, Any]) -> None:
        level = logging.getLevelNamesMapping().get(str(event.get("level")).upper(), logging.INFO)
        super().__init__("compilewatch", level, "", 0, line, None, None)
        self.created = nanoseconds / 1e9
        self.nanoseconds = nanoseconds
        self.tags = _texts(event, LABELS)
        self.metadata = _texts(event, METADATA)


def log_record(line: bytes) -> LineRecord | None:
    """A line of `logs/<run>.jsonl`, or None where it is no event: torn, or damaged."""
    try:
        event = msgspec.json.decode(line, type=dict[str, Any])
        nanoseconds = _nanoseconds(event.pop("ts"))
        return LineRecord(line.decode(), nanoseconds, event)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line as Loki gets it: the JSON of its stream's labels, and of its entry there."""

    stream: bytes
    value: bytes


class Emitter(LokiEmitterV1):  # type: ignore[misc]
    """The library's emitter for v1, that sends many lines at once and knows why one failed.

    `limits` are seconds to connect and to wait for an answer. Not for several threads at a time.
    """

    def __init__(
        self,
        url: str,
        tags: dict[str, str] | None = None,
        auth: tuple[str, str] | None = None,
        *,
        limits: tuple[float, float] = (2.0, 5.0),
    ) -> None:
        plain, inside = _without_credentials(url)
        super().__init__(push_url(plain), tags or {"service_name": "compilewatch"}, auth or inside)
        self.limits = limits
        self.session_class = partial(_LimitedSession, self)

    def build_tags(self, record: logging.LogRecord) -> dict[str, str]:
        """The stream: few labels of few values, and the hour."""
        tags = super().build_tags(record)
        del tags[self.level_tag], tags[self.logger_tag]
        hour = datetime.fromtimestamp(_time_of(record) // 10**9, UTC).strftime("%Y-%m-%dT%H")
        return {name: str(value) for name, value in {**tags, "hour": hour}.items()}

    def build_payload(self, record: logging.LogRecord, line: str) -> dict[str, Any]:
        """With the record's own time, which the library replaces by that of sending."""
        payload: dict[str, Any] = super().build_payload(record, line)
        metadata: dict[str, str] = getattr(record, "metadata", {})
        payload["streams"][0]["values"] = [[str(_time_of(record)), line, metadata]]
        return payload

    def __call__(self, record: logging.LogRecord, line: str) -> None:
        """Send one record. Raises TransientError or RefusedError."""
        self.send([self.entry(record, line)])

    def entry(self, record: logging.LogRecord, line: str) -> Entry:
        (stream,) = self.build_payload(record, line)["streams"]
        return Entry(
            stream=msgspec.json.encode(stream["stream"], order="sorted"),
            value=msgspec.json.encode(stream["values"][0]),
        )

    def deliver(self, entries: Sequence[Entry], retry_seconds: float) -> None:
        """Send one batch, and again until it is taken or refused, or `retry_seconds` have passed.

        Raises TransientError (time is up) or RefusedError.
        """
        try:
            retrying(seconds=retry_seconds)(self.send, entries)
        except _TooLargeError:
            if len(entries) == 1:
                raise RefusedError(f"{self.where} takes no request of one line's size") from None
            half = len(entries) // 2
            self.deliver(entries[:half], retry_seconds)
            self.deliver(entries[half:], retry_seconds)

    def send(self, entries: Sequence[Entry]) -> None:
        """One attempt at one batch."""
        headers = {"Content-Type": "application/json"}
        try:
            answer = self.session.post(
                self.url, data=_body(entries), headers=headers, allow_redirects=False
            )
        except requests.exceptions.SSLError:
            why = f"{self.where}: no TLS that is trusted: check loki.url, or set REQUESTS_CA_BUNDLE"
            raise RefusedError(why, always=True) from None
        except requests.Timeout:
            raise TransientError(
                f"{self.where} gave no answer within {self.limits[1]:g} s"
            ) from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            # Not the library's text: it names the address as it was given.
            self.close()
            raise TransientError(f"{self.where} cannot be reached") from None
        except requests.RequestException as error:
            why = f"{self.where} cannot be asked ({type(error).__name__}): check loki.url"
            raise RefusedError(why, always=True) from None
        if answer.status_code != self.success_response_code:
            raise self._refusal(answer)

    @property
    def where(self) -> str:
        """The server, for messages."""
        parts = urlsplit(self.url)
        return f"Loki at {parts.scheme}://{parts.netloc}"

    def _refusal(self, answer: requests.Response) -> Exception:
        status, said = answer.status_code, self._plain(answer.text)
        if status in _TRANSIENT:
            after = answer.headers.get("Retry-After", "").strip()
            wait = float(after) if after.isdigit() else None
            return TransientError(f"{self.where} answers {status}{said}", wait)
        if status == 413:
            return _TooLargeError()
        if status in (401, 403):
            why = f"{self.where} refuses the credentials ({status}): "
            return RefusedError(why + "check loki.username and loki.password", always=True)
        if status != 400:
            why = f"{self.where} has no push API at {PUSH_PATH} ({status}): check loki.url"
            return RefusedError(why, always=True)
        if "timestamp too old" in answer.text:
            return RefusedError(
                f"{self.where} takes no lines that old (its reject_old_samples_max_age, a week "
                "unless it is set): the files of the run still have them"
            )
        if "timestamp too new" in answer.text:
            return RefusedError(
                f"{self.where} takes no lines of its future: set this machine's clock"
            )
        return RefusedError(f"{self.where} answers 400{said}")

    def _plain(self, text: str) -> str:
        """The first line of an answer, for a message; a proxy may echo what it was sent."""
        for secret in _secrets(self.auth):
            text = text.replace(secret, "***")
        line = next(iter(text.strip().splitlines()), "")[:200]
        return f": {line}" if line else ""


class _LimitedSession(requests.Session):
    """Waits no longer than its emitter says; requests itself waits for ever."""

    def __init__(self, emitter: Emitter) -> None:
        super().__init__()
        self._emitter = emitter

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs["timeout"] = self._emitter.limits
        return super().request(*args, **kwargs)


def batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Entries in order, in lists that are one request each."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        batch.append(entry)
        size += len(entry.value)
        if len(batch) >= BATCH_LINES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def push_url(url: str) -> str:
    """The address to push to, from a server's own or the whole. Raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "loki_url is no http(s) address: set it to one like http://localhost:3100"
        )
    path = parts.path.rstrip("/")
    if path.endswith("/api/prom/push"):
        raise ConfigError(f"loki_url names Loki's push API of before 2019: end it in {PUSH_PATH}")
    if not path.endswith(PUSH_PATH):
        path += PUSH_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def credentials(username: str, password: str) -> tuple[str, str] | None:
    return (username, password) if username or password else None


def _without_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """`https://user:password@host` taken apart, so that no message names them."""
    parts = urlsplit(url)
    inside, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, None
    username, _, password = inside.partition(":")
    plain = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
    return plain, (unquote(username), unquote(password))


def _secrets(auth: tuple[str, str] | None) -> tuple[str, ...]:
    if auth is None:
        return ()
    return tuple(filter(None, (base64.b64encode(":".join(auth).encode()).decode(), auth[1])))


def _body(entries: Sequence[Entry]) -> bytes:
    streams: dict[bytes, list[bytes]] = {}
    for entry in entries:
        streams.setdefault(entry.stream, []).append(entry.value)
    made = (
        b'{"stream":%b,"values":[%b]}' % (stream, b",".join(values))
        for stream, values in streams.items()
    )
    return b'{"streams":[%b]}' % b",".join(made)


def _texts(event: dict[str, Any], names: Iterable[str]) -> dict[str, str]:
    """The fields that have a value, as text, since Loki takes strings only."""
    return {name: _text(event[name]) for name in names if event.get(name) is not None}


def _text(value: object) -> str:
    """A scalar as Alloy writes it: Go's strconv.FormatFloat(value, 'f', -1, 64) for all numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{Decimal(repr(float(value))).normalize():f}"
    return str(value)


def _time_of(record: logging.LogRecord) -> int:
    """Nanoseconds since the epoch."""
    exact = getattr(record, "nanoseconds", None)
    return int(record.created * 1e9) if exact is None else int(exact)


def _nanoseconds(ts: str) -> int:
    """RFC 3339 in UTC, as events are stamped. Raises ValueError."""
    found = _TIME.fullmatch(ts)
    if found is None:
        raise ValueError(ts)
    seconds = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    return int(seconds) * 10**9 + int((found[2] or "").ljust(9, "0"))
