"""Pushing the log of a sweep to Loki while it runs (`loki_push`). The file stays the first way."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import ClassVar

from logging_loki import LokiHandler
from tenacity import RetryCallState

from compilewatch.config.settings import Settings
from compilewatch.sinks.loki_client import (
    Batch,
    Emitter,
    Entry,
    RefusedError,
    UnavailableError,
    credentials,
    log_record,
)

CAPACITY = 20_000
"""Lines that may wait; a sweep whose answers are all known writes its whole log at once."""
LINGER_SECONDS = 1.0
"""How long a line waits for others to go with it."""


class LogPusher(LokiHandler):  # type: ignore[misc]
    """The library's handler with a bounded queue, and one thread that empties it in batches.

    Offering never waits: what has no room is dropped and counted. A line that was accepted is
    sent until Loki takes or refuses it; `close` goes on for `drain_seconds` at most. It is a
    logging.Handler, so that logging closes it at exit where nobody else has.
    """

    emitters: ClassVar[dict[str, type[Emitter]]] = {"1": Emitter}

    def __init__(
        self,
        url: str,
        auth: tuple[str, str] | None = None,
        *,
        drain_seconds: float,
        capacity: int = CAPACITY,
    ) -> None:
        super().__init__(url=url, auth=auth, version="1")
        self._drain_seconds = drain_seconds
        self._queue: queue.Queue[logging.LogRecord] = queue.Queue(capacity)
        self._offered = self._delivered = self._dropped = 0
        self._why = ""
        self._closing = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._work, name="loki_push", daemon=True)
        self._thread.start()

    def offer(self, lines: Sequence[bytes]) -> None:
        """Take lines of a run's log, from the thread that writes it."""
        for line in lines:
            if (record := log_record(line)) is not None:
                self.handle(record)

    def emit(self, record: logging.LogRecord) -> None:
        self._offered += 1
        try:
            if self._closing.is_set():
                raise queue.Full
            self._queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Send what waits, for a limited time. Closing twice does nothing."""
        if not self._closing.is_set():
            self._deadline = time.monotonic() + self._drain_seconds
            self._closing.set()
            # A request on its way is not waited for beyond the limit: the thread is a daemon.
            self._thread.join(self._drain_seconds)
        super().close()

    @property
    def lost(self) -> str | None:
        """After `close`: how many lines Loki is not known to have, and why; None for none."""
        missing = self._offered - self._delivered
        if not missing:
            return None
        why = self._why or f"{self.emitter.where} did not take them in time"
        dropped = f"{self._dropped} had no room in the queue; " if self._dropped else ""
        return f"{missing} of {self._offered} log lines were not pushed: {dropped}{why}"

    def _work(self) -> None:
        """Until closed and either empty or out of time."""
        while not (self._closing.is_set() and (self._queue.empty() or self._is_late())):
            if entries := self._gather():
                self._deliver(entries)
        self.emitter.close()

    def _gather(self) -> list[Entry]:
        batch = Batch()
        until = time.monotonic() + LINGER_SECONDS
        while not batch.is_full:
            wait = 0.0 if self._closing.is_set() else until - time.monotonic()
            try:
                # In steps, since closing shall not wait for lines that do not come.
                record = self._queue.get(timeout=max(0.0, min(wait, 0.1)))
            except queue.Empty:
                if wait <= 0:
                    break
                continue
            batch.add(self.emitter.entry(record, self.format(record)))
        return batch.entries

    def _deliver(self, entries: list[Entry]) -> None:
        try:
            self.emitter.deliver(entries, self._give_up, self._pause)
        except (RefusedError, UnavailableError) as error:
            self._why = str(error)
        else:
            self._delivered += len(entries)

    def _is_late(self) -> bool:
        return time.monotonic() > self._deadline

    def _give_up(self, state: RetryCallState) -> bool:
        return time.monotonic() + state.upcoming_sleep > self._deadline

    def _pause(self, seconds: float) -> None:
        """Between two attempts; closing cuts the first such wait short."""
        if self._closing.is_set():
            time.sleep(seconds)
        else:
            self._closing.wait(seconds)


def start(settings: Settings) -> LogPusher:
    """The pusher of a sweep. Raises ConfigError where `loki_url` is no address."""
    auth = credentials(settings.loki_username, settings.loki_password)
    return LogPusher(settings.loki_url, auth, drain_seconds=settings.publish_retry_seconds)
