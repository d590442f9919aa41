"""The fixes of a run as text: how many, by what, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Group, RenderableType

from compilewatch.analysis.leverage import VerifiedTotal
from compilewatch.extras.fixes.of_run.records import FixState, RunFix
from compilewatch.report.terminal.pieces import plain, plain_table, spaced
from compilewatch.report.wording import plural, quantity, verified_total_words

STATE_WORDS: Mapping[FixState, str] = {
    FixState.VERIFIED: "verified",
    FixState.IMPROVES: "improves only",
    FixState.CAPTURED: "captured, not verified",
    FixState.NOTHING: "no fix",
    FixState.NO_VERDICT: "no verdict",
    FixState.NOT_SEARCHED: "not searched",
}
STATE_STYLES: Mapping[FixState, str] = {
    FixState.VERIFIED: "green",
    FixState.IMPROVES: "yellow",
    FixState.CAPTURED: "yellow",
    FixState.NOTHING: "red",
    FixState.NO_VERDICT: "red",
    FixState.NOT_SEARCHED: "dim",
}


@dataclass(frozen=True, kw_only=True)
class RunFixSummary:
    """The fixes of a run: models and targets by state with their downloads, and what they give.

    `places` are the distinct fingerprints of the graph breaks, `removed` those that a verified fix
    removes from one model at least. `searches` counts the searches; the others got by with changes
    that were known. `seconds` is the time of all searches and trials together.
    """

    run: str
    states: Mapping[FixState, int]
    downloads: Mapping[FixState, int | None]
    places: int
    removed: int
    searches: int
    evaluations: int
    seconds: float
    total: VerifiedTotal | None
    fixes: tuple[RunFix, ...]
    notes: tuple[str, ...] = ()


def summary_text(found: RunFixSummary) -> RenderableType:
    """What `fix --all-of` prints at its end."""
    table = plain_table("Graph breaks", "Models", "Downloads")
    for column in table.columns[1:]:
        column.justify = "right"
    for state, count in found.states.items():
        if count:
            words = plain(STATE_WORDS[state], STATE_STYLES[state])
            table.add_row(words, plain(f"{count:,}"), plain(quantity(found.downloads[state])))
    parts: list[RenderableType] = [table]
    if found.total is not None and found.total.changes:
        changes = plain_table("Part of verified fixes", "Models")
        changes.columns[1].justify = "right"
        for each in found.total.changes:
            changes.add_row(plain(each.name), plain(f"{each.models:,}"))
        parts.append(changes)
    lines = [plain(f"note: {note}", "yellow") for note in found.notes]
    if found.total is not None:
        lines.append(plain(verified_total_words(found.total), "bold"))
    counts = (
        f"{found.removed:,} of {plural(found.places, 'place')} removed",
        plural(found.searches, "search", "searches"),
        plural(found.evaluations, "evaluation"),
        f"{found.seconds:,.0f} s",
    )
    lines.append(plain("; ".join(counts), "dim"))
    return spaced([*parts, Group(*lines)])
