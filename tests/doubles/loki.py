"""A double of Loki's push API that holds senders to the real rules, and misbehaves when told to.

The rules and their words are those of a real Loki (its defaults; validation/validate.go and
ingester/stream.go): what is wrong in form refuses the whole request, what is wrong with single
entries refuses those and stores the others, and both answer 400. The same time, line and structured
metadata in the same stream are kept once.
"""

import base64
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple

from tests.serving import serving

PATH = "/loki/api/v1/push"
SECOND = 10**9
OLDEST, NEWEST, BEHIND = 7 * 86400 * SECOND, 600 * SECOND, 3600 * SECOND
LABELS = 15
METADATA_BYTES, METADATA_ENTRIES = 64 * 1024, 128
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Stream = frozenset[tuple[str, str]]


class Stored(NamedTuple):
    """One entry that was accepted."""

    nanoseconds: int
    line: str
    labels: dict[str, str]
    metadata: dict[str, str]


class WrongFormError(Exception):
    """A request that is refused whole."""


@dataclass(kw_only=True)
class Fault:
    """What to do with the next request instead of answering it properly.

    `status` is answered; without one the connection ends without a word. `store` does the work
    first, as where an answer gets lost on its way.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    store: bool = False


class LokiDouble:
    """Holds what it accepts, by stream."""

    def __init__(self, *, auth: str | None = None) -> None:
        self.url = ""
        self.auth = auth and "Basic " + base64.b64encode(auth.encode()).decode()
        self.clock: Callable[[], int] = time.time_ns
        self.faults: deque[Fault] = deque()
        self.requests: list[int] = []
        """The size of every body that came, in bytes."""
        self._streams: dict[Stream, set[tuple[int, str, Stream]]] = {}
        self._newest: dict[Stream, int] = {}
        self._lock = threading.Lock()

    def stored(self) -> list[Stored]:
        """What was accepted, by time."""
        with self._lock:
            found = [
                Stored(at, line, dict(stream), dict(metadata))
                for stream, entries in self._streams.items()
                for at, line, metadata in entries
            ]
        return sorted(found, key=lambda stored: stored[:2])

    def lines(self) -> list[str]:
        return [stored.line for stored in self.stored()]

    def push(self, body: bytes) -> list[str]:
        """Take a request's entries in; why some were not. Raises WrongFormError."""
        try:
            streams = json.loads(body)["streams"]
            given = [(s["stream"], [(*value, {})[:3] for value in s["values"]]) for s in streams]
        except (ValueError, KeyError, TypeError):
            raise WrongFormError("couldn't parse push request") from None
        for labels, values in given:
            check(labels, [(metadata, at, line) for at, line, metadata in values])
        with self._lock:
            taken = (self._take(frozenset(labels.items()), values) for labels, values in given)
            return [why for problems in taken for why in problems]

    def _take(self, labels: Stream, values: list[tuple[str, str, dict[str, str]]]) -> Iterator[str]:
        now, held = self.clock(), self._streams.setdefault(labels, set())
        for text, line, metadata in values:
            at = int(text)
            newest = self._newest.get(labels, at)
            if at < now - OLDEST:
                yield f"entry for stream '{dict(labels)}' has timestamp too old: {at}"
            elif at > now + NEWEST:
                yield f"entry for stream '{dict(labels)}' has timestamp too new: {at}"
            elif at < newest - BEHIND:
                yield f"entry too far behind, entry timestamp is: {at}"
            else:
                held.add((at, line, frozenset(metadata.items())))
                self._newest[labels] = max(newest, at)


def check(labels: Any, values: list[tuple[Any, Any, Any]]) -> None:
    """Raises WrongFormError for labels or entries that refuse the request."""
    if not 0 < len(labels) <= LABELS:
        raise WrongFormError(f"entry for stream has {len(labels)} label names; limit {LABELS}")
    for metadata, at, line in values:
        if not isinstance(at, str) or not re.fullmatch(r"\d{19}", at) or not isinstance(line, str):
            raise WrongFormError("couldn't parse push request: entry timestamp")
        size = sum(len(f"{name}{value}".encode()) for name, value in metadata.items())
        if size > METADATA_BYTES or len(metadata) > METADATA_ENTRIES:
            raise WrongFormError("stream has structured metadata too large")
    for pairs in (labels, *(metadata for metadata, _, _ in values)):
        for name, value in pairs.items():
            if not NAME.fullmatch(name) or not isinstance(value, str):
                raise WrongFormError(f"error parsing labels: {name}={value!r}")


def _handler(double: LokiDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            double.requests.append(len(body))
            if double.faults:
                self.fail(double.faults.popleft(), body)
            elif double.auth is not None and self.headers.get("Authorization") != double.auth:
                self.answer(401, "no credentials provided")
            elif self.path != PATH or self.headers.get("Content-Type") != "application/json":
                self.answer(404, "404 page not found")
            else:
                try:
                    problems = double.push(body)
                except WrongFormError as error:
                    problems = [str(error)]
                self.answer(400 if problems else 204, "\n".join(problems))

        def fail(self, fault: Fault, body: bytes) -> None:
            if fault.store:
                double.push(body)
            if fault.status is None:
                self.close_connection = True
                return
            said = fault.body.replace("{authorization}", self.headers.get("Authorization", ""))
            self.answer(fault.status, said, fault.headers)

        def answer(self, status: int, said: str, headers: dict[str, str] | None = None) -> None:
            data = said.encode()
            self.send_response(status)
            for name, value in ((headers or {}) | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    return Handler


@contextmanager
def loki(**given: Any) -> Iterator[LokiDouble]:
    """A double that runs."""
    double = LokiDouble(**given)
    with serving(_handler(double)) as double.url:
        yield double
