"""Whether two graph breaks have the same code and the same reason.

A reason names what the code at hand contains: objects with their addresses, sources of guards,
numbers, loggers. A reproducer contains other ones, so they are left out of the comparison.
"""

from __future__ import annotations

import re
from enum import IntEnum

from compilewatch.worker.targets.dynamo.reasons import classify, innermost

_CONTEXT = re.compile(r"^  Developer debug context: (.*?)(?:\n\s*\n|\Z)", re.M | re.S)
_OF_THE_CODE = re.compile(r"(?:,? ?\b(?:args|kwargs)|(?i:source)): .*", re.S)
_OBJECT = re.compile(r"<[^<>]*>")
_NUMBER = re.compile(r"\b\d+\b")
_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_TRACE = " The branch condition involves a tensor computed as follows:"
_GIVEN_UP = "Failed to handle graph break gracefully"
_UNRESUMABLE = "Encountered graph break that we cannot resume from"


class Likeness(IntEnum):
    """How much of one graph break another one has; each level includes those below it."""

    NONE = 0
    CODE = 1
    """The code."""
    REASON = 2
    """Also the type, the explanation and the operation of the reason."""
    EXACT = 3
    """Also what Dynamo does then: it cuts the graph, or gives up the frame."""


def likeness(reason: str, other: str) -> Likeness:
    """How much the reason `other` of torch is like the reason `reason`."""
    first, second = classify(reason), classify(other)
    if first.code != second.code:
        return Likeness.NONE
    if (first.gb_type, _essence(reason)) != (second.gb_type, _essence(other)):
        return Likeness.CODE
    return Likeness.EXACT if handling(reason) == handling(other) else Likeness.REASON


def handling(reason: str) -> str:
    """What Dynamo does after a graph break: `cut`, `given up`, or `unresumable`."""
    if reason.startswith(_GIVEN_UP):
        return "given up"
    return "unresumable" if reason.startswith(_UNRESUMABLE) else "cut"


def _essence(reason: str) -> tuple[str, str]:
    """The explanation and the context of a reason, without what depends on the code at hand."""
    inner = innermost(reason)
    context = _CONTEXT.search(inner)
    operation = _OF_THE_CODE.sub("", context[1]) if context else ""
    explanation = _QUOTED.sub("''", classify(reason).explanation.partition(_TRACE)[0])
    return _without_objects(explanation), _without_objects(operation)


def _without_objects(text: str) -> str:
    before = ""
    while before != text:
        before, text = text, _OBJECT.sub("", text)
    return _NUMBER.sub("0", text)
