"""What hostile scripts would like to reach, planted by the tests."""

import ctypes
import socketserver
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from compilewatch.extras.executor import sandbox


class Greeting(socketserver.BaseRequestHandler):
    """Says `hi` to whoever connects or sends something."""

    def handle(self) -> None:
        if isinstance(self.request, tuple):
            self.request[1].sendto(b"hi", self.client_address)
        else:
            self.request.sendall(b"hi")


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
        servers = (
            tcp := socketserver.TCPServer(("127.0.0.1", 0), Greeting),
            udp := socketserver.UDPServer(("127.0.0.1", 0), Greeting),
            socketserver.UnixStreamServer(f"\0{name}", Greeting),
            socketserver.UnixStreamServer(str(path), Greeting),
        )
        stack.callback(path.unlink)
        for server in servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        yield {
            "victim": victim.pid,
            "secret": f"secret-{name}",
            "credentials": str(credentials),
            "source": sandbox.__file__,
            "folder": str(folder),
            "tcp": tcp.server_address[1],
            "udp": udp.server_address[1],
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
