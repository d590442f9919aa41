"""The draft of an issue for PyTorch about one graph break. Nothing is ever sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compilewatch.extras.fixes.minimal.messages import MinimalReproducer
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
