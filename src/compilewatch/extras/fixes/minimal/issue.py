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
    found = []
    for stored in store.runs():
        models: dict[str, None] = {}
        for result in stored.results():
            if any(each.fingerprint == fingerprint for each in result.breaks):
                models[result.request.model.name] = None
        if models:
            found.append(Duplicate(run=stored.run.id, models=tuple(models)))
    return tuple(found)


def draft(
    made: MinimalReproducer,
    request: Request,
    versions: Mapping[str, str],
    duplicates: Sequence[Duplicate],
) -> str:
    """The draft as Markdown; its last section is for its author, who removes it."""
    broken = made.broken
    kind = (broken.gb_type or broken.reason.splitlines()[0]).strip()
    where = f"`{broken.file}:{broken.line}`, in `{broken.function}`"
    fullgraph = "fullgraph=True" in made.source
    shown = (
        "With `fullgraph=True`, it raises an error" if fullgraph else "PyTorch logs the graph break"
    )
    sections = [
        f"# torch.compile: graph break {broken.code}: {kind}",
        f"`torch.compile` breaks the graph of `{request.model.name}` at {where}. The code below "
        f"shows the same graph break with plain PyTorch. {shown}.",
        "## Reproducer",
        f"```python\n{made.source.rstrip()}\n```",
        "## Reason",
        f"```\n{_reason(made)}\n```",
        *_explained(made),
        "## Stack of the model",
        f"```\n{_stack(made)}\n```",
        "## Versions",
        "\n".join(f"- {name}: {version}" for name, version in versions.items()),
        "## Stored duplicates",
        _duplicates(duplicates, broken.fingerprint),
    ]
    return "\n\n".join(sections) + "\n"


def _reason(made: MinimalReproducer) -> str:
    return (made.fresh.reason if made.fresh else made.broken.reason).strip()


def _explained(made: MinimalReproducer) -> list[str]:
    """What the reason lacks: torch's own text often has both."""
    broken = made.broken
    if "  Explanation: " in _reason(made):
        return []
    hints = [f"- {hint}" for hint in broken.hints]
    lines = ["## Explanation and hints of PyTorch", broken.explanation, "\n".join(hints)]
    return [line for line in lines if line] if broken.explanation or hints else []


def _stack(made: MinimalReproducer) -> str:
    lines = []
    for frame in made.broken.user_stack:
        lines.append(f"{frame.file}:{frame.line}, in {frame.function}")
        if frame.text:
            lines.append(f"    {frame.text}")
    return "\n".join(lines) or "PyTorch reported no stack."


def _duplicates(duplicates: Sequence[Duplicate], fingerprint: str) -> str:
    """This part is for the author of the issue, who removes it."""
    if not duplicates:
        return f"No stored run has another graph break with the fingerprint {fingerprint}."
    lines = [f"Stored runs with the same graph break (fingerprint {fingerprint}):", ""]
    for each in duplicates:
        named = ", ".join(each.models[:MODELS_NAMED])
        more = len(each.models) - MODELS_NAMED
        models = f"{named} and {more} more" if more > 0 else named
        lines.append(f"- run {each.run}: {len(each.models)} models: {models}")
    return "\n".join(lines)
