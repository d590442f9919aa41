"""The Trainium instance of an executor: started when there is work, stopped when nobody has any."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from compilewatch.config import Settings, cache_folder
from compilewatch.errors import CompilewatchError, ExecutorError, ExecutorUnavailableError
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import ErrorCode
from compilewatch.extras.executor.trainium.operation import Operation

WAIT_SECONDS = 3600.0
POLL_SECONDS = 15.0


class OnDemand:
    """An instance that is started with the first work, and stopped when all work has ended.

    `start` can be called by several threads. If the instance cannot be started, each of them gets
    the same error, and it is not tried again.
    """

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """Prepare it; `make` returns the context in which the instance runs, see `running`."""
        self._make = make
        self._held = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._started = False
        self._error: CompilewatchError | None = None

    def start(self) -> None:
        """Start the instance unless this has been done. Raises TrainiumError or ExecutorError."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._started:
                return
            try:
                self._held.enter_context(self._make())
            except CompilewatchError as error:
                self._error = error
                raise
            self._started = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._held.close()


def instance_of(
    settings: Settings,
    client: ExecutorClient,
    say: Callable[[str], None],
    state: Path | None = None,
) -> contextlib.AbstractContextManager[None]:
    """The context in which the instance of the settings runs; `say` prints lines of progress.

    `state` is the file that says who has started it; None: the one in the cache folder.
    """
    place = state or (settings.cache_folder or cache_folder()) / "trainium.json"
    return running(Operation(settings, place, say), client, say)


@contextlib.contextmanager
def running(
    operation: Operation,
    client: ExecutorClient,
    say: Callable[[str], None],
    *,
    wait_seconds: float = WAIT_SECONDS,
    poll_seconds: float = POLL_SECONDS,
) -> Iterator[None]:
    """Start the instance for the time of the context, and stop it if this started it.

    It is not stopped while a job of anybody runs or waits: that is waited for, and after
    `wait_seconds` the instance is left to its own idle timer.
    """
    ours = operation.up().started_by_run
    try:
        client.health()
        yield
    finally:
        if ours:
            _leave(operation, client, say, wait_seconds, poll_seconds)
        else:
            operation.down()


def _leave(
    operation: Operation,
    client: ExecutorClient,
    say: Callable[[str], None],
    wait_seconds: float,
    poll_seconds: float,
) -> None:
    until = time.monotonic() + wait_seconds
    while True:
        reason = hold(client)
        if reason is None:
            _stop(operation, client)
            return
        if time.monotonic() > until:
            say(f"the instance keeps running, because {reason}; it stops itself when it is idle")
            return
        say(f"the instance is stopped later, because {reason}")
        time.sleep(poll_seconds)


def _stop(operation: Operation, client: ExecutorClient) -> None:
    """Stop the instance; if it keeps running, its service takes jobs again."""
    stopped = False
    try:
        stopped = operation.down().action != "left"
    finally:
        if not stopped:
            with contextlib.suppress(ExecutorError):
                client.undrain()


def hold(client: ExecutorClient) -> str | None:
    """Let the service take no more jobs. Returns why the instance must not be stopped, else None.

    A service that does not respond is not idle.
    """
    try:
        client.drain()
    except ExecutorUnavailableError as error:
        return str(error)
    except ExecutorError as error:
        if error.code != ErrorCode.CONFLICT:
            raise
        return str(error)
    return None
