"""Real services of Debian's packages, each on a free loopback port with a folder of its own.

What a machine lacks is a skip that says how to get it; under CI it is a failure.
"""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.sharing import free_port

READY_SECONDS = 30.0


def program(*names: str, package: str) -> str:
    """The first of these programs that is installed."""
    for name in names:
        if found := shutil.which(name):
            return found
    advice = f"{names[0]} is missing: apt-get install --no-install-recommends {package}"
    if os.environ.get("CI"):
        pytest.fail(advice)
    pytest.skip(advice)


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running process; `url` has no slash at its end."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return bytes(answer.read())


@contextmanager
def running(
    command: list[str], port: int, log: Path, *, ready: str = "/-/ready"
) -> Iterator[Service]:
    """Start a server, wait until it answers, and kill it at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    service = Service(url=f"http://127.0.0.1:{port}", process=process, log=log)
    try:
        wait_until_ready(service, ready)
        yield service
    finally:
        process.kill()
        process.wait()


def wait_until_ready(service: Service, path: str = "/-/ready") -> None:
    """Raises AssertionError with the server's own words where it does not come up."""
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and service.process.poll() is None:
        try:
            service.get(path)
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"{service.process.args!r} did not start:\n{service.log.read_text()}")


@contextmanager
def pushgateway(folder: Path, *, port: int | None = None) -> Iterator[Service]:
    """A Pushgateway that keeps what it has in `folder`, so that it can be started again."""
    port = port or free_port()
    command = [
        program("prometheus-pushgateway", "pushgateway", package="prometheus-pushgateway"),
        f"--web.listen-address=127.0.0.1:{port}",
        f"--persistence.file={folder / 'pushgateway.store'}",
    ]
    with running(command, port, folder / "pushgateway.log") as service:
        yield service


@contextmanager
def prometheus(folder: Path, config: Path, *arguments: str) -> Iterator[Service]:
    """A Prometheus with this configuration; its data lie in `folder`."""
    port = free_port()
    command = [
        program("prometheus", package="prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        *arguments,
    ]
    with running(command, port, folder / "prometheus.log") as service:
        yield service


@contextmanager
def alertmanager(folder: Path, config: Path) -> Iterator[Service]:
    """An Alertmanager of its own, in no cluster."""
    port = free_port()
    command = [
        program("prometheus-alertmanager", "alertmanager", package="prometheus-alertmanager"),
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, port, folder / "alertmanager.log") as service:
        yield service


def query(prometheus: Service, expression: str) -> list[dict[str, Any]]:
    """The result of an instant query, as soon as it has any."""
    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until:
        found: list[dict[str, Any]] = json.loads(prometheus.get(path))["data"]["result"]
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"no data for {expression} in {READY_SECONDS} s")


def send(service: Service, method: str, path: str, body: bytes = b"") -> None:
    """A request whose answer does not matter but for its being no error."""
    request = urllib.request.Request(service.url + path, data=body or None, method=method)
    urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def hanging() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
