"""Runs requests on this machine: a warm server per environment and device, a child per request.

Environments, and devices within them, run one after the other. The server of the next one starts
when the last requests of the one before leave a slot free.

Only transient failures are retried: the server died or hung, no process could be forked, or a child
was killed by a signal. A request that was running when its server died is retried without any other
request beside it, so that the request that caused the failure is found, and no other is blamed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, groupby, zip_longest
from pathlib import Path
from typing import Self

from compilewatch.environments import Environments
from compilewatch.errors import CompilewatchError, LauncherError
from compilewatch.launchers import Completed, Running, by_environment, device_of_worker
from compilewatch.launchers.local.batch import LocalExecution
from compilewatch.launchers.local.server import ServerProcess
from compilewatch.records import DeclaredDevice, Environment, Request

_log = logging.getLogger(__name__)


class LocalLauncher:
    """Runs up to `jobs` children at a time. The server stays warm between runs, until `close`.

    A server that does not respond for `server_timeout_seconds` counts as hung. `cache` is the
    folder that holds environments (by default the user's). With `warn`, a server that cannot fork
    is logged. With `single`, the server only imports what one request needs.
    """

    name = "local"

    def __init__(
        self,
        jobs: int | None = None,
        environments: tuple[str, ...] = ("default",),
        *,
        server_timeout_seconds: float = 30.0,
        cache: Path | None = None,
        warn: bool = True,
        single: bool = False,
    ) -> None:
        self.jobs = jobs or os.cpu_count() or 1
        self._names = environments
        self._timeout_seconds = server_timeout_seconds
        self._known = Environments(cache)
        self._described: dict[str, Environment] = {}
        self._server: ServerProcess | None = None
        self._next: ServerProcess | None = None
        self._batch: LocalExecution | None = None
        self.ids = count(1)
        self._warn = warn
        self._single = single
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environments(self) -> tuple[Environment, ...]:
        """Its environments. Raises InterpreterError if one is missing or broken."""
        return tuple(self._describe(name) for name in self._names)

    def close(self) -> None:
        """End the server and its children, and the server that was started in advance."""
        for server in (self._server, self._next):
            if server is not None:
                server.close()
        self._server = self._next = None

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`. Closing the generator early ends the server and its children."""
        groups = by_environment(requests, self._names, "this launcher has")
        batches = [
            LocalExecution(self, name, deque(part), scratch.resolve())
            for name, group in groups.items()
            for _, part in groupby(group, key=device_of_worker)
        ]
        for batch, following in zip_longest(batches, batches[1:]):
            self._batch = batch
            yield from batch.run(following)

    def running(self) -> list[Running]:
        """See `Launcher`."""
        batch, server = self._batch, self._server
        if batch is None or server is None or not server.alive:
            return []
        if server.environment is None:
            return [Running(name="", doing="starting worker", seconds=server.age_seconds())]
        now = time.monotonic()
        return [task.running(now) for task in list(batch.sent.values()) if task.pid is not None]

    def _describe(self, name: str) -> Environment:
        if name not in self._described:
            self._described[name] = self._known.describe(name)
        return self._described[name]

    def server(
        self,
        name: str,
        targets: Iterable[str] = (),
        *,
        device: DeclaredDevice | None = None,
        real_device: bool = False,
    ) -> ServerProcess:
        """The running server of an environment and device.

        If there is none, it is started for `targets`.
        """
        worker = (name, device, real_device)
        if self._server is not None and not self._server.suits(*worker):
            self._server.close()
            self._server = None
        if self._server is None and self._next is not None and self._next.suits(*worker):
            self._server, self._next = self._next, None
        if self._server is None:
            self._server = self._start(name, targets, device, real_device)
        return self._server

    def prepare(self, batch: LocalExecution) -> None:
        """Start the server of the next batch. If that fails, it is said when it is needed."""
        if self._next is None:
            with contextlib.suppress(CompilewatchError):
                self._next = self._start(batch.name, batch.targets, batch.device, batch.real_device)

    def _start(
        self,
        name: str,
        targets: Iterable[str],
        device: DeclaredDevice | None,
        real_device: bool,
    ) -> ServerProcess:
        return ServerProcess(
            name,
            self._known.interpreter(name),
            self.jobs,
            self._timeout_seconds,
            targets,
            single=self._single,
            device=device,
            real_device=real_device,
        )

    def warn_if_slow(self, server: ServerProcess) -> None:
        """Log once per environment that its server cannot fork."""
        expected = server.threads == 1 or server.real_device
        if self._warn and not expected and server.name not in self._warned:
            self._warned.add(server.name)
            _log.warning(cannot_fork(server.name, server.threads))

    def digest(self, name: str) -> str:
        """The environment's digest for results. Raises LauncherError if it changed meanwhile."""
        known = self._describe(name)
        server = self._server
        if server is not None and server.environment is not None:
            actual = server.environment.digest
            if actual != known.digest:
                from compilewatch.records import environment_differences

                self._known.forget(name)
                changed = environment_differences(known, server.environment)
                raise LauncherError(
                    f"environment {name!r} changed while it was in use "
                    f"({', '.join(changed) or 'other files'}): start a new run"
                )
        return known.digest


def cannot_fork(environment: str, threads: int) -> str:
    """One sentence on the consequence of a server with several threads."""
    return (
        f"environment {environment!r}: importing torch and transformers there starts "
        f"{threads - 1} more threads, so workers cannot be forked: each request starts a new "
        "process, which takes several seconds more"
    )
