"""Starts the executor's service; address, token and state are checked before it listens."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from compilewatch.errors import ExecutorError
from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.jobs import JobStore
from compilewatch.extras.executor.runner import Setup

TOKEN_VARIABLE = "COMPILEWATCH_EXECUTOR_TOKEN"
FEWEST_TOKEN_CHARACTERS = 16

_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the service listens, with the files of its certificate, if any."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """One service: address, token (empty: none), folder of its state, and how it runs jobs."""

    address: Address = field(default_factory=Address)
    token: str = ""
    state: Path
    setup: Setup = field(default_factory=Setup)


def serve(
    service: ServiceOptions, on_listening: Callable[[int], None], on_wait: Callable[[], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises ExecutorError or SandboxError before it listens.

    `on_listening` is called with the port once the service accepts connections, `on_wait` before it
    waits for another service that holds the same folder.
    """
    import uvicorn

    from compilewatch.extras.executor.service import application

    _verify(service)
    sandbox.check(service.setup.python, service.setup.visible)
    hide()
    listening = _listen(service.address)
    store = JobStore(service.state, on_wait=on_wait)
    on_listening(listening.getsockname()[1])
    try:
        address = service.address
        config = uvicorn.Config(
            application(store, service.setup, service.token),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=10,
            limit_concurrency=256,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn has ended everything in order
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        store.close()
        listening.close()


def hide() -> None:
    """Hide this process's variables and memory from other processes of the same user."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.umask(0o077)


def read_token(file: Path | None) -> str:
    """The token of a file, or of the variable; empty if there is none. Raises ExecutorError."""
    if file is None:
        return os.environ.pop(TOKEN_VARIABLE, "").strip()
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ExecutorError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ExecutorError(f"{file} is not text: it must hold the token only") from None


def _verify(service: ServiceOptions) -> None:
    host, token = service.address.host, service.token
    if not token and not _is_loopback(host):
        raise ExecutorError(
            f"{host} is reachable from other machines, and there is no token: write one with "
            f"`openssl rand -hex 32 > FILE` and add --token-file FILE, or set {TOKEN_VARIABLE}"
        )
    if token and (len(token) < FEWEST_TOKEN_CHARACTERS or not token.isascii() or " " in token):
        raise ExecutorError(
            f"the token must have at least {FEWEST_TOKEN_CHARACTERS} ASCII characters and no "
            "space: make one with `openssl rand -hex 32`"
        )
    for path in (service.address.certificate, service.address.key):
        if path is not None and not path.is_file():
            raise ExecutorError(f"{path} does not exist")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(address: Address) -> socket.socket:
    """Open the socket first, so that an address in use is our own one-line error."""
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ExecutorError(
            f"cannot listen on {address.host}:{address.port}: {reason}: choose another --port"
        ) from None
