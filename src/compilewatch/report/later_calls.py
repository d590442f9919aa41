"""What calls of a compiled model after the first one met, in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compilewatch.records import Recompilation, Result
from compilewatch.report.wording import plural


def second_call_note(result: Result) -> str:
    """What the second call of the compiled model met beyond the first; "" if nothing."""
    found = result.second_call
    if found is None:
        return ""
    said = []
    if found.graph_breaks:
        places = (f"{each.code} at {each.file}:{each.line}" for each in found.breaks)
        said.append(f"{plural(found.graph_breaks, 'graph break')} ({', '.join(places)})")
    if found.recompilations:
        said.append(plural(found.recompilations, "recompilation"))
    if found.error:
        said.append(found.error)
    return f"second call, with equal inputs: {', '.join(said)}"


def recompilation_lines(found: Iterable[Recompilation]) -> Iterator[str]:
    """Each recompilation: the call, the frame, and each guard that failed, with its values."""
    for each in found:
        yield f"call {each.call} compiled {each.function} again, {each.file}:{each.line}"
        yield from (f"  {guard}" for guard in each.guards)
