"""Attributes of a model that hold one number in a tensor or in a scalar of NumPy, as Python values.

Dynamo takes both for tensors, so that a branch on one is a branch on data. A Python value is a
constant of the graph, which Dynamo guards on.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence

from compilewatch.extras.fixes import replacements
from compilewatch.extras.fixes.candidates import NOT_LIBRARIES, Place, Proposer
from compilewatch.extras.fixes.records import FixChange, FixKind
from compilewatch.records import GraphBreak

_READS_VALUE = re.compile(r"data.dependent|Tensor\.item|tolist", re.IGNORECASE)
"""Reasons of breaks at a line that needs the value of a tensor."""


class AttributesProposer(Proposer):
    def propose(self, breaks: Sequence[GraphBreak], place: Place, /) -> Iterator[FixChange]:
        """Propose what the line of a break reads of `self` and only `__init__` assigns."""
        for graph_break in breaks:
            if not _READS_VALUE.search(graph_break.reason) or NOT_LIBRARIES.match(graph_break.file):
                continue
            source = place.source_of(graph_break.file)
            for name in () if source is None else _constants(source, graph_break.line):
                yield as_python_value(name)


def _constants(source: str, line: int) -> list[str]:
    """The attributes of `self` that a line reads, if `__init__` assigns them and nothing else does.

    What is assigned elsewhere may be a count or a state, which a Python value would lose.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    read = [
        attribute.attr
        for attribute in attributes
        if _is_read_of_self(attribute) and attribute.lineno == line
    ]
    first = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "__init__"
        for node in ast.walk(function)
    }
    stored = [attribute for attribute in attributes if not isinstance(attribute.ctx, ast.Load)]
    begun = {node.attr for node in stored if node in first}
    changed = {node.attr for node in stored if node not in first}
    return [name for name in dict.fromkeys(read) if name in begun - changed]


def _is_read_of_self(node: ast.Attribute) -> bool:
    owner = node.value
    return isinstance(node.ctx, ast.Load) and isinstance(owner, ast.Name) and owner.id == "self"


def as_python_value(name: str) -> FixChange:
    """Return the change by which attributes of this name are Python values during the call."""
    return FixChange(
        name=f"{name} as a Python value",
        kind=FixKind.USAGE,
        summary=f"Attributes {name} of the model and its modules that hold one number, in a tensor "
        "or in a scalar of NumPy, are Python values during the call, which Dynamo guards on.",
        imports=(
            "import sys",
            "from contextlib import ExitStack",
            "from typing import Any",
        ),
        definitions=(
            inspect.getsource(replacements.hold_as_python_value),
            inspect.getsource(replacements.put_back),
        ),
        lines=(f"hold_as_python_value(stack, model, {name!r})",),
        attributes=(name,),
        holds_if=(
            f"Nothing else holds the tensor in {name} and changes it in place during a call.",
            f"{name} seldom has new values: each costs a compilation.",
        ),
    )
