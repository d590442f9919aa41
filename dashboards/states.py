"""The states of a result on every dashboard: a number, a symbol with words, a colour."""

from __future__ import annotations

from typing import Any, NamedTuple

from dashboards.queries import of_mode

GREEN, ORANGE, RED, PURPLE, GREY = "#37872d", "#cf5f08", "#c4162a", "#8f3bb8", "#6b7079"
"""Dark enough for white words, light enough on a dark page."""

Mapping = dict[str, Any]
"""Grafana's: which values are shown as which text, in which colour."""


class State(NamedTuple):
    """A status, or an error's phase; `text` distinguishes it without colours."""

    status: str
    text: str
    colour: str
    phase: str = ""


STATES = (
    State("pass", "✓ pass", GREEN),
    State("skipped", "○ skipped", GREY),
    State("unsupported", "○ unsupported", GREY),
    State("timeout", "○ timeout", GREY),
    State("oom", "○ out of memory", GREY),
    State("crashed", "○ crashed", GREY),
    State("error", "○ not compiled", GREY, 'phase!~"compile|compare"'),
    State("graph_break", "▲ graph break", ORANGE),
    State("mismatch", "≠ mismatch", PURPLE),
    State("error", "✗ error", RED, 'phase=~"compile|compare"'),
)
"""From best to worst. An error before the compiler was reached is not a verdict, hence grey."""


def codes(by: str, *matchers: str) -> str:
    """The worst state of each group, as its place in `STATES`, from 1."""
    parts = [
        of_mode("compilewatch_model_status", f'status="{s.status}"', s.phase, *matchers)
        + (f" * {code}" if code > 1 else "")
        for code, s in enumerate(STATES, start=1)
    ]
    # Each `or` reads all on its left again, hence the many that pass come last.
    return f"max by ({by}) ({' or '.join(reversed(parts))})"


def value(texts: dict[str, tuple[str, str]]) -> Mapping:
    """A value -> its text and colour."""
    results = {
        key: {"text": text, "color": colour, "index": index}
        for index, (key, (text, colour)) in enumerate(texts.items())
    }
    return {"type": "value", "options": results}


def between(low: float, high: float | None, text: str, colour: str) -> Mapping:
    """All values from `low` to `high`."""
    result = {"text": text, "color": colour, "index": int(low)}
    return {"type": "range", "options": {"from": low, "to": high, "result": result}}


def missing(text: str, colour: str = "text") -> list[Mapping]:
    """The text of a cell without a value. (`null+nan` would treat every word as a NaN.)"""
    result = {"text": text, "index": 99, "color": colour}
    return [
        {"type": "special", "options": {"match": match, "result": result}}
        for match in ("null", "empty")
    ]


NEARLY_ALL = {
    "type": "range",
    "options": {"from": 0.9995, "to": 0.9999999, "result": {"text": ">99.9 %", "index": 0}},
}
"""A share that is not 1 and would be rounded to it."""

BY_CODE = [between(c, c + 0.99, s.text, s.colour) for c, s in enumerate(STATES, start=1)]
"""Of `codes`; what is added below one orders equal states."""

BY_NAME = [value({s.status: (s.text, s.colour) for s in STATES})]
"""Of the label `status`."""
