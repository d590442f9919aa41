"""Which release of torch or Transformers changed the result of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from compilewatch.environments import SUPPORTED_TRANSFORMERS, Environments, package_folder
from compilewatch.environments.releases import releases
from compilewatch.environments.versions import ensure
from compilewatch.errors import InterpreterError, UnknownModelError, UsageError, did_you_mean
from compilewatch.extras.history.bisection import (
    Bisection,
    Evaluated,
    Kind,
    evaluated,
    most_evaluations,
    search,
)
from compilewatch.extras.history.source_changes import changed_lines
from compilewatch.extras.history.versions import Evaluator
from compilewatch.records import Environment, ModelSpec, Record, Target

PACKAGES = ("transformers", "torch")

Choose = Callable[[str, str], ModelSpec]
"""Returns the model with a name in an environment. Raises UnknownModelError."""

Prepare = Callable[[str, str], Environment]
"""Returns an environment with these releases of torch and Transformers, and creates it if needed.
"""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is searched for. `other` is the release of the package that stays the same."""

    model: str
    target: Target
    package: str
    other: str

    def versions(self, release: str) -> tuple[str, str]:
        """Return torch and Transformers for a release of the package that is searched."""
        return (release, self.other) if self.package == "torch" else (self.other, release)


def candidates(package: str, good: str, bad: str) -> tuple[str, ...]:
    """Return the releases of a package from the good one to the bad one, which may be the older.

    Raises UsageError if one of the two does not exist, is not supported, or if they are the same.
    """
    known = [str(version) for version in releases(package)]
    if package == "transformers":
        known = [version for version in known if version in SUPPORTED_TRANSFORMERS]
    for name, version in (("good", good), ("bad", bad)):
        if version not in known:
            near = did_you_mean(version, known, most=3)
            raise UsageError(
                f"--{name} {version}: {package} has no such release with a wheel for this Python, "
                f"or it is not supported{near}; known: {known[0]} to {known[-1]}"
            )
    if good == bad:
        raise UsageError(f"--good and --bad are both {good}: name two releases")
    start, end = sorted((known.index(good), known.index(bad)))
    chosen = tuple(known[start : end + 1])
    return chosen if Version(good) < Version(bad) else chosen[::-1]


def bisect(
    question: Question,
    versions: Sequence[str],
    evaluator: Evaluator,
    *,
    choose: Choose,
    prepare: Prepare,
    report: Callable[[Evaluated, int, int], None],
) -> Bisection:
    """Search the releases `versions`; `report` is called after each evaluation, with its number.

    Environments are kept, and so are results: a search that was interrupted begins again where it
    was, at no cost.
    """
    limit, done = most_evaluations(len(versions)), 0

    def evaluate(release: str) -> Evaluated:
        nonlocal done
        found = _evaluate(question, release, evaluator, choose, prepare)
        done += 1
        report(found, done, limit)
        return found

    return search(versions, evaluate)


def _evaluate(
    question: Question, release: str, evaluator: Evaluator, choose: Choose, prepare: Prepare
) -> Evaluated:
    torch, transformers = question.versions(release)
    try:
        environment = prepare(torch, transformers)
    except (InterpreterError, UsageError) as error:
        return Evaluated(release=release, kind=Kind.UNDETERMINED, detail=str(error))
    try:
        spec = choose(question.model, environment.name)
    except UnknownModelError as error:
        return Evaluated(
            release=release,
            kind=Kind.ABSENT,
            environment=environment.name,
            detail=f"transformers {environment.transformers}: {error}",
        )
    answer = evaluator.evaluate([spec], question.target, environment)[spec.name]
    return evaluated(
        release,
        answer.result,
        environment=environment.name,
        run=answer.run or None,
        reused=answer.reused,
    )


def preparing(environments: Environments, observer: Callable[[str], None]) -> Prepare:
    """Return the usual `Prepare`, which creates environments that are missing."""
    return lambda torch, transformers: ensure(environments, torch, transformers, observer)


class FileChange(Record, frozen=True, kw_only=True):
    """The changed lines of one file of Transformers, as a unified diff."""

    file: str
    lines: tuple[str, ...]


def source_changes(
    search: Bisection, environments: Environments, limit: int
) -> tuple[FileChange, ...]:
    """Return what changed, between the two releases, in the model's file and where it breaks.

    At most `limit` lines of each file; files without a change are left out. Empty where a release
    of the pair has no environment.
    """
    if search.last is None or search.first is None:
        return ()
    pair = search.of(search.last), search.of(search.first)
    if not (pair[0].environment and pair[1].environment):
        return ()
    folders = [package_folder(environments.interpreter(each.environment)) for each in pair]
    files = {
        modeling_file(folder, each.architecture) for folder, each in zip(folders, pair, strict=True)
    }
    files |= {found.file for each in pair for found in each.breaks}
    changes = []
    for file in sorted(each for each in files if each.startswith("transformers/")):
        before, after = (_text(folder / file) for folder in folders)
        marked = [{b.line for b in each.breaks if b.file == file} for each in pair]
        lines = changed_lines(
            before, after, marked_before=marked[0], marked_after=marked[1], limit=limit
        )
        changes += [FileChange(file=file, lines=lines)] if lines else []
    return tuple(changes)


def modeling_file(packages: Path, class_name: str | None) -> str:
    """Return the file of Transformers that defines a model class, relative; empty if none does."""
    if class_name is None:
        return ""
    definition = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    for path in sorted(packages.glob("transformers/models/*/modeling_*.py")):
        if definition.search(path.read_text("utf-8")):
            return path.relative_to(packages).as_posix()
    return ""


def _text(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.is_file() else []
