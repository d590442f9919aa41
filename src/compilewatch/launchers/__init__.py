"""Launchers run requests: one Protocol, one row for each in `LAUNCHERS`; loaded lazily."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from compilewatch import extras
from compilewatch.errors import LauncherError
from compilewatch.records import Environment, Request, Result, Tier

LAUNCHERS: dict[str, str] = {
    "local": "compilewatch.launchers.local.launcher:LocalLauncher",
    "ray": "compilewatch.extras.cluster.launcher:RayLauncher",
}


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A request with its result. `artifacts` is a folder of files to keep, or None.

    The receiver owns the folder from now on and moves it into the store.
    """

    result: Result
    artifacts: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Running:
    """What goes on right now, for people: a model, what is done with it, for how long.

    `name` is empty for a worker that starts.
    """

    name: str
    doing: str
    seconds: float


def by_environment(
    requests: Iterable[Request], names: Iterable[str], who: str, *, sandboxed: bool = False
) -> dict[str, list[Request]]:
    """Return the requests of each of these environments: those of each device together, in order.

    Raises LauncherError for a request in another environment (`who` is the subject of the message),
    and for generated code, unless the launcher has a sandbox.
    """
    groups: dict[str, list[Request]] = {name: [] for name in names}
    for request in requests:
        if request.model.source in extras.SANDBOXED and not sandboxed:
            raise LauncherError(
                f"{request.model.name} is generated code, which only runs in the sandbox of this "
                "machine: use `compilewatch sweep --source papers` with the launcher local"
            )
        name = request.target.environment
        if name not in groups:
            raise LauncherError(
                f"{request.model.name} requests environment {name!r}; "
                f"{who} {', '.join(groups) or 'none'}"
            )
        groups[name].append(request)
    return {name: sorted(group, key=device_of_worker) for name, group in groups.items()}


def device_of_worker(request: Request) -> tuple[str, bool]:
    """Return the device that a worker must have to evaluate a request, and whether it is real.

    A worker can declare one device. The device of a request in the tier `real` must be present.
    """
    if request.device is None:
        return "", False
    return request.device.name, request.tier is Tier.REAL


class Launcher(Protocol):
    """Runs requests and yields each result as it arrives, in any order, exactly once.

    A request never fails: what happens to its child is a `Result`. `LauncherError` means that
    nothing can be run (no interpreter, a server that will not start). Leaving the iterator early
    (close, Ctrl-C) ends all children. One that has `running() -> list[Running]`, to be called from
    any thread, is asked for it to show progress.
    """

    name: str

    @property
    def jobs(self) -> int:
        """How many requests run at the same time."""
        ...

    def environments(self) -> tuple[Environment, ...]:
        """Return the environments that requests may name, as they described themselves."""
        ...

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """Run all requests; `scratch` is an existing folder on the file system of the store."""
        ...


class Observer:
    """Receives the progress of a sweep, in the thread of the sweep. This one ignores everything."""

    def on_launcher(self, launcher: Launcher) -> None:
        """Called when the launcher that evaluates the requests is open."""

    def on_models(self, lines: Sequence[str]) -> None:
        """Called for a new run when its models are chosen: lines that say where they come from."""

    def on_plan(self, total: int, reused: int) -> None:
        """Called once: there are `total` requests, of which `reused` have a result already."""

    def on_result(self, result: Result, done: int, total: int) -> None:
        """Called for each request that was run; `done` counts all requests with a result by now."""

    def on_step(self, what: str, done: float) -> None:
        """Called for each step of a profile, after the results, with its finished share."""
