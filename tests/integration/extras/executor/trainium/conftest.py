"""EC2 as moto serves it over HTTP, with real boto3 clients and waiters, and an agent to answer.

moto knows no states between `stopped` and `running` and refuses little: `world` puts an instance
into any state, and makes an action fail with any of EC2's codes, in the server itself.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
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
TYPE = "trn1.2xlarge"
IMAGE = "ami-12c6146b"
"""One of those that moto always has."""
ACCESS = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
PRICE = """
[[price]]
instance_type = "trn1.2xlarge"
regions = ["us-east-1"]
source = "a test"
"""
PRICES = f"""
schema_version = 1
{PRICE}
usd_per_hour = 1.5
date = 2026-01-01
{PRICE}
usd_per_hour = 1.0
date = 2025-01-01
"""


class Sshd:
    """Says what an SSH server says first, to everyone; `banner` can be changed."""

    def __init__(self) -> None:
        self.banner = b"SSH-2.0-test\r\n"
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(self.banner)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._server.join(10)
        self._socket.close()


class World:
    """One instance in EC2, and what can go wrong with it."""

    def __init__(self, client: Any, folder: Path, sshd: Sshd) -> None:
        self.folder = folder
        self.sshd = sshd
        self.said: list[str] = []
        self.client = client
        self.backend.reservations.clear()
        self.instance = self.add()
        self.client.stop_instances(InstanceIds=[self.instance])

    @property
    def backend(self) -> Any:
        return get_backend("ec2")[DEFAULT_ACCOUNT_ID][REGION]

    def add(self, tag: str = "trainium") -> str:
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "compilewatch", "Value": tag}]}]
        one = {"MinCount": 1, "MaxCount": 1, "InstanceType": TYPE, "TagSpecifications": tags}
        instance = self.client.run_instances(ImageId=IMAGE, **one)
        return str(instance["Instances"][0]["InstanceId"])

    def state(self, instance: str | None = None) -> str:
        return str(self.backend.get_instance(instance or self.instance)._state.name)

    def put(self, state: str) -> None:
        codes = {"pending": 0, "running": 16, "terminated": 48, "stopping": 64, "stopped": 80}
        inner = self.backend.get_instance(self.instance)._state
        inner.name, inner.code = state, codes[state]

    @property
    def file(self) -> Path:
        return self.folder / "trainium.json"

    def settings(self, **flags: Any) -> Settings:
        (self.folder / "prices.toml").write_text(PRICES)
        defaults = {
            "trainium_region": REGION,
            "trainium_host": "127.0.0.1",
            "trainium_ssh_port": self.sshd.port,
            "trainium_poll_seconds": 0.02,
            "trainium_ready_seconds": 2.0,
            "trainium_stop_seconds": 1.0,
            "trainium_attempts": 3,
            "trainium_prices_file": str(self.folder / "prices.toml"),
        }
        return load_settings(defaults | flags, folder=self.folder, environ={})

    def operation(self, state: Path | None = None, **flags: Any) -> Operation:
        return Operation(self.settings(**flags), state or self.file, self.said.append)


Refuse = Callable[..., list[str]]


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
    serving = Sshd()
    yield serving
    serving.close()


@pytest.fixture
def world(
    moto_endpoint: str, client: Any, tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> World:
    for name, value in ACCESS.items():
        monkeypatch.setenv(name, value)
    aws.no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", moto_endpoint)
    return World(client, tmp_path, sshd)


@pytest.fixture
def refuse(world: World, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Make one of the server's actions fail with a code, `times` times (0: always).

    Where `after` is true the action is done all the same. Gives the list of calls made.
    """

    def install(action: str, code: str, *, times: int = 0, after: bool = False) -> list[str]:
        calls: list[str] = []
        real = getattr(world.backend, action)

        def refusing(*arguments: Any, **keywords: Any) -> Any:
            calls.append(action)
            if times and len(calls) > times:
                return real(*arguments, **keywords)
            if after:
                real(*arguments, **keywords)
            raise EC2ClientError(code, "as the test wants it")

        monkeypatch.setattr(world.backend, action, refusing)
        return calls

    return install
