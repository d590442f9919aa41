"""Checks of models by name: each is built and called in a process of its own, on example inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compilewatch.api.check import CheckResult, with_numerics
from compilewatch.api.launching import local_launcher
from compilewatch.api.selection import Selection, choose_models, described, environments_for
from compilewatch.config.settings import Settings, load_settings
from compilewatch.extras.gate.own_code import located, source_folders
from compilewatch.plan.placement import place
from compilewatch.plan.requests import check_targets, options_of, plan, targets_of
from compilewatch.records import FactoryBuild, Mode, ModelSpec, Plan, Request, Result, Status


@dataclass(frozen=True, kw_only=True)
class NamedChecks:
    """Which models are checked, and how. Names are those of `compilewatch explain`.

    With `manifest`, all models of that file are checked, too. `environment` names one with another
    torch (None: that of the target), `limits` are further settings.
    """

    root: Path
    names: Sequence[str] = ()
    manifest: Path | None = None
    mode: Mode = Mode.EVAL
    backend: str = "eager"
    dynamic: bool | None = None
    numerics: bool = False
    jobs: int | None = None
    environment: str | None = None
    limits: Mapping[str, object] = field(default_factory=dict)

    def run(self) -> Iterator[tuple[str, CheckResult, tuple[str, ...] | None]]:
        """Yield each model with its result and the file of its factory, as they come.

        There is no file for a model of a library, and None if it does not lie on this machine.
        Raises errors of names and settings.
        """
        settings = load_settings(
            {
                **self.limits,
                "jobs": self.jobs,
                "models_file": str(self.manifest) if self.manifest else None,
                "environments": [self.environment] if self.environment else None,
            }
        )
        planned = self._plan(settings)
        models = {request.model.name: request.model for request in planned.requests}
        waiting: dict[str, dict[str, Result]] = {}
        for result in _results(planned, settings):
            name = result.request.model.name
            by_target = waiting.setdefault(name, {})
            by_target[result.request.target.name] = result
            captured = by_target.get("dynamo")
            if captured is None or (self.numerics and len(by_target) < 2):
                continue
            compared = captured.status in (Status.PASS, Status.GRAPH_BREAK)
            if self.numerics and compared:
                captured = with_numerics(captured, by_target["inductor"])
            folders = self._folders(models.get(name, captured.request.model))
            files = located(files_of(captured), folders)
            yield (
                name,
                CheckResult(result=captured, files=files),
                self._code(models.get(name), folders),
            )

    def _plan(self, settings: Settings) -> Plan:
        backend = "" if self.backend == "eager" else f":{self.backend}"
        labels = [f"dynamo{backend}", *([f"inductor{backend}"] if self.numerics else ())]
        targets = targets_of(
            labels,
            [self.mode],
            self.dynamic,
            settings.nested_graph_breaks,
            devices=settings.devices,
            dtype=settings.named_dtype,
        )
        check_targets(targets)
        known = described([target.name for target in targets], settings)
        placed = place(targets, settings.environments, known)
        named = bool(settings.environments)
        return plan(self._models(settings), placed, options_of(settings, known), named=named)

    def _models(self, settings: Settings) -> tuple[ModelSpec, ...]:
        models: list[ModelSpec] = []
        if self.names:
            chosen = Selection(names=list(self.names))
            specs, _ = choose_models(settings, chosen, python_path=self._own_folders())
            models += specs
        if self.manifest is not None:
            listed = load_settings({"source": "manifest", "models_file": str(self.manifest)})
            specs, _ = choose_models(listed, Selection(every=True))
            models += specs
        return tuple({spec.name: spec for spec in models}.values())

    def _own_folders(self) -> tuple[Path, ...]:
        return tuple(folder for folder in source_folders(self.root) if folder.is_dir())

    def _code(self, model: ModelSpec | None, folders: Sequence[Path]) -> tuple[str, ...] | None:
        if model is None or not isinstance(model.build, FactoryBuild):
            return ()
        module = model.build.factory.partition(":")[0].replace(".", "/")
        return tuple(located((f"{module}.py", f"{module}/__init__.py"), folders).values()) or None

    def _folders(self, model: ModelSpec) -> tuple[Path, ...]:
        build = model.build
        further = build.python_path if isinstance(build, FactoryBuild) else ()
        return source_folders(self.root, further)


def _results(planned: Plan, settings: Settings) -> Iterator[Result]:
    yield from planned.skipped
    names = environments_for({r.target.name for r in planned.requests}, settings)
    requests: list[Request] = list(planned.requests)
    if not requests:
        return
    with (
        tempfile.TemporaryDirectory(prefix="compilewatch-") as scratch,
        local_launcher(settings, names, single=len(requests) == 1) as launcher,
    ):
        for completed in launcher.run(requests, Path(scratch)):
            yield completed.result


def files_of(result: Result) -> set[str]:
    """The files that the breaks of a result name."""
    second = result.second_call.breaks if result.second_call is not None else ()
    breaks = (*result.breaks, *second)
    files = {graph_break.file for graph_break in breaks}
    return files | {frame.file for graph_break in breaks for frame in graph_break.user_stack}
