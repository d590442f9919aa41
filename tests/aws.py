"""AWS on the loopback: moto's server, and clients that use nothing of whoever runs the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from botocore.loaders import create_loader
from moto.server import ThreadedMotoServer

LOADER = create_loader()


@contextmanager
def moto() -> Iterator[str]:
    """The address of a server of its own."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def no_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients find no files of the user's, ask no instance, and share the models of services."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "no config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "no credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # The real loader of boto3's models, which are megabytes, but one for all clients.
    monkeypatch.setattr("botocore.session.create_loader", lambda _: LOADER)
