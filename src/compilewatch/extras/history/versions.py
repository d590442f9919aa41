"""Evaluating models under chosen releases of torch and Transformers, with stored results.

Each evaluation that had to run is a stored run of its own, which no sink sends anywhere. A result
that any run has already, by its key, is used as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.api.run import sweep
from compilewatch.config.sections import LokiSettings, PushgatewaySettings, S3Settings
from compilewatch.config.settings import Settings
from compilewatch.launchers import Launcher
from compilewatch.plan.expectations import load_expectations
from compilewatch.plan.placement import place
from compilewatch.plan.requests import options_of, plan
from compilewatch.records import Environment, ModelSpec, Result, Target
from compilewatch.store import Store

Launch = Callable[[Settings, Sequence[str]], AbstractContextManager[Launcher]]
"""Returns the launcher of these environments; as a context manager, it closes it."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedVersion:
    """A result, and the run that has it; `reused` if that run was there before."""

    result: Result
    run: str
    reused: bool


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates models in one environment after the other. `selection` says for what."""

    store: Store
    settings: Settings
    launch: Launch
    selection: Mapping[str, Any]

    def evaluate(
        self, specs: Sequence[ModelSpec], target: Target, environment: Environment
    ) -> dict[str, EvaluatedVersion]:
        """Return the results by model name, stored ones first; `target` names no environment.

        KeyboardInterrupt, LauncherError and StoreError propagate; all finished results are stored.
        """
        settings = quiet(self.settings, environment.name)
        placed = place([target], settings.environments, [environment])
        expectations = load_expectations(Path(settings.expectations_file))
        options = options_of(settings, [environment])
        planned = plan(specs, placed, options, expectations=expectations, named=True)
        answers = {
            skipped.request.model.name: EvaluatedVersion(result=skipped, run="", reused=False)
            for skipped in planned.skipped
        }
        stored = self.store.lookup_many([request.key for request in planned.requests])
        waiting = []
        for request in planned.requests:
            if known := stored.get(request.key):
                result = msgspec.structs.replace(known.result, request=request)
                answers[request.model.name] = EvaluatedVersion(
                    result=result, run=known.run, reused=True
                )
            else:
                waiting.append(request.model)
        if waiting:
            with (
                self.store.latest_kept(),
                self.launch(settings, [environment.name]) as launcher,
            ):
                view = sweep(
                    self.store,
                    launcher,
                    waiting,
                    [target],
                    settings,
                    source=waiting[0].source,
                    selection={**self.selection, "names": [spec.name for spec in waiting]},
                )
            for result in view.results:
                name = result.request.model.name
                answers[name] = EvaluatedVersion(result=result, run=view.run.id, reused=False)
        return answers


def quiet(settings: Settings, environment: str) -> Settings:
    """The settings of a run in one environment that is compared and published nowhere."""
    return msgspec.structs.replace(
        settings,
        environments=(environment,),
        baseline="none",
        sinks=(),
        pushgateway=PushgatewaySettings(),
        loki=LokiSettings(),
        s3=S3Settings(),
    )
