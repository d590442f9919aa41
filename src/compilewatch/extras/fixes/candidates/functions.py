"""One function, replaced from outside without editing it, by a reviewed replacement.

A replacement does what the function does, by operators that a graph can hold. Whether that is true
of a model is decided by the proof, unusual inputs included.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.candidates import Place, Proposer
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.records import GraphBreak


@dataclass(frozen=True, kw_only=True)
class _Replacement:
    """A function by module and name, what takes its place, and the source lines that call it."""

    module: str
    name: str
    by: Callable[..., Any]
    called: str
    summary: str


_REPLACEMENTS = (
    _Replacement(
        module="torch",
        name="_check_tensor_all",
        by=replacements.asserted_in_graph,
        called=r"torch\._check_tensor_all(_with)?\(|torch_compilable_check",
        summary="torch._check_tensor_all becomes an assertion in the graph, which is checked when "
        "the graph runs. It raises RuntimeError.",
    ),
)


class FunctionsProposer(Proposer):
    def propose(self, breaks: Sequence[GraphBreak], _: Place, /) -> Iterator[FixChange]:
        for each in _REPLACEMENTS:
            if any(re.search(each.called, _text(found)) for found in breaks):
                yield _replaced(each)


def _text(found: GraphBreak) -> str:
    """The source around a break and the functions that lead to it."""
    return "\n".join([*found.source, *(frame.function for frame in found.user_stack)])


def _replaced(each: _Replacement) -> FixChange:
    return FixChange(
        name=f"{each.module}.{each.name} replaced",
        kind=FixKind.FUNCTION,
        summary=each.summary,
        imports=(f"import {each.module}", "from typing import Any", "from unittest import mock"),
        definitions=(inspect.getsource(each.by),),
        lines=(
            f"stack.enter_context(mock.patch.object({each.module}, {each.name!r}, "
            f"{each.by.__name__}))",
        ),
    )
