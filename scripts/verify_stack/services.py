"""The services of a copy of the stack's files, on free ports, and the report on them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import requests

ROOT = Path(__file__).parents[2]
SERVICES = ("pushgateway", "alertmanager", "prometheus", "loki", "alloy", "grafana")
PORTS = (*SERVICES, "alloy_push", "alloy_grpc", "loki_grpc")
"""`alloy_push` is PORT in ALLOY_PUSH_PORT, and so on."""
READY = {"loki": "/ready", "grafana": "/api/health"}
T = TypeVar("T")


class CheckError(Exception):
    """A check failed. One line."""


@dataclass
class Report:
    """Prints each check as it ends."""

    failed: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def check(
        self, what: str, check: Callable[..., str | None], *given: Any, within: float = 0.0
    ) -> bool:
        """Run a check with what it is given, until it succeeds or so many seconds have passed.

        It returns a fact worth telling, if any. Returns whether it succeeded.
        """
        try:
            fact = until(within, partial(check, *given))
        except (CheckError, requests.RequestException) as error:
            self.failed.append(what)
            print(f"FAILED        {what}: {error}", flush=True)
            return False
        print(f"verified      {what}" + (f": {fact}" if fact else ""), flush=True)
        return True

    def not_verified(self, what: str, why: str) -> None:
        self.absent.append(what)
        print(f"not verified  {what}: {why}", flush=True)

    @property
    def status(self) -> int:
        return 1 if self.failed else 3 if self.absent else 0


def until(seconds: float, attempt: Callable[[], T]) -> T:
    """What `attempt` returns as soon as it raises no CheckError, or its last one."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except CheckError:
            if time.monotonic() >= end:
                raise
        time.sleep(1)


