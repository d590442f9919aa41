"""Work on several things at a time, which ends with the process and with the first error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> tuple[Result, ...]:
    """The results of `work` in the order of the items, of which `jobs` are worked on at a time.

    The first error is raised once the items in work have ended; no other is begun. The threads do
    not keep the process alive: after Ctrl-C it ends at once, so what they do must be stored as it
    is done.
    """
    if jobs <= 1 or len(items) <= 1:
        return tuple(work(item) for item in items)
    futures: list[Future[Result]] = [Future() for _ in items]
    waiting = list(zip(futures, items, strict=True))[::-1]
    lock = threading.Lock()

    def loop() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                future, item = waiting.pop()
            try:
                future.set_result(work(item))
            except BaseException as error:  # noqa: BLE001  (raised again below)
                with lock:
                    waiting.clear()
                future.set_exception(error)

    threads = [threading.Thread(target=loop, daemon=True) for _ in range(min(jobs, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for future in futures:
        if future.done() and (error := future.exception()) is not None:
            raise error
    return tuple(future.result() for future in futures)
