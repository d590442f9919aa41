"""One model in the terminal: its results on all targets as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from compilewatch.analysis.rows import rows
from compilewatch.records import Result
from compilewatch.report import run_wording, wording
from compilewatch.report.terminal.pieces import STYLES, plain, plain_table
from compilewatch.report.wording import ResultGroup, outcome


def row_panel(results: Sequence[Result]) -> RenderableType:
    """The targets of one model in their order: the first that fails, and contradicting results."""
    table = plain_table("Target", "Mode", "Result", "Phase", "Why")
    said: list[RenderableType] = []
    for row in rows(results):
        for cell in row.cells:
            result = cell.result
            style = STYLES[ResultGroup.PASS if result is None else outcome(result)]
            first = "  <- fails first" if cell is row.first_failing else ""
            table.add_row(
                plain(cell.layer, "bold" if first else ""),
                plain(row.way.label),
                plain(run_wording.cell_words(cell) + first, style),
                plain(result.phase.value if result is not None else ""),
                plain(", ".join(wording.why(result)) if result is not None else ""),
            )
        said += [plain(f"{row.way.label}: {line}", "yellow") for line in row.disagreements]
    return Group(table, *said, Text())
