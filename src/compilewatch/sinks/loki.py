"""The sink `loki`: the log of a stored run, sent to Loki's push API.

python-logging-loki 0.3.1 has the address, the session and the meaning of the answer of Loki's v1
push API (https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs). It sends every
record by itself, with the time of sending as its timestamp, and waits for ever: the event's own
time, structured metadata, batches, the deadline and errors are added here.

Loki rejects a line that is more than an hour older than the newest line of its stream (half of
`max_chunk_age`), and stores lines with equal time, text and structured metadata in a stream once.
Each line therefore has the label `hour`, its hour in UTC, and its labels and metadata are equal, to
the byte, to those that alloy/config.alloy sets. No stream covers more than an hour, and lines may
arrive in any order, from either sender and any number of times, and are still stored once.
"""

import base64
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import requests
from logging_loki.emitter import LokiEmitterV1

from compilewatch.config import Settings
from compilewatch.errors import ConfigError, OsErrorsAs, SinkError, UnreachableError
from compilewatch.events import LABELS, metadata_of
from compilewatch.records import RunView
from compilewatch.retry import TransientError, retrying
from compilewatch.store import RunFolder

PUSH_PATH = "/loki/api/v1/push"
BATCH_BYTES = 500_000
"""A batch is closed beyond this size, which is far below Loki's limit of 4 MB per request."""
BATCH_LINES = 1000
RESPONSE_BYTES = 2000
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_ADVICE = {
    "timestamp too old": "rejects lines that old (its reject_old_samples_max_age, by default a "
    "week): the files of the run still contain them",
    "timestamp too new": "rejects lines from the future: set this machine's clock",
}


class LokiSink:
    """Sends every line of `logs/<run>.jsonl`; Loki keeps a line that is sent again only once.

    Lines that Loki rejects do not prevent others from being sent. A request ends after
    `publish.timeout_seconds`. Raises SinkError if a line was rejected, and UnreachableError if Loki
    accepted no batch for `publish.retry_seconds`.
    """

    name = "loki"

    def __init__(self, settings: Settings) -> None:
        """Raises ConfigError if `loki.url` is not a valid address."""
        self._timeout = settings.publish.timeout_seconds
        self._retry = retrying(seconds=settings.publish.retry_seconds)
        self._emitter = Emitter(settings.loki.url, settings.loki.username, settings.loki.password)

    def publish(self, view: RunView, files: RunFolder) -> str:
        path = files.path(f"logs/{view.run.id}.jsonl")
        with OsErrorsAs(SinkError, f"{path} cannot be read"), path.open("rb") as file:
            return self.send(file)

    def send(self, lines: Iterable[bytes]) -> str:
        """Send events and return one line about them; see the class for what it raises."""
        sent, rejected, why, where = 0, 0, "", self._emitter.where
        try:
            for count, body in _batches(lines):
                if problem := self._retry(self._post, body):
                    rejected += count
                    why = why or f"{where} {problem}"
                else:
                    sent += count
        except TransientError as error:
            raise UnreachableError(f"{where} {error}: {sent} lines were sent") from None
        finally:
            self._emitter.close()
        if why:
            raise SinkError(f"{why} ({sent} lines were sent, of {rejected} some or all rejected)")
        return f"{where}: {sent} lines"

    def _post(self, body: bytes) -> str:
        """Send a batch once; return why Loki rejects lines of it, "" if it does not.

        Raises TransientError if another attempt may succeed, and SinkError if no batch can.
        """
        where = self._emitter.where
        try:
            response, text = self._exchange(body)
        except requests.exceptions.SSLError:
            raise SinkError(
                f"{where}: TLS is not trusted: check loki.url, or set REQUESTS_CA_BUNDLE"
            ) from None
        except requests.Timeout:
            raise TransientError(f"did not respond within {self._timeout:g} s") from None
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
            # The library's own text contains the complete address, and with it any credentials.
            self._emitter.close()
            raise TransientError("cannot be reached") from None
        except requests.RequestException as error:
            raise SinkError(
                f"{where}: the request failed ({type(error).__name__}): check loki.url"
            ) from None
        status, line = response.status_code, next(iter(text.strip().splitlines()), "")[:200]
        response_words = f"responds {status}" + (f": {line}" if line else "")
        if status == self._emitter.success_response_code:
            return ""
        if status in _TRANSIENT:
            after = response.headers.get("Retry-After", "").strip()
            raise TransientError(response_words, float(after) if after.isdigit() else None)
        if status in (401, 403):
            advice = "check loki.username and loki.password"
            raise SinkError(f"{where} rejects the credentials ({status}): {advice}")
        if status not in (400, 413):
            raise SinkError(f"{where} has no push API at {PUSH_PATH} ({status}): check loki.url")
        return next((advice for words, advice in _ADVICE.items() if words in text), response_words)

    def _exchange(self, body: bytes) -> tuple[requests.Response, str]:
        """Send a request; return the response and the beginning of its text, without secrets."""
        with self._emitter.session.post(
            self._emitter.url,
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=self._timeout,
            allow_redirects=False,
            stream=True,
        ) as response:
            text = next(response.iter_content(RESPONSE_BYTES), b"").decode(errors="replace")
        for secret in self._emitter.secrets:
            text = text.replace(secret, "***")
        return response, text


