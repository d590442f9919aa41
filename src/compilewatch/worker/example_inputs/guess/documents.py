"""Dimensions of an argument in annotations, docstrings and comments of the source."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch import nn

_GROUP = re.compile(r"[(\[{]([^()\[\]{}\n]{1,80})[)\]}]")
_DIM = re.compile(r"[`'\"]?[A-Za-z_]?\w*( \w+)?(\s*[*x×/]\s*\w+)*[`'\"]?")
_TYPES = re.compile(r"tensor|optional|bool|int\b|float|str\b|list|dict|tuple|default|none", re.I)
_JAXTYPING = re.compile(
    r"(?:Float|Int|Bool|Shaped|Num|UInt8|Int64|Integer)\w*\[.*?,\s*['\"]([^'\"]+)['\"]"
)

REACH = 320
"""How far after the name of an argument its description is looked for, in characters."""


def documented_dims(module: nn.Module, name: str, annotation: str) -> Iterator[tuple[str, ...]]:
    """Yield the names of dimensions that the model's own text gives for an argument."""
    for typed in _JAXTYPING.finditer(annotation):
        dims = tuple(typed[1].replace("*", "").split())
        if dims and "..." not in dims:
            yield dims
    forward = inspect.unwrap(module.forward)
    for text in (
        _source_of(forward),
        inspect.getdoc(forward) or "",
        inspect.getdoc(type(module)) or "",
    ):
        for place in re.finditer(rf"(?m)^[^\n]*?(?<![\w.]){re.escape(name)}\s*[:(=#,`\[]", text):
            yield from _dims_in(text[place.end() - 1 : place.end() + REACH])


def _dims_in(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the first group of dimensions in a description, which ends where another begins."""
    text = re.split(
        r"\n\s*\n|\n\s*(?::param|return|Returns|\w+\s*\([^)]*\)\s*:|\w+\s*:\s)", text, maxsplit=1
    )[0]
    for group in _GROUP.finditer(text):
        words = [word.strip(" `") for word in group[1].split(",")]
        if not 1 < len(words) <= 6 or _TYPES.search(group[1]):
            continue
        if all(word and _DIM.fullmatch(word) for word in words):
            yield tuple(word.replace(" ", "_") for word in words)
            return


def _source_of(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return source[:4000]
