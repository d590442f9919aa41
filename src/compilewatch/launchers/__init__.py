"""How requests get run: one Protocol, one line each in `LAUNCHERS`; loaded lazily."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compilewatch.errors import LauncherError
from compilewatch.records import Environment, Request, Result

LAUNCHERS: dict[str, str] = {
    "local": "compilewatch.launchers.local.launcher:LocalLauncher",
    "ray": "compilewatch.launchers.ray.launcher:RayLauncher",
    "fake": "compilewatch.launchers.fake:FakeLauncher",
}


@dataclass(frozen=True, kw_only=True)
class Completed:
    """One answered request. `artifacts` is a folder of files to keep, or None.

    The receiver owns the folder from here on (and moves it into the store).
    """

    result: Result
    artifacts: Path | None = None


def by_environment(
    requests: Iterable[Request], names: Iterable[str], who: str
) -> dict[str, list[Request]]:
    """The requests of each of these environments, in order.

    Raises LauncherError for another: `who` is what has these alone.
    """
    found: dict[str, list[Request]] = {name: [] for name in names}
    for request in requests:
        name = request.target.environment
        if name not in found:
            raise LauncherError(
                f"{request.model.name} asks for environment {name!r}; "
                f"{who} {', '.join(found) or 'none'}"
            )
        found[name].append(request)
    return found


class Launcher(Protocol):
    """Runs requests and yields each answer as it comes, in any order, exactly once.

    A request never fails: what happens to its child is a `Result`. `LauncherError` means that
    nothing can be run (no interpreter, a server that will not start). Leaving the iterator early
    (close, Ctrl-C) ends all children.
    """

    name: str

    @property
    def jobs(self) -> int:
        """How many requests it runs at a time."""
        ...

    def environments(self) -> tuple[Environment, ...]:
        """The environments that requests may name, as they described themselves."""
        ...

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """Run all requests; `scratch` is an existing folder on the file system of the store."""
        ...
