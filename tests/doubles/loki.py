"""A double of Loki's push API that holds senders to the real rules, and misbehaves when told to.

The rules and their words are those of a real Loki (its defaults; validation/validate.go and
ingester/stream.go): what is wrong in form refuses the whole request, what is wrong with single
entries refuses those and stores the others, and both answer 400. The same time, line and structured
metadata in the same stream are kept once. It listens on a free port of the loopback.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

PATH = "/loki/api/v1/push"
SECOND = 10**9
OLDEST = 7 * 86400 * SECOND
NEWEST = 600 * SECOND
BEHIND = 3600 * SECOND
LABELS = 15
LINE_BYTES = 256 * 1024
METADATA_BYTES = 64 * 1024
METADATA_ENTRIES = 128
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

Stream = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One entry that was accepted."""

    labels: dict[str, str]
    nanoseconds: int
    line: str
    metadata: dict[str, str]

    @property
    def event(self) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self.line))


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
    """What it holds outlives `stop` and `start`, which keep the port.

    While `hanging` is set, requests are read and never answered; `held` counts them.
    """

    def __init__(self, *, max_body_bytes: int = 4 * 2**20, auth: str | None = None) -> None:
        self.max_body_bytes = max_body_bytes
        self.auth = auth and "Basic " + base64.b64encode(auth.encode()).decode()
        self.clock: Callable[[], int] = time.time_ns
        self.faults: deque[Fault] = deque()
        self.hanging = threading.Event()
        self.held = threading.Semaphore(0)
        self.requests: list[int] = []
        """The size of every body that came, in bytes."""
        self.lost_in_the_old_form = 0
        self._released = threading.Event()
        self._streams: dict[Stream, set[tuple[int, str, Stream]]] = {}
        self._newest: dict[Stream, int] = {}
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        server.daemon_threads = True
        self._server, self._port = server, server.server_address[1]
        # At rest it looks for its end, by default, twice a second only.
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """End every connection and refuse new ones from now on."""
        assert self._server is not None
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server = None

    def hang(self) -> None:
        self._released.clear()
        self.hanging.set()

    def recover(self) -> None:
        """Drop what is hanging, unanswered, and serve again."""
        self.hanging.clear()
        self._released.set()

    def stored(self) -> list[Stored]:
        """What was accepted, by time."""
        with self._lock:
            found = [
                Stored(labels=dict(stream), nanoseconds=at, line=line, metadata=dict(metadata))
                for stream, entries in self._streams.items()
                for at, line, metadata in entries
            ]
        return sorted(found, key=lambda each: (each.nanoseconds, each.line))

    def lines(self) -> list[str]:
        return [each.line for each in self.stored()]

    def push(self, body: bytes) -> list[str]:
        """Take a request's entries in; why some were not. Raises WrongFormError."""
        try:
            payload = json.loads(body)
        except ValueError:
            raise WrongFormError("couldn't parse push request") from None
        streams = payload.get("streams")
        if not isinstance(streams, list):
            raise WrongFormError("couldn't parse push request: Value looks like object")
        if any("labels" in stream for stream in streams):
            self.lost_in_the_old_form += sum(len(s.get("entries", ())) for s in streams)
            return []
        checked = [(_labels(s.get("stream")), [_entry(v) for v in s["values"]]) for s in streams]
        with self._lock:
            return [why for labels, values in checked for why in self._take(labels, values)]

    def _take(self, labels: Stream, values: list[tuple[int, str, dict[str, str]]]) -> list[str]:
        now, held = self.clock(), self._streams.setdefault(labels, set())
        problems = []
        for at, line, metadata in values:
            newest = self._newest.get(labels, at)
            if at < now - OLDEST:
                problems.append(f"entry for stream '{dict(labels)}' has timestamp too old: {at}")
            elif at > now + NEWEST:
                problems.append(f"entry for stream '{dict(labels)}' has timestamp too new: {at}")
            elif at < newest - BEHIND:
                problems.append(f"entry too far behind, entry timestamp is: {at}")
            elif len(line.encode()) > LINE_BYTES:
                problems.append(f"max entry size '{LINE_BYTES}' bytes exceeded for stream")
            else:
                held.add((at, line, frozenset(metadata.items())))
                self._newest[labels] = max(newest, at)
        return problems


def _labels(given: Any) -> Stream:
    if not isinstance(given, dict) or not given:
        raise WrongFormError("error at least one label pair is required per stream")
    if len(given) > LABELS:
        raise WrongFormError(f"entry for stream has {len(given)} label names; limit {LABELS}")
    for name, value in given.items():
        if not NAME.fullmatch(name) or not isinstance(value, str) or len(value) > 2048:
            raise WrongFormError(f"error parsing labels: {name}={value!r}")
    return frozenset(given.items())


def _entry(given: Any) -> tuple[int, str, dict[str, str]]:
    at, line, metadata = [*given, {}][:3]
    if not isinstance(at, str) or not re.fullmatch(r"\d{19}", at) or not isinstance(line, str):
        raise WrongFormError("couldn't parse push request: entry timestamp")
    if not isinstance(metadata, dict):
        raise WrongFormError("couldn't parse push request: structured metadata")
    for name, value in metadata.items():
        if not NAME.fullmatch(name) or not isinstance(value, str):
            raise WrongFormError(f"couldn't parse push request: metadata {name}={value!r}")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
    if size > METADATA_BYTES or len(metadata) > METADATA_ENTRIES:
        raise WrongFormError("stream has structured metadata too large")
    return int(at), line, metadata


def _handler(double: LokiDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            double._connections.add(self.connection)

        def finish(self) -> None:
            double._connections.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            double.requests.append(len(body))
            if double.hanging.is_set():
                double.held.release()
                double._released.wait()
                self.close_connection = True
                return
            if double.faults:
                self.fail(double.faults.popleft(), body)
            elif double.auth is not None and self.headers.get("Authorization") != double.auth:
                self.answer(401, "no credentials provided")
            elif self.path != PATH or self.headers.get("Content-Type") != "application/json":
                self.answer(404, "404 page not found")
            elif len(body) > double.max_body_bytes:
                self.answer(413, "request body too large")
            else:
                self.take(body)

        def take(self, body: bytes) -> None:
            try:
                problems = double.push(body)
            except WrongFormError as error:
                self.answer(400, str(error))
            else:
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
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    return Handler


@contextmanager
def loki(**given: Any) -> Iterator[LokiDouble]:
    """A double that runs."""
    double = LokiDouble(**given)
    double.start()
    try:
        yield double
    finally:
        double.recover()
        if double._server is not None:
            double.stop()
