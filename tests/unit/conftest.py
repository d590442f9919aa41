"""Holds the tests of this folder to what makes them quick: nothing is started, torch stays out."""

import sys
from collections.abc import Iterator

import pytest

STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen"}

_seen: list[str] | None = None


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook, which cannot be removed again, and sees what any library does."""
    if _seen is not None and (event in STARTS or (event == "import" and arguments[0] == "torch")):
        _seen.append(f"{event} {str(arguments[0])[:100]}")


sys.addaudithook(_audit)


@pytest.fixture(autouse=True)
def _in_this_process(request: pytest.FixtureRequest) -> Iterator[None]:
    global _seen
    _seen = []
    yield
    seen, _seen = _seen, None
    if not any(map(request.node.get_closest_marker, ("process", "torch"))):
        assert seen == [], "this belongs into tests/integration, or takes the marker `process`"
