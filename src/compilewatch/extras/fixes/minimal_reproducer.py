"""From a request to a minimal reproducer, and to the draft of an issue about it."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import msgspec

from compilewatch import extras
from compilewatch.environments import Environments, last_line, oneshot
from compilewatch.errors import InputsError, MissingExtraError
from compilewatch.extras.fixes import records
from compilewatch.records import Request, reason_title
from compilewatch.store import Store

MODELS_NAMED = 5


def write(
    environments: Environments, request: Request, *, at: str | None, issue: bool, outputs: Path
) -> tuple[str, str]:
    """A minimal reproducer of one graph break of a model, or with `issue` a draft that has it.

    `at` is `FILE:LINE` or a code, and `outputs` the folder of stored runs, in which the draft looks
    for duplicates. Returns the text, and one line about it for people. Raises InputsError if there
    is no such graph break, or no file that shows it.
    """
    reproducer = order(environments, request, at=at)
    broken = reproducer.broken
    place = f"{broken.code} at {broken.file}:{broken.line}"
    if not reproducer.source or reproducer.failure:
        raise InputsError(f"no minimal reproducer of {place}: {reproducer.failure}")
    same = "the same reason" if reproducer.succeeded else "another reason"
    note = (
        f"{place}: {reproducer.lines} lines, made from {reproducer.form}; in a fresh process it "
        f"shows {broken.code} with {same} ({reproducer.checks} candidates in "
        f"{reproducer.seconds:.0f} s)"
    )
    if not issue:
        return reproducer.source, note
    duplicates = stored_duplicates(Store(outputs), broken.fingerprint)
    return draft(reproducer, request, duplicates), note


def order(
    environments: Environments,
    request: Request,
    *,
    at: str | None = None,
    seconds: float = records.REDUCE_SECONDS,
) -> records.MinimalReproducer:
    """Let a worker of the request's environment write a reproducer.

    `at` is `FILE:LINE` (the end of the file's path suffices) or a code; without it, the first graph
    break is meant. `seconds` is how long its file is reduced. Raises InputsError, or
    MissingExtraError where the package that reduces is not installed.
    """
    spec = importlib.util.find_spec("pysource_minimize")
    if spec is None or spec.origin is None:
        raise MissingExtraError(
            "pysource_minimize is not installed, which a minimal reproducer needs: "
            f"{extras.install('fixes')}"
        )
    chosen = environments.interpreter(request.target.environment)
    content = msgspec.json.encode((request, at, seconds, spec.origin))
    deadline = request.deadlines.total_seconds + records.CHOICE_SECONDS + 4 * seconds
    ended = oneshot(chosen, "minimal", content, deadline + records.FRESH_SECONDS)
    if ended.returncode != 0:
        raise InputsError(f"{request.model.name}: {last_line(ended.stderr)}")
    return msgspec.json.decode(ended.stdout, type=records.MinimalReproducer)


def stored_duplicates(store: Store, fingerprint: str) -> dict[str, list[str]]:
    """The stored runs with a graph break of this fingerprint, newest first, and their models."""
    duplicates = {}
    for stored in store.runs():
        models = dict.fromkeys(
            result.request.model.name
            for result in stored.results()
            if any(graph_break.fingerprint == fingerprint for graph_break in result.breaks)
        )
        if models:
            duplicates[stored.run.id] = list(models)
    return duplicates


def draft(
    reproducer: records.MinimalReproducer, request: Request, duplicates: Mapping[str, list[str]]
) -> str:
    """The draft as Markdown; its last section is for its author, who removes it."""
    broken = reproducer.broken
    reason = (reproducer.reason or broken.reason).strip()
    kind = reason_title(broken)
    where = f"`{broken.file}:{broken.line}`, in `{broken.function}`"
    fullgraph = "fullgraph=True" in reproducer.source
    shown = (
        "With `fullgraph=True`, it raises an error" if fullgraph else "PyTorch logs the graph break"
    )
    hints = "\n".join(f"- {hint}" for hint in broken.hints)
    explained = [text for text in (broken.explanation, hints) if text]
    if explained and "  Explanation: " not in reason:  # torch's own text often has both
        explained = ["## Explanation and hints of PyTorch", *explained]
    else:
        explained = []
    stack: list[str] = []
    for frame in broken.user_stack:
        stack.append(f"{frame.file}:{frame.line}, in {frame.function}")
        stack += [f"    {frame.text}"] if frame.text else []
    same = f"No stored run has another graph break with the fingerprint {broken.fingerprint}."
    if duplicates:
        same = f"Stored runs with the same graph break (fingerprint {broken.fingerprint}):\n"
    for run, models in duplicates.items():
        named = ", ".join(models[:MODELS_NAMED])
        more = len(models) - MODELS_NAMED
        same += f"\n- run {run}: {len(models)} models: {named}"
        same += f" and {more} more" if more > 0 else ""
    sections = [
        f"# torch.compile: graph break {broken.code}: {kind}",
        f"`torch.compile` breaks the graph of `{request.model.name}` at {where}. The code below "
        f"shows the same graph break with plain PyTorch. {shown}.",
        "## Reproducer",
        f"```python\n{reproducer.source.rstrip()}\n```",
        "## Reason",
        f"```\n{reason}\n```",
        *explained,
        "## Stack of the model",
        "\n".join(["```", *(stack or ["PyTorch reported no stack."]), "```"]),
        "## Versions",
        "\n".join(f"- {name}: {version}" for name, version in reproducer.versions.items()),
        "## Stored duplicates",
        same,
    ]
    return "\n\n".join(sections) + "\n"
