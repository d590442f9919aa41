"""What to fix first, as a table in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from compilewatch.analysis.leverage import By, FixableCause, Leverage
from compilewatch.analysis.predictions import PredictionCheck
from compilewatch.analysis.verified_fixes import VerifiedFixes
from compilewatch.report.leverage import (
    gain,
    leverage_headline,
    leverage_notes,
    step_fix_words,
    verified_total_words,
)
from compilewatch.report.terminal.pieces import plain, plain_table, spaced
from compilewatch.report.wording import percent, plural, quantity


def fixes_table(found: Leverage, verified: VerifiedFixes | None = None) -> RenderableType:
    """The steps, best first, between what breaks and what the columns mean.

    With `verified`, another column names the changes that are verified for each step.
    """
    heading = plain(leverage_headline(found), "bold")
    if not found.broken:
        return heading
    columns = ["Verified fix"] if verified is not None else []
    table = plain_table("", "Models", "Downloads", "In all", "At most", "Fix", *columns)
    for column in table.columns[:5]:
        column.justify = "right"
    for number, fix in enumerate(found.fixes, start=1):
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
    lines = [plain(line, "dim") for line in leverage_notes(found)]
    if verified is not None:
        lines.append(plain(verified_total_words(verified.total), "bold"))
    return spaced([heading, *([table] if found.fixes else []), Group(*lines)])


def _verified(verified: VerifiedFixes | None, number: int) -> list[RenderableType]:
    if verified is None:
        return []
    step = verified.steps[number - 1]
    return [plain(step_fix_words(step), "green" if step is not None else "dim")]


def check_text(found: PredictionCheck) -> RenderableType:
    """What came true of a prediction, and the models for which it did not."""
    unit = "lines" if found.by is By.LINE else "ids"
    right, predicted = len(found.right), len(found.right) + len(found.wrong)
    kept = found.rid - len(found.revealed)
    facts = (
        ("models with a verdict in both runs", f"{found.models:,}"),
        ("with graph breaks before", f"{found.broken:,}"),
        ("of these without any now", f"{len(found.fixed):,}"),
        (f"causes ({unit}) gone from every model", f"{found.gone:,} of {found.causes:,}"),
        ("models with these causes only", f"{predicted:,}"),
        ("of these without breaks now", f"{right:,} ({percent(found.precision)})"),
        ("still break", ", ".join(found.wrong) or "none"),
        ("models rid of all their causes", f"{found.rid:,}"),
        ("of these without breaks now", f"{kept:,} ({percent(found.rid_share)})"),
        ("another break came to light", ", ".join(found.revealed) or "none"),
    )
    width = max(len(name) for name, _ in facts)
    return Group(*(plain(f"{name:<{width}}  {value}") for name, value in facts))


def _cause(cause: FixableCause, further: bool) -> RenderableType:
    lines = [plain(("and " if further else "") + cause.label, "yellow"), plain(cause.place)]
    if cause.places > 1:
        lines.append(plain(f"and {plural(cause.places - 1, 'other place')}"))
    elif cause.source:
        lines.append(plain(f"> {cause.source}", "dim"))
    return Group(*lines)
