"""One function, from outside, without editing it.

It is replaced by a reviewed function that does the same by operators that a graph can hold, or it
is traced without Dynamo. Whether the model still computes the same is decided by the script,
unusual inputs included.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.candidates import NOT_LIBRARIES, Place, Proposer
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.extras.fixes.rewriting.changes import module_of
from compilewatch.records import GraphBreak


@dataclass(frozen=True, kw_only=True)
class _Replacement:
    """A function by module and name, what takes its place, and the source lines that call it."""

    module: str
    name: str
    by: Callable[..., Any]
    called: str
    summary: str
    holds_if: tuple[str, ...]


_REPLACEMENTS = (
    _Replacement(
        module="torch",
        name="_check_tensor_all",
        by=replacements.asserted_in_graph,
        called=r"torch\._check_tensor_all(_with)?\(|torch_compilable_check",
        summary="torch._check_tensor_all becomes an assertion in the graph, which is checked when "
        "the graph runs. It raises RuntimeError.",
        holds_if=(
            "Nobody catches the error by its text; on an accelerator it is raised after the call.",
        ),
    ),
)


class FunctionsProposer(Proposer):
    def propose(self, breaks: Sequence[GraphBreak], place: Place, /) -> Iterator[FixChange]:
        for replacement in _REPLACEMENTS:
            if any(re.search(replacement.called, _text(graph_break)) for graph_break in breaks):
                yield _replaced(replacement)
        for graph_break in breaks:
            if not _OTHERWISE.search(graph_break.reason) and (
                named := _function_of(graph_break, place)
            ):
                yield traced(*named)


_OTHERWISE = re.compile(
    r"data.dependent|depends on input|Tensor\.item|tolist|_local_scalar_dense|logging|print",
    re.IGNORECASE,
)
"""Reasons that remain where Dynamo does not trace, and those that a setting is for."""


def _function_of(graph_break: GraphBreak, place: Place) -> tuple[str, str] | None:
    """The module and the name of the innermost function on the stack that a module defines.

    Methods get an object, and functions that are defined in others exist once for each call of
    those: neither can be traced without Dynamo.
    """
    for frame in reversed(graph_break.user_stack):
        source = None if NOT_LIBRARIES.match(frame.file) else place.source_of(frame.file)
        if source is not None and frame.function in _defined(source):
            return module_of(frame.file), frame.function
    return None


def _defined(source: str) -> set[str]:
    """The functions that the body of a module defines; none of a text that is not Python."""
    try:
        body = ast.parse(source).body
    except SyntaxError:
        return set()
    return {statement.name for statement in body if isinstance(statement, ast.FunctionDef)}


def traced(module: str, name: str) -> FixChange:
    """Return the change by which Dynamo does not read a function of a module."""
    return FixChange(
        name=f"{module}.{name} traced without Dynamo",
        kind=FixKind.FUNCTION,
        summary=f"{name} is run with tensors that record operators (nonstrict_trace), which may do "
        "what Dynamo cannot read. What else it does, such as a lock, a message or a count, it does "
        "when the model is compiled, and not at each call.",
        imports=(
            "import functools",
            "import importlib",
            "import sys",
            "from collections.abc import Callable",
            "from contextlib import ExitStack",
            "from typing import Any",
            "from unittest import mock",
        ),
        definitions=(
            inspect.getsource(replacements.nonstrict),
            inspect.getsource(replacements.trace_without_dynamo),
        ),
        lines=(f"trace_without_dynamo(stack, {module!r}, {name!r})",),
        once=True,
        functions=(f"{module}:{name}",),
        holds_if=(
            f"What {name} reads besides its arguments stays as it is when the model is compiled, "
            "for there is no guard.",
            f"What {name} does besides computing tensors need not happen at each call.",
            f"{name} decides nothing on the values of tensors.",
        ),
    )


def _text(graph_break: GraphBreak) -> str:
    """The source around a break and the functions that lead to it."""
    return "\n".join([*graph_break.source, *(frame.function for frame in graph_break.user_stack)])


def _replaced(replacement: _Replacement) -> FixChange:
    return FixChange(
        name=f"{replacement.module}.{replacement.name} replaced",
        kind=FixKind.FUNCTION,
        summary=replacement.summary,
        imports=(
            f"import {replacement.module}",
            "from typing import Any",
            "from unittest import mock",
        ),
        definitions=(inspect.getsource(replacement.by),),
        lines=(
            f"stack.enter_context(mock.patch.object({replacement.module}, {replacement.name!r}, "
            f"{replacement.by.__name__}))",
        ),
        holds_if=replacement.holds_if,
    )
