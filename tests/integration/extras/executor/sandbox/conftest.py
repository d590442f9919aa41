"""What hostile scripts would like to reach, planted by the tests."""

import ctypes
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from compilewatch.extras.executor import sandbox


def greeting(listening: socket.socket) -> None:
    """Say `hi` to whoever connects or sends something, until the socket is shut down."""
    with suppress(OSError):
        while True:
            if listening.type == socket.SOCK_DGRAM:
                _, sender = listening.recvfrom(64)
                if sender is None:
                    return
                listening.sendto(b"hi", sender)
            else:
                with listening.accept()[0] as connection:
                    connection.sendall(b"hi")


def end(server: threading.Thread, listening: socket.socket) -> None:
    """End a server before its socket is closed: it would read from what opens its number next."""
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)
    server.join(10)
    assert not server.is_alive()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Doubles of a service, credentials, servers and canaries; all gone after the test."""
    name = f"compilewatch-test-{uuid.uuid4().hex}"
    (folder := tmp_path / "open").mkdir(mode=0o777)
    (credentials := tmp_path / "credentials").write_text("aws_secret_access_key = planted")
    command = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
    victim = subprocess.Popen(command, env={"SECRET": f"secret-{name}"})
    path = Path("/tmp") / f"{name}.sock"
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        canaries = [tcp, udp]
        for address in (f"\0{name}", str(path)):
            canaries.append(stack.enter_context(socket.socket(socket.AF_UNIX)))
            canaries[-1].bind(address)
            canaries[-1].listen()
        stack.callback(path.unlink)
        for canary in canaries:
            server = threading.Thread(target=greeting, args=(canary,), daemon=True)
            server.start()
            stack.callback(end, server, canary)
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        yield {
            "victim": victim.pid,
            "secret": f"secret-{name}",
            "credentials": str(credentials),
            "source": sandbox.__file__,
            "folder": str(folder),
            "tcp": tcp.getsockname()[1],
            "udp": udp.getsockname()[1],
            "abstract": name,
            "socket": str(path),
            "shm": name,
            "sysv": uuid.uuid4().int & 0x7FFFFFFF,
        }
        assert victim.poll() in (None, -9)


def remove_segment(key: int) -> bool:
    """Remove a segment of System V; whether there was one."""
    libc = ctypes.CDLL(None)
    identifier = libc.shmget(key, 0, 0)
    return identifier >= 0 and libc.shmctl(identifier, 0, None) == 0
