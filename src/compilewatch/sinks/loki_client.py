"""A client of Loki: python-logging-loki with event times, batches, limits and errors.

python-logging-loki 0.3.1 sends every record by itself, without a timeout and without retries, with
the time of sending as its timestamp and every tag as a label. We use its emitter for Loki's v1 push
API (https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs) for labels and the
session, and add the event's own time, structured metadata, batches, limits and errors. The session
is of requests, which the library brings; a client of httpx2 would not be shorter, and would bring
its packages into an installation that publishes only.

Loki rejects a line that is more than an hour older than the newest line of its stream (half of
`max_chunk_age`), and stores lines with equal time, text and structured metadata in a stream once.
Each line therefore has the label `hour`, its hour in UTC, and its labels and metadata are equal, to
the byte, to those that alloy/config.alloy sets. No stream covers more than an hour, and lines may
arrive in any order, from either sender and any number of times, and are still stored once.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec
import requests
from logging_loki.emitter import LokiEmitterV1

from compilewatch.errors import ConfigError
from compilewatch.events import LABELS, metadata_of
from compilewatch.retry import TransientError, retrying

PUSH_PATH = "/loki/api/v1/push"
BATCH_BYTES = 400_000
"""A batch is closed beyond this size, which is far below Loki's limit of 4 MB per request."""
BATCH_LINES = 1000
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})


class LokiRejectedError(Exception):
    """Loki rejects this batch and, if `always`, every other batch. The message is one line."""

    def __init__(self, why: str, *, always: bool = False) -> None:
        super().__init__(why)
        self.always = always


class _TooLargeError(Exception):
    """A server on the way rejects requests of this size."""


class LineRecord(logging.LogRecord):
    """One line of a run's log as a logging record, with its labels and metadata in Loki."""

    def __init__(self, line: str, nanoseconds: int, event: dict[str, Any]) -> None:
        level = logging.getLevelNamesMapping().get(str(event.get("level")).upper(), logging.INFO)
        super().__init__("compilewatch", level, "", 0, line, None, None)
        self.created = nanoseconds / 1e9
        self.nanoseconds = nanoseconds
        self.tags = _texts(event, LABELS)
        self.metadata = _texts(event, metadata_of(event))


def log_record(line: bytes) -> LineRecord | None:
    """Parse a line of `logs/<run>.jsonl`; None if it is incomplete or damaged."""
    try:
        event = msgspec.json.decode(line, type=dict[str, Any])
        nanoseconds = _nanoseconds(event.pop("ts"))
        return LineRecord(line.decode(), nanoseconds, event)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class LokiEntry:
    """One line as it is sent to Loki: the JSON of its stream's labels, and of its entry."""

    stream: bytes
    value: bytes


