"""The changed lines of a file between two releases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import SequenceMatcher

CONTEXT_LINES = 2

Group = list[tuple[str, int, int, int, int]]


def changed_lines(
    before: Sequence[str],
    after: Sequence[str],
    *,
    marked_before: Collection[int] = (),
    marked_after: Collection[int] = (),
    limit: int = 60,
) -> tuple[str, ...]:
    """Return a unified diff without its heading: at most `limit` lines, and how many are left out.

    Parts with a marked line (counted from 1) come first: the places of graph breaks are most likely
    to be of interest. The other parts keep their order.
    """
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    groups = list(matcher.get_grouped_opcodes(CONTEXT_LINES))

    def unmarked(group: Group) -> bool:
        old = range(group[0][1] + 1, group[-1][2] + 1)
        new = range(group[0][3] + 1, group[-1][4] + 1)
        return not any(n in old for n in marked_before) and not any(n in new for n in marked_after)

    ordered = sorted(groups, key=unmarked)
    lines = [line for group in ordered for line in _lines(group, before, after)]
    left = len(lines) - limit
    return (*lines[:limit], *([f"… and {left} more lines"] if left > 0 else []))


def _lines(group: Group, before: Sequence[str], after: Sequence[str]) -> list[str]:
    old, new = group[0][1], group[0][3]
    found = [f"@@ -{old + 1},{group[-1][2] - old} +{new + 1},{group[-1][4] - new} @@"]
    for tag, old_start, old_end, new_start, new_end in group:
        if tag == "equal":
            found += (f" {line}" for line in before[old_start:old_end])
            continue
        found += (f"-{line}" for line in before[old_start:old_end])
        found += (f"+{line}" for line in after[new_start:new_end])
    return found
