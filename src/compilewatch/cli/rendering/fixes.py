"""What to fix first, as a table in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from compilewatch.analysis.leverage import FixableCause, Leverage, VerifiedFixes
from compilewatch.report.terminal import plain, plain_table, spaced
from compilewatch.report.wording import (
    gain,
    leverage_headline,
    leverage_notes,
    plural,
    quantity,
    step_fix_words,
    verified_total_words,
)


def fixes_table(leverage: Leverage, verified: VerifiedFixes | None = None) -> RenderableType:
    """The steps, best first, between what breaks and what the columns mean.

    With `verified`, another column names the changes that are verified for each step.
    """
    heading = plain(leverage_headline(leverage), "bold")
    if not leverage.broken:
        return heading
    columns = ["Verified fix"] if verified is not None else []
    table = plain_table("", "Models", "Downloads", "In all", "At most", "Fix", *columns)
    for column in table.columns[:5]:
        column.justify = "right"
    for number, fix in enumerate(leverage.fixes, start=1):
        table.add_row(
            plain(f"{number}."),
            plain(gain(fix), "bold green"),
            plain(quantity(fix.downloads)),
            plain(f"{fix.total_models:,}"),
            plain(f"{fix.affected:,}"),
            Group(
                *(_cause(cause, number > 0) for number, cause in enumerate(fix.causes)),
                plain(f"such as {fix.models[0]}", "dim"),
            ),
            *_verified(verified, number),
        )
    lines = [plain(line, "dim") for line in leverage_notes(leverage)]
    if verified is not None:
        lines.append(plain(verified_total_words(verified.total), "bold"))
    return spaced([heading, *([table] if leverage.fixes else []), Group(*lines)])


def _verified(verified: VerifiedFixes | None, number: int) -> list[RenderableType]:
    if verified is None:
        return []
    step = verified.steps[number - 1]
    return [plain(step_fix_words(step), "green" if step is not None else "dim")]


def _cause(cause: FixableCause, further: bool) -> RenderableType:
    lines = [plain(("and " if further else "") + cause.label, "yellow"), plain(cause.place)]
    if cause.places > 1:
        lines.append(plain(f"and {plural(cause.places - 1, 'other place')}"))
    elif cause.source:
        lines.append(plain(f"> {cause.source}", "dim"))
    return Group(*lines)