class Emitter(LokiEmitterV1):  # type: ignore[misc]
    """The library's emitter for v1, of a server or its push API."""

    def __init__(self, url: str, username: str = "", password: str = "") -> None:
        """Raises ConfigError if `url` is neither a server nor its push API."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                "loki_url is not an http(s) address: set it to one like http://localhost:3100"
            )
        path = parts.path.rstrip("/").removesuffix(PUSH_PATH)
        if not username and not password:  # the address may contain them, but no message may
            username, password = unquote(parts.username or ""), unquote(parts.password or "")
        host = parts.netloc.rpartition("@")[2]
        self.where = f"Loki at {parts.scheme}://{host}"
        basic = base64.b64encode(f"{username}:{password}".encode()).decode()
        self.secrets = (basic, password) if password else (basic,)
        super().__init__(
            parts._replace(netloc=host, path=path + PUSH_PATH).geturl(),
            auth=(username, password) if username or password else None,
        )


def stream_of(line: bytes) -> tuple[dict[str, str], list[Any]] | None:
    """Return the labels and the value of a line of a log; None if it is incomplete or damaged."""
    try:
        event = msgspec.json.decode(line, type=dict[str, Any])
        whole, _, fraction = event.pop("ts").removesuffix("Z").partition(".")
        seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
        nanoseconds = seconds * 10**9 + int(fraction.ljust(9, "0"))
        text = line.decode()
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    labels = {"service_name": "compilewatch", "hour": whole[:13], **_texts(event, LABELS)}
    return labels, [str(nanoseconds), text, _texts(event, metadata_of(event))]


def _batches(lines: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the bodies of requests, each with the number of its lines; order is kept."""
    batch: dict[bytes, list[Any]] = {}
    count, size = 0, 0
    for stream in filter(None, (stream_of(line.rstrip(b"\n")) for line in lines)):
        labels, value = stream
        batch.setdefault(msgspec.json.encode(labels, order="sorted"), []).append(value)
        count, size = count + 1, size + len(msgspec.json.encode(value))
        if count >= BATCH_LINES or size >= BATCH_BYTES:
            yield count, _body(batch)
            batch, count, size = {}, 0, 0
    if batch:
        yield count, _body(batch)


def _body(batch: dict[bytes, list[Any]]) -> bytes:
    streams = [{"stream": msgspec.Raw(labels), "values": batch[labels]} for labels in batch]
    return msgspec.json.encode({"streams": streams})


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
