"""Which graph breaks differ between two results of one model, side by side."""

from __future__ import annotations

from collections.abc import Callable

from compilewatch.records import GraphBreak, Result
from compilewatch.records.labels import source_line


def changed_breaks(
    old: Result, new: Result
) -> tuple[tuple[GraphBreak | None, GraphBreak | None], ...]:
    """Pairs of breaks that are not on the same line of code in both; None where one side has none.

    Paired are breaks of one fingerprint, then those of one function.
    """
    olds, news = ({(b.fingerprint, _own_line(b)): b for b in r.breaks} for r in (old, new))
    gone = [found for key, found in olds.items() if key not in news]
    added = [found for key, found in news.items() if key not in olds]
    pairs: list[tuple[GraphBreak | None, GraphBreak | None]] = []
    likenesses: tuple[Callable[[GraphBreak], object], ...] = (
        lambda found: found.fingerprint,
        lambda found: (found.file, found.function),
    )
    for alike in likenesses:
        for before in list(gone):
            after = next((each for each in added if alike(each) == alike(before)), None)
            if after is not None:
                pairs.append((before, after))
                gone.remove(before)
                added.remove(after)
    return (*pairs, *((found, None) for found in gone), *((None, found) for found in added))


def _own_line(found: GraphBreak) -> str | int:
    return source_line(found).strip() or found.line