class Stack(ABC):
    """A copy of the stack in `folder`, with runs in `folder/outputs`."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "checkout"
        self.outputs = folder / "outputs"
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("COMPILEWATCH_")},
            **{f"{name.upper()}_PORT": str(port) for name, port in self.ports.items()},
            "COMPILEWATCH_OUTPUT_DIR": str(self.outputs),
            "STACK_DATA": str(folder / "data"),
        }
        self.outputs.mkdir()
        made = shutil.ignore_patterns("secrets", "env.secrets", "own.yml", "__pycache__")
        for part in ("alloy", "dashboards/json", "scripts", "stack"):
            shutil.copytree(ROOT / part, self.checkout / part, ignore=made)
        shutil.copy(ROOT / "compose.yaml", self.checkout)
        rules = self.checkout / "stack" / "prometheus" / "rules" / "compilewatch.yml"
        # The end of an alert is waited for.
        rules.write_text(rules.read_text().replace("keep_firing_for: 10m", "keep_firing_for: 1m"))
        # Instead of .env.example, which selects Jenkins too: scripts/smoke.sh verifies that.
        (self.checkout / ".env").write_text("COMPOSE_PROFILES=local\nALLOY_SINK=local\n")

    @property
    @abstractmethod
    def services(self) -> tuple[str, ...]:
        """Those that can run here."""

    @abstractmethod
    def up(self) -> None:
        """Start services that do not run, and wait until they respond. Raises CheckError."""

    @abstractmethod
    def down(self) -> None:
        """End everything and remove what it kept."""

    @abstractmethod
    def kill(self, service: str, *, forget: bool = False) -> None:
        """End a service at once; `forget`: what it kept is lost, too."""

    @abstractmethod
    def listening(self) -> Iterator[tuple[str, str, int]]:
        """Service, address and port of everything that others on this machine can reach."""

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def get(self, service: str, path: str, **params: str) -> requests.Response:
        answer = requests.get(self.url(service) + path, params=params, timeout=60)
        if not answer.ok:
            raise CheckError(f"{service} answers {answer.status_code}: {answer.text[:200].strip()}")
        return answer

    def password(self) -> str:
        return (self.checkout / "stack" / "secrets" / "grafana_admin_password").read_text()

    def run(self, *command: str) -> None:
        done = subprocess.run(
            command,
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise CheckError(f"{' '.join(command)}: {said[-1]}")


class Programs(Stack):
    """What is on PATH, by scripts/stack.sh."""

    @property
    def services(self) -> tuple[str, ...]:
        found = [
            name for name in SERVICES if shutil.which(f"prometheus-{name}") or shutil.which(name)
        ]
        # scripts/stack.sh starts Alloy only where both are that it sends to.
        if not {"loki", "prometheus"} <= set(found) and "alloy" in found:
            found.remove("alloy")
        return tuple(found)

    def up(self) -> None:
        self.run("scripts/stack.sh", "up")

    def down(self) -> None:
        self.run("scripts/stack.sh", "down")

    def kill(self, service: str, *, forget: bool = False) -> None:
        os.kill(self._process(service), signal.SIGKILL)
        if forget:
            shutil.rmtree(Path(self.environment["STACK_DATA"]) / service / "data")

    def listening(self) -> Iterator[tuple[str, str, int]]:
        if not Path("/proc/self/fd").is_dir():
            raise CheckError("this system has no /proc to see ports in")
        for service in self.services:
            if not Path(f"/proc/{self._process(service)}").is_dir():
                raise CheckError(f"{service} does not run any more: see its log")
            for process in _family(self._process(service)):
                for address, port in listens_on(process):
                    yield service, address, port

    def _process(self, service: str) -> int:
        file = Path(self.environment["STACK_DATA"]) / f"{service}.pid"
        try:
            return int(file.read_text().split()[0])
        except OSError:
            raise CheckError(f"{service} does not run") from None


class Compose(Stack):
    """compose.yaml's profile `local`, in a project of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # The services' own users read what is mounted.
        folder.chmod(0o755)
        self.environment["COMPOSE_PROJECT_NAME"] = f"compilewatch-verify-{os.getpid()}"

    @property
    def services(self) -> tuple[str, ...]:
        return SERVICES

    def up(self) -> None:
        self.run("scripts/stack_setup.sh")
        self.run("docker", "compose", "up", "--detach", "--wait", "--wait-timeout", "300")

    def down(self) -> None:
        self.run("docker", "compose", "down", "--volumes", "--timeout", "10")

    def kill(self, service: str, *, forget: bool = False) -> None:
        self.run("docker", "compose", "kill", "--signal", "KILL", service)
        if forget:
            self.run("docker", "compose", "rm", "--force", service)
            project = self.environment["COMPOSE_PROJECT_NAME"]
            self.run("docker", "volume", "rm", f"{project}_{service}")

    def listening(self) -> Iterator[tuple[str, str, int]]:
        for service in self.services:
            for line in subprocess.run(
                ["docker", "compose", "ps", "--format", "{{.Ports}}", service],
                cwd=self.checkout,
                env=self.environment,
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split(","):
                published, arrow, _ = line.strip().partition("->")
                if arrow:
                    address, _, port = published.rpartition(":")
                    yield service, address, int(port)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, all different.

    They are below those that Linux gives to connections (ip_local_port_range, from 32768), so that
    no connection takes the port of a service that is stopped and started again.
    """
    found: list[int] = []
    for port in random.sample(range(10_000, 32_000), k=22_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise CheckError(f"only {len(found)} of {count} ports between 10000 and 32000 are free")


def _family(process: int) -> Iterator[int]:
    """A process and all that it started."""
    yield process
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in path.read_text().split():
            yield from _family(int(child))


def listens_on(process: int) -> Iterator[tuple[str, int]]:
    """Addresses and ports on which a process listens, from /proc (see proc(5))."""
    sockets = set()
    for path in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if (target := str(path.readlink())).startswith("socket:["):
                sockets.add(target[8:-1])
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        lines = Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
        for fields in map(str.split, lines):
            if fields[3] == "0A" and fields[9] in sockets:
                address, port = fields[1].split(":")
                # Words of four bytes, each in the machine's own order.
                words = (address[at : at + 8] for at in range(0, len(address), 8))
                packed = b"".join(bytes.fromhex(word)[::-1] for word in words)
                yield socket.inet_ntop(family, packed), int(port, 16)
