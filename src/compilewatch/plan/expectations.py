"""Reviewed exceptions: which models are known not to pass, why, and since when.

`data/expectations.toml` contains `[[expectation]]` tables, and so does a project's own file, which
comes first. An expectation that no longer holds is reported, so that the list stays current. The
model still runs, unless the line says `skip`.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

import msgspec
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from compilewatch import data
from compilewatch.contract.targets import target_label
from compilewatch.records import (
    ClassBuild,
    ConfigBuild,
    Environment,
    Phase,
    Request,
    Result,
    Status,
)


class Expectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reviewed line.

    `model` is a model's name or its class. `target` is a label (`dynamo/train`) or the name of a
    target for all its modes; None means every target. A label applies in every environment unless
    it names one (`dynamo/train@xla`). `phase` narrows `status`. `torch` and `transformers` are PEP
    440 specifiers; with other versions the line does not apply. `skip` means that the model does
    not run at all, because it would harm the machine or the sweep.
    """

    model: str
    status: Status
    reason: str
    date: datetime.date
    target: str | None = None
    phase: Phase | None = None
    torch: str | None = None
    transformers: str | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise ValueError("an expectation needs a `reason`")
        for name in ("torch", "transformers"):
            try:
                SpecifierSet(getattr(self, name) or "")
            except InvalidSpecifier as error:
                raise ValueError(f"`{name}` is not a version specifier: {error}") from None

    def concerns(self, request: Request, environment: Environment) -> bool:
        """Whether the line applies to this request in this environment."""
        if self.model != request.model.name and self.model != _class_name(request):
            return False
        target = request.target
        label = target_label(target)
        if self.target not in (None, target.name, label, label.partition("@")[0]):
            return False
        return _within(self.torch, environment.torch) and _within(
            self.transformers, environment.transformers
        )

    def holds(self, result: Result) -> bool:
        return result.status is self.status and self.phase in (None, result.phase)


class Expectations(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of the file. The first line that applies to a request decides."""

    schema_version: int = 1
    expectation: tuple[Expectation, ...] = ()

    def of(self, request: Request, environment: Environment) -> Expectation | None:
        return next((e for e in self.expectation if e.concerns(request, environment)), None)

    def judge(self, result: Result, environment: Environment) -> Result:
        """Return the result with the reason of the expectation that it meets, or with None."""
        expected = self.of(result.request, environment)
        reason = expected.reason if expected is not None and expected.holds(result) else None
        if reason == result.expectation:
            return result
        return msgspec.structs.replace(result, expectation=reason)

    def stale(
        self, results: Iterable[Result], environments: Iterable[Environment]
    ) -> list[tuple[Expectation, Result]]:
        """Return the expectations that were tested and no longer hold, with the new results."""
        known = {environment.name: environment for environment in environments}
        failed = []
        for result in results:
            environment = known.get(result.request.target.environment)
            if environment is None or result.status is Status.SKIPPED:
                continue
            expected = self.of(result.request, environment)
            if expected is not None and not expected.holds(result):
                failed.append((expected, result))
        return failed


def load_expectations(path: Path | None) -> Expectations:
    """Read a project's own expectations, if there are any, and the shipped ones.

    Raises ConfigError.
    """
    files = data.read(path, data.EXPECTATIONS, Expectations)
    return Expectations(expectation=tuple(line for file in files for line in file.expectation))


def stale_note(expected: Expectation, result: Result) -> str:
    """Return one line about an expectation that no longer holds, with the actual result."""
    status = f"{expected.status.value}" + (f" in {expected.phase.value}" if expected.phase else "")
    return (
        f"{expected.model} [{target_label(result.request.target)}]: expected {status} "
        f"({expected.reason}, {expected.date}) but the result is {result.status.value} in "
        f"{result.phase.value}; update expectations.toml, or add a line to your own"
    )


def _class_name(request: Request) -> str | None:
    build = request.model.build
    class_name = build.class_name if isinstance(build, ClassBuild | ConfigBuild) else None
    return class_name or request.model.architecture


def _within(specifier: str | None, version: str | None) -> bool:
    if specifier is None:
        return True
    return version is not None and SpecifierSet(specifier).contains(version, prereleases=True)
