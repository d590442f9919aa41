"""From a request to a minimal reproducer, and to the draft of an issue about it."""

import importlib.util
from pathlib import Path

import msgspec

from compilewatch import extras
from compilewatch.environments import Environments, last_line, oneshot
from compilewatch.errors import InputsError, MissingExtraError
from compilewatch.extras.fixes import records
from compilewatch.records import Request
from compilewatch.store import Store

MODELS_NAMED = 5


def write(
    environments: Environments,
    request: Request,
    *,
    at: str | None,
    issue: bool,
    outputs: Path,
    seconds: float = records.REDUCE_SECONDS,
) -> tuple[str, str]:
    """Let a worker of the request's environment write a minimal reproducer of one graph break.

    `at` is `FILE:LINE` (the end of the file's path suffices) or a code; without it, the first graph
    break is meant. `seconds` is how long its file is reduced. With `issue`, the text is a draft
    that has the file, and the duplicates in the stored runs of the folder `outputs`. Returns the
    text, and one line about it for people. Raises InputsError if there is no such graph break, or
    no file that shows it, and MissingExtraError where the package that reduces is not installed.
    """
    spec = importlib.util.find_spec("pysource_minimize")
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            "pysource_minimize is not installed, which a minimal reproducer needs: "
            f"{extras.install('fixes')}"
        )
    chosen = environments.interpreter(request.target.environment)
    content = msgspec.json.encode((request, at, seconds, spec.origin, issue))
    deadline = request.deadlines.total_seconds + records.CHOICE_SECONDS + 4 * seconds
    ended = oneshot(chosen, "minimal", content, deadline + records.FRESH_SECONDS)
    if ended.returncode != 0:
        raise InputsError(f"{request.model.name}: {last_line(ended.stderr)}")
    reproducer = msgspec.json.decode(ended.stdout, type=records.MinimalReproducer)
    if not reproducer.text:
        raise InputsError(reproducer.note)
    text = reproducer.text
    if issue:
        text += f"\n## Stored duplicates\n\n{duplicates(Store(outputs), reproducer.fingerprint)}\n"
    return text, reproducer.note


def duplicates(store: Store, fingerprint: str) -> str:
    """Name the stored runs with a graph break of this fingerprint, newest first, and the models."""
    lines = []
    for stored in store.runs():
        models = dict.fromkeys(
            result.request.model.name
            for result in stored.results()
            if any(graph_break.fingerprint == fingerprint for graph_break in result.breaks)
        )
        if models:
            more = len(models) - MODELS_NAMED
            named = ", ".join(list(models)[:MODELS_NAMED]) + (
                f" and {more} more" if more > 0 else ""
            )
            lines.append(f"\n- run {stored.run.id}: {len(models)} models: {named}")
    if not lines:
        return f"No stored run has another graph break with the fingerprint {fingerprint}."
    return "".join(
        [f"Stored runs with the same graph break (fingerprint {fingerprint}):\n", *lines]
    )
