"""From a request to a minimal reproducer, and to the draft of an issue about it."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from compilewatch import extras
from compilewatch.environments import Environments, last_line, oneshot
from compilewatch.errors import InputsError, MissingExtraError
from compilewatch.extras.fixes.records import (
    CHOICE_SECONDS,
    FRESH_SECONDS,
    MinimalOrder,
    MinimalOutcome,
    MinimalReproducer,
)
from compilewatch.records import Record, Request
from compilewatch.store import Store

MODELS_NAMED = 5


class Duplicate(Record, frozen=True, kw_only=True):
    """A stored run in which the graph break also occurred, and the models that have it."""

    run: str
    models: tuple[str, ...]


def stored_duplicates(store: Store, fingerprint: str) -> tuple[Duplicate, ...]:
    """The stored runs with a graph break of this fingerprint, newest first."""
    duplicates = []
    for stored in store.runs():
        models: dict[str, None] = {}
        for result in stored.results():
            if any(graph_break.fingerprint == fingerprint for graph_break in result.breaks):
                models[result.request.model.name] = None
        if models:
            duplicates.append(Duplicate(run=stored.run.id, models=tuple(models)))
    return tuple(duplicates)


def draft(
    reproducer: MinimalReproducer,
    request: Request,
    versions: Mapping[str, str],
    duplicates: Sequence[Duplicate],
) -> str:
    """The draft as Markdown; its last section is for its author, who removes it."""
    broken = reproducer.broken
    kind = (broken.gb_type or broken.reason.splitlines()[0]).strip()
    where = f"`{broken.file}:{broken.line}`, in `{broken.function}`"
    fullgraph = "fullgraph=True" in reproducer.source
    shown = (
        "With `fullgraph=True`, it raises an error" if fullgraph else "PyTorch logs the graph break"
    )
    sections = [
        f"# torch.compile: graph break {broken.code}: {kind}",
        f"`torch.compile` breaks the graph of `{request.model.name}` at {where}. The code below "
        f"shows the same graph break with plain PyTorch. {shown}.",
        "## Reproducer",
        f"```python\n{reproducer.source.rstrip()}\n```",
        "## Reason",
        f"```\n{_reason(reproducer)}\n```",
        *_explained(reproducer),
        "## Stack of the model",
        f"```\n{_stack(reproducer)}\n```",
        "## Versions",
        "\n".join(f"- {name}: {version}" for name, version in versions.items()),
        "## Stored duplicates",
        _duplicates(duplicates, broken.fingerprint),
    ]
    return "\n\n".join(sections) + "\n"


def _reason(reproducer: MinimalReproducer) -> str:
    return (reproducer.fresh.reason if reproducer.fresh else reproducer.broken.reason).strip()


def _explained(reproducer: MinimalReproducer) -> list[str]:
    """What the reason lacks: torch's own text often has both."""
    broken = reproducer.broken
    if "  Explanation: " in _reason(reproducer):
        return []
    hints = [f"- {hint}" for hint in broken.hints]
    lines = ["## Explanation and hints of PyTorch", broken.explanation, "\n".join(hints)]
    return [line for line in lines if line] if broken.explanation or hints else []


def _stack(reproducer: MinimalReproducer) -> str:
    lines = []
    for frame in reproducer.broken.user_stack:
        lines.append(f"{frame.file}:{frame.line}, in {frame.function}")
        if frame.text:
            lines.append(f"    {frame.text}")
    return "\n".join(lines) or "PyTorch reported no stack."


def _duplicates(duplicates: Sequence[Duplicate], fingerprint: str) -> str:
    """This part is for the author of the issue, who removes it."""
    if not duplicates:
        return f"No stored run has another graph break with the fingerprint {fingerprint}."
    lines = [f"Stored runs with the same graph break (fingerprint {fingerprint}):", ""]
    for duplicate in duplicates:
        named = ", ".join(duplicate.models[:MODELS_NAMED])
        more = len(duplicate.models) - MODELS_NAMED
        models = f"{named} and {more} more" if more > 0 else named
        lines.append(f"- run {duplicate.run}: {len(duplicate.models)} models: {models}")
    return "\n".join(lines)


REDUCER = "pysource_minimize"


class Written(NamedTuple):
    """The requested text, and one line about it for people."""

    text: str
    note: str


def write(
    environments: Environments,
    request: Request,
    *,
    at: str | None,
    issue: bool,
    outputs: Path,
) -> Written:
    """A minimal reproducer of one graph break of a model, or with `issue` a draft that has it.

    `at` is `FILE:LINE` or a code, and `outputs` the folder of stored runs, in which the draft looks
    for duplicates. Raises InputsError if there is no such graph break, or no file that shows it.
    """
    outcome = order(environments, MinimalOrder(request=request, at=at))
    (reproducer,) = outcome.reproducers
    place = f"{reproducer.broken.code} at {reproducer.broken.file}:{reproducer.broken.line}"
    if not reproducer.source or reproducer.failure:
        raise InputsError(f"no minimal reproducer of {place}: {reproducer.failure}")
    same = "the same reason" if reproducer.succeeded else "another reason"
    note = (
        f"{place}: {reproducer.lines} lines, made from {reproducer.form}; in a fresh process it "
        f"shows {reproducer.broken.code} with {same} ({reproducer.checks} candidates in "
        f"{reproducer.seconds:.0f} s)"
    )
    if not issue:
        return Written(text=reproducer.source, note=note)
    duplicates = stored_duplicates(Store(outputs), reproducer.broken.fingerprint)
    return Written(text=draft(reproducer, request, outcome.versions, duplicates), note=note)


def order(environments: Environments, complete: MinimalOrder) -> MinimalOutcome:
    """Let a worker of the request's environment write reproducers.

    Raises InputsError, or MissingExtraError where the package that reduces is not installed.
    """
    complete = msgspec.structs.replace(complete, reducer=reducer_file())
    request = complete.request
    chosen = environments.interpreter(request.target.environment)
    each = CHOICE_SECONDS + 4 * complete.seconds + FRESH_SECONDS
    seconds = request.deadlines.total_seconds + each * max(len(complete.breaks), 1)
    done = oneshot(chosen, "minimal", msgspec.json.encode(complete), seconds)
    if done.returncode != 0:
        raise InputsError(f"{request.model.name}: {last_line(done.stderr)}")
    return msgspec.json.decode(done.stdout, type=MinimalOutcome)


def reducer_file() -> str:
    """The file of the package pysource_minimize. Raises MissingExtraError."""
    spec = importlib.util.find_spec(REDUCER)
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            f"{REDUCER} is not installed, which a minimal reproducer needs: "
            f"{extras.install('fixes')}"
        )
    return spec.origin
