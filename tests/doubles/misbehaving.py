"""A server that answers no request as it should: fifteen ways, each on a port of its own.

A fault is a function that gets an accepted connection; whatever it sends, the connection is closed
after it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DRIP_SECONDS = 0.1
OK = b"HTTP/1.1 200 OK\r\n"
TYPE = b"Content-Type: text/plain\r\n"

Fault = Callable[["Connection"], None]


class Connection:
    """One accepted connection, and the end of the test, which every fault waits for."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self._sock = sock
        self.over = over

    def read_request(self) -> None:
        """Read a request with its body, so that closing the connection does not reset it."""
        self._sock.settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            while self._sock.recv(2**16):
                pass
        self._sock.settimeout(None)

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def drip(self, data: bytes) -> None:
        """Send it byte by byte, and the last byte again for ever."""
        position = 0
        while not self.over.wait(DRIP_SECONDS):
            self.send(data[position : position + 1])
            position = min(position + 1, len(data) - 1)

    def flood(self, data: bytes) -> None:
        while not self.over.is_set():
            self.send(data)

    def reset(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def silence(connection: Connection) -> None:
    connection.over.wait()


def dripping_status(connection: Connection) -> None:
    connection.drip(OK[:-2])


def dripping_headers(connection: Connection) -> None:
    connection.send(OK)
    connection.drip(b"X: a")


def dripping_body(connection: Connection) -> None:
    connection.read_request()
    connection.send(OK + TYPE + b"Content-Length: 100000\r\n\r\n")
    connection.drip(b"a")


def dripping_chunks(connection: Connection) -> None:
    connection.read_request()
    connection.send(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    while not connection.over.wait(DRIP_SECONDS):
        connection.send(b"1\r\na\r\n")


def endless_body(connection: Connection) -> None:
    connection.send(OK + TYPE + b"\r\n")
    connection.flood(b"a" * 2**16)


def endless_lines(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    connection.flood(b"no\n" * 2**14)


def endless_headers(connection: Connection) -> None:
    connection.send(OK)
    connection.flood(b"X: a\r\n" * 2**10)


def reset(connection: Connection) -> None:
    connection.reset()


def half_a_response(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000\r\n\r\nhalf of")


def wrong_status(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 6\r\n\r\nteapot")


def redirects(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n")


def garbage(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"\x00\xff\x16\x03 this is not HTTP\r\n\r\n")


def garbage_headers(connection: Connection) -> None:
    connection.read_request()
    connection.send(OK + b"Content-Length: -7\r\n: " + b"\xff" * 70_000 + b"\r\n\r\n")


FAULTS: tuple[Fault, ...] = (
    *(silence, dripping_status, dripping_headers, dripping_body, dripping_chunks),
    *(endless_body, endless_lines, endless_headers),
    *(reset, half_a_response, wrong_status, redirects, garbage, garbage_headers),
)
SLOW_TLS = "slow_tls"
"""The fifteenth: `silence` at an address with https."""


@contextmanager
def misbehaving(fault: Fault) -> Iterator[str]:
    """The address, without a scheme, of a server with a fault."""
    over = threading.Event()
    threads: list[threading.Thread] = []

    def serve(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            fault(Connection(sock, over))

    def accept() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                sock, _ = listening.accept()
                threads.append(threading.Thread(target=serve, args=(sock,), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        try:
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            for thread in (accepting, *threads):
                thread.join(5)
