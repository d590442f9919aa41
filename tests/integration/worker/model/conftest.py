"""Models that a worker of an environment evaluates."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compilewatch.config import load_settings
from compilewatch.records import Depth, Mode, ModelSpec, Request, Result, Status, Target
from tests.warm import WarmLauncher, warm

Evaluate = Callable[..., list[Result]]


@pytest.fixture
def evaluate(tmp_path: Path, warm_launcher: WarmLauncher) -> Evaluate:
    """`evaluate(environment, *specs, …)` -> the verdicts of Dynamo, in any order.

    All tests of a process share the server of an environment.
    """

    def run(
        environment: str,
        *specs: ModelSpec,
        mode: Mode = Mode.EVAL,
        depth: Depth = Depth.REDUCED,
        **fields: Any,
    ) -> list[Result]:
        target = Target(mode=mode, environment=environment)
        requests = [
            Request(
                model=spec,
                target=target,
                key=spec.name.replace("/", "-"),
                depth=depth,
                keep_artifacts=False,
                **fields,
            )
            for spec in specs
        ]
        launcher = warm(environments=(environment,), cache=load_settings().cache_folder)
        results = [attempt.result for attempt in launcher.run(requests, tmp_path)]
        for result in results:
            assert result.status in (Status.PASS, Status.GRAPH_BREAK), result.detail
        return results

    return run
