"""From a request to a minimal reproducer, and to the draft of an issue about it."""

import importlib.util

import msgspec

from compilewatch import extras
from compilewatch.environments import Environments, last_line, oneshot
from compilewatch.errors import InputsError, MissingExtraError
from compilewatch.extras.fixes import records
from compilewatch.records import Request


def write(
    environments: Environments,
    request: Request,
    *,
    at: str | None,
    issue: bool,
    seconds: float = records.REDUCE_SECONDS,
) -> tuple[str, str]:
    """Let a worker of the request's environment write a minimal reproducer of one graph break.

    `at` is `FILE:LINE` (the end of the file's path suffices) or a code; without it, the first graph
    break is meant. `seconds` is how long its file is reduced. With `issue`, the text is a draft
    that has the file. Returns the text, and one line about it for people. Raises InputsError if
    there is no such graph break, or no file that shows it, and MissingExtraError where the package
    that reduces is not installed.
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
    text, note = msgspec.json.decode(ended.stdout, type=records.MinimalReproducer)
    if not text:
        raise InputsError(note)
    return text, note
