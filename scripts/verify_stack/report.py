"""What was checked, a line each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import requests


class CheckError(Exception):
    """A check failed. One line."""


@dataclass
class Report:
    """Prints each check as it ends."""

    failed: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def check(self, what: str, check: Callable[[], str]) -> bool:
        """Run a check, which returns a fact worth telling; whether it succeeded."""
        try:
            fact = check()
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


def until(seconds: float, attempt: Callable[[], str]) -> str:
    """What `attempt` returns as soon as it raises no CheckError, or its last one."""
    end = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except CheckError:
            if time.monotonic() > end:
                raise
        time.sleep(1)
