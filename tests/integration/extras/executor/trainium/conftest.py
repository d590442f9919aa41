"""EC2 as moto serves it over HTTP, with real boto3 clients and waiters, and an agent to answer.

moto knows no states between `stopped` and `running` and refuses little: `world` puts an instance
into any state, and makes an action fail with any of EC2's codes, in the server itself.
"""

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID  # type: ignore[attr-defined]
from moto.ec2.exceptions import EC2ClientError

from compilewatch.config import Settings, load_settings
from compilewatch.extras.executor.trainium import Operation
from tests import aws

REGION = "us-east-1"
IMAGE = "ami-12c6146b"
"""One of those that moto always has."""
ACCESS = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
PRICE = (
    '[[price]]\ninstance_type = "trn1.2xlarge"\nregions = ["us-east-1"]\nsource = "a test"\n'
    "usd_per_hour = {}\ndate = {}\n"
)


class Sshd(socketserver.TCPServer):
    """Says what an SSH server says first, to everyone; `banner` can be changed."""

    banner = b"SSH-2.0-test\r\n"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError):
            request.sendall(self.banner)

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class World:
    """One instance in EC2, and what can go wrong with it."""

    def __init__(
        self, client: Any, folder: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.client, self.sshd, self.patch = client, sshd, monkeypatch
        self.folder, self.file = folder, folder / "trainium.json"
        self.said: list[str] = []
        self.refused: list[str] = []
        self.backend: Any = get_backend("ec2")[DEFAULT_ACCOUNT_ID][REGION]
        self.backend.reservations.clear()
        self.instance = self.add()
        self.client.stop_instances(InstanceIds=[self.instance])

    def add(self, tag: str = "trainium") -> str:
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "compilewatch", "Value": tag}]}]
        one = {"MinCount": 1, "MaxCount": 1, "TagSpecifications": tags}
        started = self.client.run_instances(ImageId=IMAGE, InstanceType="trn1.2xlarge", **one)
        return str(started["Instances"][0]["InstanceId"])

    def state(self) -> str:
        return str(self.backend.get_instance(self.instance)._state.name)

    def put(self, state: str) -> None:
        codes = {"pending": 0, "running": 16, "terminated": 48, "stopping": 64, "stopped": 80}
        inner = self.backend.get_instance(self.instance)._state
        inner.name, inner.code = state, codes[state]

    def replace(self, action: str, function: Callable[..., Any]) -> None:
        """Let the server call a function for an action, with the real one and its arguments."""
        real = getattr(self.backend, action)
        self.patch.setattr(self.backend, action, partial(function, real))

    def refuse(self, action: str, code: str, *, times: int = 0, after: bool = False) -> None:
        """Let an action fail `times` times (0: always); with `after` it has its effect."""
        self.refused.clear()

        def refusing(real: Any, *arguments: Any, **keywords: Any) -> Any:
            self.refused.append(action)
            if times and len(self.refused) > times:
                return real(*arguments, **keywords)
            if after:
                real(*arguments, **keywords)
            raise EC2ClientError(code, "as the test wants it")

        self.replace(action, refusing)

    def settings(self, **changes: Any) -> Settings:
        prices = self.folder / "prices.toml"
        rows = PRICE.format(1.5, "2026-01-01") + PRICE.format(1.0, "2025-01-01")
        prices.write_text(f"schema_version = 1\n{rows}")
        values = {
            "region": REGION,
            "host": "127.0.0.1",
            "ssh_port": self.sshd.port,
            "poll_seconds": 0.02,
            "ready_seconds": 2.0,
            "stop_seconds": 1.0,
            "attempts": 3,
            "prices_file": str(prices),
        }
        flags = {f"trainium_{name}": value for name, value in (values | changes).items()}
        return load_settings(flags, folder=self.folder, environ={})

    def operation(self, state: Path | None = None, **changes: Any) -> Operation:
        return Operation(self.settings(**changes), state or self.file, self.said.append)


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    with aws.moto() as address:
        yield address


@pytest.fixture(scope="session")
def client(moto_endpoint: str) -> Any:
    """The tests' own eye on EC2."""
    access = {name.lower(): value for name, value in ACCESS.items()}
    return boto3.client("ec2", region_name=REGION, endpoint_url=moto_endpoint, **access)


@pytest.fixture
def sshd() -> Iterator[Sshd]:
    server = Sshd()
    yield server
    server.close()


@pytest.fixture
def world(
    moto_endpoint: str, client: Any, tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> World:
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    aws.no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", moto_endpoint)
    return World(client, tmp_path, sshd, monkeypatch)
