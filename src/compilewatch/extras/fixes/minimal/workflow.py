"""From a request to a minimal reproducer, and to the draft of an issue about it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import msgspec

from compilewatch import extras
from compilewatch.environments import Environments, last_line, oneshot
from compilewatch.errors import InputsError, MissingExtraError
from compilewatch.extras.fixes.minimal.issue import draft, stored_duplicates
from compilewatch.extras.fixes.minimal.messages import (
    CHOICE_SECONDS,
    FRESH_SECONDS,
    MinimalOrder,
    MinimalOutcome,
)
from compilewatch.records import Request
from compilewatch.store import Store

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


def order(environments: Environments, wanted: MinimalOrder) -> MinimalOutcome:
    """Let a worker of the request's environment write reproducers.

    Raises InputsError, or MissingExtraError where the package that reduces is not installed.
    """
    wanted = msgspec.structs.replace(wanted, reducer=reducer_file())
    request = wanted.request
    chosen = environments.interpreter(request.target.environment)
    each = CHOICE_SECONDS + 4 * wanted.seconds + FRESH_SECONDS
    seconds = request.deadlines.total_seconds + each * max(len(wanted.breaks), 1)
    done = oneshot(chosen, "minimal", msgspec.json.encode(wanted), seconds)
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
