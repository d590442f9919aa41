"""The services of a copy of the stack's files, on free ports, and the report on them."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import boto3
import psutil
import requests
from botocore.config import Config

from tests.sharing import free_port

ROOT = Path(__file__).parents[2]
SERVICES = ("pushgateway", "alertmanager", "prometheus", "loki", "alloy", "grafana")
PORTS = (*SERVICES, "alloy_push", "alloy_grpc", "loki_grpc")
"""`alloy_push` is PORT in ALLOY_PUSH_PORT, and so on."""
READY = {"loki": "/ready", "grafana": "/api/health"}
T = TypeVar("T")


class CheckError(Exception):
    """A check failed. One line."""


class Report:
    """Prints each check as it ends; `installed` are the services and programs that can run here.

    `status` is 1 after a check failed, 3 where something is not installed, else 0.
    """

    def __init__(self, *installed: str) -> None:
        self.installed = installed
        self.status = 0

    def check(
        self,
        what: str,
        check: Callable[..., str | None],
        *given: Any,
        needs: Sequence[str] = (),
        within: float = 0.0,
    ) -> bool:
        """Run a check with what it is given, until it succeeds or so many seconds have passed.

        It returns a fact worth telling, if any. A check that needs what is not installed is named
        as not verified. Returns whether it succeeded.
        """
        if missing := [name for name in needs if name not in self.installed]:
            self.status = self.status or 3
            print(f"not verified  {what}: {missing[0]} is not installed", flush=True)
            return False
        try:
            fact = until(within, partial(check, *given))
        except (CheckError, requests.RequestException) as error:
            self.status = 1
            print(f"FAILED        {what}: {error}", flush=True)
            return False
        print(f"verified      {what}" + (f": {fact}" if fact else ""), flush=True)
        return True


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


def installed(name: str) -> bool:
    return bool(shutil.which(f"prometheus-{name}") or shutil.which(name))


class Stack:
    """A copy of the stack's files, and its services: the programs on PATH, by scripts/stack.sh.

    The copy is `checkout`, a folder below `folder` with this name; runs are in `folder/outputs`.
    """

    def __init__(self, folder: Path, name: str = "checkout") -> None:
        self.checkout = folder / name
        self.outputs = folder / "outputs"
        self.data = folder / "data"
        self.ports = {port: free_port() for port in PORTS}
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("COMPILEWATCH_")},
            **{f"{name.upper()}_PORT": str(port) for name, port in self.ports.items()},
            "COMPILEWATCH_OUTPUT_DIR": str(self.outputs),
            "STACK_DATA": str(self.data),
        }
        # Those that can run here.
        self.services = tuple(filter(installed, SERVICES))
        if not {"loki", "prometheus"} <= {*self.services}:  # scripts/stack.sh starts Alloy for both
            self.services = tuple(name for name in self.services if name != "alloy")
        self.outputs.mkdir()
        made = shutil.ignore_patterns("secrets", "env.secrets", "own.yml", "__pycache__")
        for part in ("alloy", "dashboards/json", "scripts", "stack"):
            shutil.copytree(ROOT / part, self.checkout / part, ignore=made)
        for file in ("compose.yaml", ".env.example"):
            shutil.copy(ROOT / file, self.checkout)
        rules = self.checkout / "stack" / "prometheus" / "rules" / "compilewatch.yml"
        # The end of an alert is waited for.
        rules.write_text(rules.read_text().replace("keep_firing_for: 10m", "keep_firing_for: 1m"))
        # Instead of .env.example, which selects Jenkins too: scripts/smoke.sh verifies that.
        (self.checkout / ".env").write_text("COMPOSE_PROFILES=local\nALLOY_SINK=local\n")

    def up(self) -> None:
        """Start services that do not run, and wait until they respond. Raises CheckError."""
        self.run("scripts/stack.sh", "up")

    def down(self) -> None:
        """End everything and remove what it kept."""
        self.run("scripts/stack.sh", "down")

    def kill(self, service: str, *, forget: bool = False) -> None:
        """End a service at once; `forget`: what it kept is lost, too."""
        os.kill(self.process(service), signal.SIGKILL)
        if forget:
            shutil.rmtree(self.data / service / "data")

    def listening(self) -> Iterator[tuple[str, str, int]]:
        """Service, address and port of everything that others on this machine can reach."""
        for service in self.services:
            try:
                process = psutil.Process(self.process(service))
                for one in (process, *process.children(recursive=True)):
                    for connection in one.net_connections("inet"):
                        if connection.status == psutil.CONN_LISTEN:
                            yield service, connection.laddr.ip, connection.laddr.port
            except psutil.NoSuchProcess:
                raise CheckError(f"{service} does not run any more: see its log") from None

    def process(self, service: str) -> int:
        """The id of a service's process. Raises CheckError if it does not run."""
        try:
            return int((self.data / f"{service}.pid").read_text().split()[0])
        except OSError:
            raise CheckError(f"{service} does not run") from None

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports[service]}"

    def get(self, service: str, path: str, **params: str) -> requests.Response:
        return answered(service, requests.get(self.url(service) + path, params=params, timeout=60))

    def password(self) -> str:
        return (self.checkout / "stack" / "secrets" / "grafana_admin_password").read_text()

    def call(
        self, *command: str | Path, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the checkout, or in a folder, and return what became of it."""
        return subprocess.run(
            command,
            cwd=folder or self.checkout,
            env=self.environment | environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *command: str | Path, folder: Path | None = None, **environment: str) -> str:
        """The same for a command that must succeed; return its output. Raises CheckError."""
        done = self.call(*command, folder=folder, **environment)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise CheckError(
                f"{' '.join(map(str, command))} ended with {done.returncode}: {said[-1]}"
            )
        return done.stdout


class Compose(Stack):
    """compose.yaml's profile `local`, in a project of its own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.services = SERVICES
        # The services' own users read what is mounted.
        folder.chmod(0o755)
        self.project = f"compilewatch-verify-{os.getpid()}"
        self.environment["COMPOSE_PROJECT_NAME"] = self.project

    def up(self) -> None:
        self.run("scripts/stack_setup.sh")
        self.run("docker", "compose", "up", "--detach", "--wait", "--wait-timeout", "300")

    def down(self) -> None:
        self.run("docker", "compose", "down", "--volumes", "--timeout", "10")

    def kill(self, service: str, *, forget: bool = False) -> None:
        self.run("docker", "compose", "kill", "--signal", "KILL", service)
        if forget:
            self.run("docker", "compose", "rm", "--force", service)
            self.run("docker", "volume", "rm", f"{self.project}_{service}")

    def listening(self) -> Iterator[tuple[str, str, int]]:
        for service in self.services:
            ports = self.run("docker", "compose", "ps", "--format", "{{.Ports}}", service)
            for line in ports.split(","):
                published, arrow, _ = line.strip().partition("->")
                if arrow:
                    address, _, port = published.rpartition(":")
                    yield service, address, int(port)


def answered(service: str, answer: requests.Response) -> requests.Response:
    """The answer of a service, if it is a good one. Raises CheckError with its words."""
    if not answer.ok:
        raise CheckError(f"{service} answers {answer.status_code}: {answer.text[:200].strip()}")
    return answer


USER, BUCKET = "verify-stack", "runs"


@contextmanager
def minio(folder: Path) -> Iterator[tuple[dict[str, str], Callable[[], dict[str, int]]]]:
    """A MinIO with an empty bucket. Raises CheckError where it does not start.

    Yields what compilewatch needs to send runs there, and the sizes of objects by key.
    """
    port, console = (f"127.0.0.1:{free_port()}" for _ in range(2))
    keys = {"aws_access_key_id": USER, "aws_secret_access_key": USER}
    client: Any = boto3.client(
        "s3",
        endpoint_url=f"http://{port}",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
        **keys,
    )

    def ready() -> None:
        try:
            requests.get(f"http://{port}/minio/health/ready", timeout=5).raise_for_status()
        except requests.RequestException:
            raise CheckError("minio does not answer") from None

    def objects() -> dict[str, int]:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {one["Key"]: one["Size"] for page in pages for one in page.get("Contents", ())}

    with subprocess.Popen(
        ["minio", "server", "--address", port, "--console-address", console, folder / "minio"],
        env={**os.environ, "MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": USER},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            until(60, ready)
            client.create_bucket(Bucket=BUCKET)
            settings = {"S3_URL": f"s3://{BUCKET}/kept", "S3_ENDPOINT_URL": f"http://{port}"}
            yield (
                (
                    {name.upper(): value for name, value in keys.items()}
                    | {"AWS_DEFAULT_REGION": "us-east-1"}
                    | {f"COMPILEWATCH_{name}": value for name, value in settings.items()}
                ),
                objects,
            )
        finally:
            process.terminate()
