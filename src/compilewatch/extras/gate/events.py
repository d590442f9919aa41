"""The event of the gate: the log names what the metrics only count."""

from __future__ import annotations

from compilewatch.events import Event

MEANINGS: dict[str, str] = {
    "place": "`file:line` of a new graph break, relative to the repository",
    "models": "the models that meet it, separated by commas",
}


class NewBreak(Event, frozen=True, kw_only=True, tag="gate_break"):
    """A run of a team's list met a graph break in own code that its baseline does not hold."""

    place: str
    function: str
    reason: str
    models: str


EVENTS: tuple[type[Event], ...] = (NewBreak,)
