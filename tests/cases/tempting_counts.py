"""What models of `tempting_proposed.py` import from another file: counts, a setting, an object."""

import threading
from types import SimpleNamespace

LOCK = threading.Lock()
CALLS = {"counted": 0}
SCALE = 2.0


class Statistics:
    def __init__(self) -> None:
        self.calls = 0


STATISTICS = Statistics()
SETTINGS = SimpleNamespace(scale=2.0)


def count() -> None:
    CALLS["counted"] += 1
