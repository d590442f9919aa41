"""Who changed each verdict between two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType

from compilewatch.contract.targets import target_label
from compilewatch.extras.history.attribution import Attribution, ChangeCause
from compilewatch.report.terminal.pieces import plain, plain_table, spaced

CAUSE_LABELS = {
    ChangeCause.TORCH: "torch",
    ChangeCause.TRANSFORMERS: "Transformers",
    ChangeCause.INTERACTION: "both together",
    ChangeCause.HARNESS: "compilewatch",
    ChangeCause.NOT_DETERMINED: "not determined",
}


def attributions_table(found: Sequence[Attribution]) -> RenderableType:
    """A row for each change between two verdicts, and how many have which cause."""
    if not found:
        return plain("No verdict changed, so that there is nothing to attribute.")
    table = plain_table("Changed by", "Model", "Target", "Change", "Why", gap=2)
    for each in found:
        change = " -> ".join(side.value if side else "none" for side in (each.before, each.after))
        table.add_row(
            plain(
                CAUSE_LABELS[each.cause],
                "dim" if each.cause is ChangeCause.NOT_DETERMINED else "bold",
            ),
            plain(each.model),
            plain(target_label(each.target)),
            plain(change),
            plain(each.detail),
        )
    counts = Counter(each.cause for each in found)
    words = ", ".join(
        f"{CAUSE_LABELS[cause]} {counts[cause]}" for cause in ChangeCause if counts[cause]
    )
    return spaced([table, plain(f"Changed by: {words}.")])
