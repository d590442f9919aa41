"""A launcher without processes: results from a table or a function. For tests."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from compilewatch.launchers import Completed
from compilewatch.records import Depth, Environment, Phase, Request, Result, Status, Tier

Answers = Mapping[str, Result] | Callable[[Request], Result]
"""Results by model name, or a function of the request."""


class FakeLauncher:
    """Returns a result for each request immediately, in order; requests without one pass.

    `artifacts` names files (path to content) that every result has. `seen` lists the requests that
    ran, for tests.
    """

    name = "fake"

    def __init__(
        self,
        jobs: int | None = None,
        environments: tuple[str, ...] = ("default",),
        *,
        answers: Answers | None = None,
        artifacts: Mapping[str, bytes] | None = None,
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self.jobs = jobs or 1
        self.seen: list[Request] = []
        self._names = environments
        self._answers = answers if answers is not None else {}
        self._artifacts = dict(artifacts or {})
        self._packages = dict(packages or {})

    def environments(self) -> tuple[Environment, ...]:
        return tuple(
            Environment(
                name=name,
                python_executable="python",
                python="3.11.0",
                torch="0.0.0+fake",
                torch_git="0" * 40,
                transformers="0.0.0+fake",
                device="cpu",
                packages=self._packages,
                digest=_digest(name),
            )
            for name in self._names
        )

    def run(self, requests: Iterable[Request], scratch: Path) -> Iterator[Completed]:
        """See `Launcher.run`."""
        for number, request in enumerate(requests):
            self.seen.append(request)
            digest = _digest(request.target.environment)
            result = msgspec.structs.replace(self._answer(request), environment_digest=digest)
            yield Completed(result=result, artifacts=self._files(scratch, number))

    def close(self) -> None:
        """Do nothing: there are no processes."""

    def _answer(self, request: Request) -> Result:
        if callable(self._answers):
            return self._answers(request)
        return self._answers.get(request.model.name) or passing(request)

    def _files(self, scratch: Path, number: int) -> Path | None:
        if not self._artifacts:
            return None
        folder = scratch / f"fake-{number}"
        for name, content in self._artifacts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder


def _digest(environment: str) -> str:
    return hashlib.sha256(environment.encode()).hexdigest()[:16]


def passing(request: Request) -> Result:
    """Return a result with the status `pass`, captured as a single graph."""
    return Result(
        request=request,
        status=Status.PASS,
        phase=Phase.DONE,
        tier=Tier.FAKE,
        depth=Depth.REDUCED,
        graphs=1,
        graph_breaks=0,
        distinct_breaks=0,
        unattributed=0,
        durations={Phase.COMPILE.value: 0.0},
    )
