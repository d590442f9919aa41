"""The strip of graphs: where the call of a model was cut, and how much is captured between cuts.

Places and widths are percentages of the strip, which the page draws as wide as it is itself: text
keeps its size on a phone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from compilewatch.records import GraphBreak, Result

PHONE_PIXELS, DESK_PIXELS = 330, 800
"""Minimum width of the strip. A number that does not fit on a phone is shown on wide pages only."""

DIGIT_PIXELS = 8


@dataclass(frozen=True, kw_only=True)
class StripSegment:
    """One captured graph. `cut` numbers the break that it ended in, from 1 as listed; 0 for none.

    `ops_shown` and `cut_shown` are the style class of the number, None if there is no space for it.
    """

    x: float
    width: float
    ops: int
    ops_shown: str | None
    cut: int
    cut_x: float
    cut_shown: str | None
    place: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    """The graphs of a result in order; `cuts` are (number, break, how often) in the strip.

    `elsewhere` counts breaks that ended no graph, since nothing had been captured before them.
    """

    segments: tuple[StripSegment, ...]
    cut_width: float
    cuts: tuple[tuple[int, GraphBreak, int], ...]
    elsewhere: int

    @property
    def described(self) -> str:
        """The strip in words."""
        said = (
            f"{each.ops} operations" + (f", graph break at {each.place}" if each.cut else "")
            for each in self.segments
        )
        return "; ".join(said)


def strip(result: Result) -> Strip | None:
    """The strip of a result; None where it has one graph without a break, or none was recorded."""
    ends = [end if 0 <= end < len(result.breaks) else -1 for end in result.graph_ends]
    count = len(ends)
    if not count or ends == [-1]:
        return None
    # Every graph can be seen and so can every cut, also where there are hundreds of them.
    gap, least = min(1.2, 40 / count), min(0.8, 30 / count)
    scale = (100 - gap * count - least * count) / (sum(result.graph_ops) or 1)
    segments: list[StripSegment] = []
    x, last = 0.0, {"": -100.0, "wide": -100.0}
    for ops, end in zip(result.graph_ops, ends, strict=True):
        width = least + ops * scale
        cut_x = x + width + gap / 3
        found = result.breaks[end] if end >= 0 else None
        cut_shown = _shown(end + 1, cut_x - last[""], cut_x - last["wide"]) if found else None
        for style in {None: (), "wide": ("wide",), "": ("", "wide")}[cut_shown]:
            last[style] = cut_x
        segments.append(
            StripSegment(
                x=x,
                width=width,
                ops=ops,
                ops_shown=_shown(ops, width, width),
                cut=end + 1,
                cut_x=cut_x,
                cut_shown=cut_shown,
                place=f"{found.file}:{found.line}" if found else "",
            )
        )
        x += width + gap
    counts = Counter(end for end in ends if end >= 0)
    cuts = tuple((end + 1, result.breaks[end], counts[end]) for end in sorted(counts))
    total = result.graph_breaks or 0
    elsewhere = total - counts.total() if result.graphs == count else 0
    return Strip(segments=tuple(segments), cut_width=gap / 3, cuts=cuts, elsewhere=elsewhere)


def _shown(number: int, on_phone: float, on_desk: float) -> str | None:
    """The style class of a number that has so many percent of the strip on either page."""
    needed = 100 * (len(str(number)) + 1) * DIGIT_PIXELS
    if on_desk * DESK_PIXELS < needed:
        return None
    return "" if on_phone * PHONE_PIXELS >= needed else "wide"
