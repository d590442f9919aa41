"""A server that answers no request as it should: in four ways, each on a port of its own.

A fault is a function that gets an accepted connection; whatever it sends, the connection is closed
after it.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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


Fault = Callable[[Connection], None]


def silence(connection: Connection) -> None:
    connection.over.wait()


def half_a_response(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 1000\r\n\r\nhalf of")


def redirects(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"HTTP/1.1 302 Found\r\nLocation: /metrics\r\nContent-Length: 0\r\n\r\n")


def garbage(connection: Connection) -> None:
    connection.read_request()
    connection.send(b"\x00\xff\x16\x03 this is not HTTP\r\n\r\n")


FAULTS: tuple[Fault, ...] = (silence, half_a_response, redirects, garbage)


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
