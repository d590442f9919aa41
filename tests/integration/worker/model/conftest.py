"""Models that a worker of an environment evaluates."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compilewatch.config import load_settings
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Depth, Mode, ModelSpec, Request, Result, Target


def evaluated(
    specs: Iterable[ModelSpec],
    environment: str,
    scratch: Path,
    mode: Mode = Mode.EVAL,
    depth: Depth = Depth.REDUCED,
    **fields: Any,
) -> list[Result]:
    """The results of Dynamo for these models, in the order in which they were finished."""
    requests = [
        Request(
            model=spec,
            target=Target(mode=mode, environment=environment),
            key=spec.name.replace("/", "-"),
            depth=depth,
            keep_artifacts=False,
            **fields,
        )
        for spec in specs
    ]
    cache = load_settings().cache_folder
    with LocalLauncher(1, (environment,), cache=cache) as launcher:
        return [attempt.result for attempt in launcher.run(requests, scratch)]
