"""What the workers of pytest-xdist share without getting in each other's way: cores and ports."""

import os
import random
import socket
from itertools import count

FIRST_PORT, LAST_PORT = 10_000, 32_000
"""Below the ports that Linux gives to connections (ip_local_port_range, from 32768)."""

_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WIDTH = (LAST_PORT - FIRST_PORT) // _WORKERS
# Two runs of the tests at a time begin at different ports.
_TRIED = count(random.randrange(_WIDTH))


def jobs() -> int:
    """How many models to run at a time here: the workers share the machine's cores."""
    return max(1, len(os.sched_getaffinity(0)) // _WORKERS)


def free_port() -> int:
    """A port that nothing listens on now, and that no other call here or in a worker returns."""
    while True:
        port = FIRST_PORT + _WORKER * _WIDTH + next(_TRIED) % _WIDTH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