class Emitter(LokiEmitterV1):  # type: ignore[misc]
    """The library's emitter for v1, extended to batches and to errors that say what failed.

    `limits` are the seconds to connect and to wait for a response. Not thread-safe.
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

    def build_tags(self, record: logging.LogRecord) -> dict[str, str]:
        """Return the labels of the stream: few labels with few values, and the hour."""
        tags = super().build_tags(record)
        del tags[self.level_tag], tags[self.logger_tag]
        hour = datetime.fromtimestamp(_time_of(record) // 10**9, UTC).strftime("%Y-%m-%dT%H")
        return {name: str(value) for name, value in {**tags, "hour": hour}.items()}

    def __call__(self, record: logging.LogRecord, line: str) -> None:
        """Send one record. Raises TransientError or LokiRejectedError."""
        self.send([self.entry(record, line)])

    def entry(self, record: logging.LogRecord, line: str) -> LokiEntry:
        """Use the record's own time; the library would use the time of sending."""
        value = (str(_time_of(record)), line, getattr(record, "metadata", {}))
        return LokiEntry(
            stream=msgspec.json.encode(self.build_tags(record), order="sorted"),
            value=msgspec.json.encode(value),
        )

    def deliver(self, entries: Sequence[LokiEntry], retry_seconds: float) -> None:
        """Send one batch, and retry it for `retry_seconds` unless Loki rejects it.

        Raises TransientError when the time is over, or LokiRejectedError.
        """
        try:
            retrying(seconds=retry_seconds)(self.send, entries)
        except _TooLargeError:
            if len(entries) == 1:
                raise LokiRejectedError(
                    f"{self.where} accepts no request of one line's size"
                ) from None
            half = len(entries) // 2
            self.deliver(entries[:half], retry_seconds)
            self.deliver(entries[half:], retry_seconds)

    def send(self, entries: Sequence[LokiEntry]) -> None:
        """Try once to send a batch."""
        headers = {"Content-Type": "application/json"}
        try:
            response = self.session.post(
                self.url,
                data=_body(entries),
                headers=headers,
                timeout=self.limits,  # requests has none by default
                allow_redirects=False,
            )
        except requests.exceptions.SSLError:
            why = f"{self.where}: TLS is not trusted: check loki.url, or set REQUESTS_CA_BUNDLE"
            raise LokiRejectedError(why, always=True) from None
        except requests.Timeout:
            raise TransientError(
                f"{self.where} did not respond within {self.limits[1]:g} s"
            ) from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            # The library's own text contains the complete address, and with it any credentials.
            self.close()
            raise TransientError(f"{self.where} cannot be reached") from None
        except requests.RequestException as error:
            why = f"{self.where}: the request failed ({type(error).__name__}): check loki.url"
            raise LokiRejectedError(why, always=True) from None
        if response.status_code != self.success_response_code:
            raise self._error_of(response)

    @property
    def where(self) -> str:
        """The server, as messages name it."""
        parts = urlsplit(self.url)
        return f"Loki at {parts.scheme}://{parts.netloc}"

    def _error_of(self, response: requests.Response) -> Exception:
        status, said = response.status_code, self._plain(response.text)
        if status in _TRANSIENT:
            after = response.headers.get("Retry-After", "").strip()
            wait = float(after) if after.isdigit() else None
            return TransientError(f"{self.where} responds {status}{said}", wait)
        if status == 413:
            return _TooLargeError()
        if status in (401, 403):
            why = f"{self.where} rejects the credentials ({status}): "
            return LokiRejectedError(why + "check loki.username and loki.password", always=True)
        if status != 400:
            why = f"{self.where} has no push API at {PUSH_PATH} ({status}): check loki.url"
            return LokiRejectedError(why, always=True)
        if "timestamp too old" in response.text:
            return LokiRejectedError(
                f"{self.where} rejects lines that old (its reject_old_samples_max_age, by default "
                "a week): the files of the run still contain them"
            )
        if "timestamp too new" in response.text:
            return LokiRejectedError(
                f"{self.where} rejects lines from the future: set this machine's clock"
            )
        return LokiRejectedError(f"{self.where} responds 400{said}")

    def _plain(self, text: str) -> str:
        """Return the first line of a response without credentials, which a proxy may echo."""
        for secret in _secrets(self.auth):
            text = text.replace(secret, "***")
        line = next(iter(text.strip().splitlines()), "")[:200]
        return f": {line}" if line else ""


def batches(entries: Iterable[LokiEntry]) -> Iterator[list[LokiEntry]]:
    """Yield the entries in order, in lists that are one request each."""
    batch: list[LokiEntry] = []
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
    """Return the address to push to, for the address of a server or of its push API.

    Raises ConfigError if `url` is neither.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            "loki_url is not an http(s) address: set it to one like http://localhost:3100"
        )
    path = parts.path.rstrip("/")
    if path.endswith("/api/prom/push"):
        raise ConfigError(f"loki_url is Loki's push API from before 2019: end it in {PUSH_PATH}")
    if not path.endswith(PUSH_PATH):
        path += PUSH_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def credentials(username: str, password: str) -> tuple[str, str] | None:
    return (username, password) if username or password else None


def _without_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    """Split `https://user:password@host`, so that no message contains the credentials."""
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


def _body(entries: Sequence[LokiEntry]) -> bytes:
    streams: dict[bytes, list[bytes]] = {}
    for entry in entries:
        streams.setdefault(entry.stream, []).append(entry.value)
    made = (
        b'{"stream":%b,"values":[%b]}' % (stream, b",".join(values))
        for stream, values in streams.items()
    )
    return b'{"streams":[%b]}' % b",".join(made)


def _texts(event: dict[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Return the fields that have a value, as text, because Loki only accepts strings."""
    return {name: _text(event[name]) for name in names if event.get(name) is not None}


def _text(value: object) -> str:
    """Format a scalar as Alloy does: Go's strconv.FormatFloat(value, 'f', -1, 64) for numbers."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{Decimal(repr(float(value))).normalize():f}"
    return str(value)


def _time_of(record: logging.LogRecord) -> int:
    """Return the time of a record in nanoseconds since the epoch."""
    exact = getattr(record, "nanoseconds", None)
    return int(record.created * 1e9) if exact is None else int(exact)


def _nanoseconds(ts: str) -> int:
    """Parse RFC 3339 in UTC, the format of events' times. Raises ValueError."""
    found = _TIME.fullmatch(ts)
    if found is None:
        raise ValueError(ts)
    seconds = datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    return int(seconds) * 10**9 + int((found[2] or "").ljust(9, "0"))
