"""`report/`: a run as static pages without scripts, for any browser and any file server.

Jenkins serves artifacts under `sandbox; default-src 'none'; img-src 'self'; style-src 'self'`, so
there is one external style sheet, no inline style and no script; charts are SVG files. Everything
is linked relatively: the folder can be moved, mailed or archived.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

import compilewatch
from compilewatch.analysis import summary
from compilewatch.contract.targets import target_label
from compilewatch.records import (
    Earlier,
    GraphBreak,
    Recompilation,
    Result,
    RunView,
    Status,
    reason_label,
    source_lines,
    spent,
)
from compilewatch.report import charts, commands, pages, wording
from compilewatch.report.sections import details
from compilewatch.report.wording import OUTCOME_LABELS, ResultGroup, outcome, status_words

CHART_WIDTHS = {"": 560, "-narrow": 350}
"""A chart for the desk and one for the phone: scaling one down makes its text unreadable."""

_BACKTICKS = re.compile(r"`([^`\n]+)`")
_LINE = Markup("<span>{}  {}</span>")
_MARKED_LINE = Markup("<mark>{}  {}</mark>")
_MARK = Markup(
    '<li class="badge {kind}" title="{said}">'
    '<span role="img" aria-label="{said}">{symbol}</span></li>'
)

SYMBOLS: dict[ResultGroup, str] = {
    ResultGroup.PASS: "✓",
    ResultGroup.GRAPH_BREAK: "÷",
    ResultGroup.MISMATCH: "≠",
    ResultGroup.COMPILE_ERROR: "✕",
    ResultGroup.NO_VERDICT: "?",
    ResultGroup.NOT_RUN: "–",
}

STATUS_CLASSES = wording.OUTCOME_OF | {Status.ERROR: ResultGroup.COMPILE_ERROR}
"""The colour of a status alone, where a change has no phase to go with it."""


def render(view: RunView) -> Iterator[tuple[str, bytes]]:
    """Every file of the report as (path in report/, content); the overview comes last.

    The overview is what people open and tools wait for: once it is there, its links work.
    """
    report = pages.RunReport(view)
    yield "report.css", resources.files(__package__).joinpath("report.css").read_bytes()
    yield from _charts(report)
    for model in report.models:
        yield model.page, _page("model.html", report, root="../", model=model)
    for reason in report.reasons:
        yield reason.page, _page("reason.html", report, root="../", reason=reason)
    if len(report.targets) > 1:
        yield "targets.html", _page("targets.html", report, root="")
    for name in ("families.html", "reasons.html", "changes.html", "index.html"):
        yield name, _page(name, report, root="")


def frame(
    result: Result, recompilations: Sequence[Recompilation] = (), left: Sequence[str] = ()
) -> str:
    """One result as a frame of its own in another page, such as a notebook, without scripts."""
    style = resources.files(__package__).joinpath("report.css").read_text()
    page = (
        environment()
        .get_template("check.html")
        .render(
            result=result,
            lines=list(wording.recompilation_lines(recompilations)),
            left=left,
            style=Markup(style),
        )
    )
    height = 260 + 230 * len(result.breaks) + 60 * len(recompilations) + 30 * len(left)
    frame = '<iframe sandbox srcdoc="{}" style="width: 100%; height: {}px; border: 0"></iframe>'
    return Markup(frame).format(page, min(height, 900))


def _charts(report: pages.RunReport) -> Iterator[tuple[str, bytes]]:
    legend = {outcome.value: label for outcome, label in OUTCOME_LABELS.items()}
    bars = [
        charts.Bar(label=name, parts=tuple((o.value, counts.get(o, 0)) for o in OUTCOME_LABELS))
        for name, counts in report.charted_families
    ]
    shares = [
        (moment(point.started_at).partition(",")[0], point.passed / (point.planned or 1))
        for point in report.view.trend
    ]
    for suffix, width in CHART_WIDTHS.items():
        if bars:
            chart = charts.stacked_bars("Results by model family", bars, legend, width)
            yield f"charts/families{suffix}.svg", chart
        if len(report.view.trend) >= pages.TREND_RUNS:
            yield f"charts/trend{suffix}.svg", charts.trend("Without graph breaks", shares, width)


def _page(template: str, report: pages.RunReport, **values: Any) -> bytes:
    text = environment().get_template(template).render(report=report, **values)
    return text.encode()


@cache
def environment(package: str = "compilewatch.report") -> jinja2.Environment:
    """Return the environment of the templates of a package, with the filters of the report."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {function.__name__: function for function in _filters()}
    templates.globals |= {
        "OUTCOMES": OUTCOME_LABELS,
        "MEANINGS": wording.OUTCOME_MEANINGS,
        "terms": terms,
        "CHANGES": wording.CHANGE_LABELS,
        "SYMBOLS": SYMBOLS,
        "STATUS_CLASSES": STATUS_CLASSES,
        "TREND_RUNS": pages.TREND_RUNS,
        "version": compilewatch.__version__,
    }
    return templates


def _filters() -> tuple[Callable[..., object], ...]:
    """The functions that templates apply, each by its own name."""
    return (
        wording.percent,
        wording.quantity,
        wording.seconds,
        wording.memory,
        wording.status_words,
        wording.part_words,
        wording.quantization_words,
        wording.repository_words,
        wording.outcome,
        wording.registry_page,
        reason_label,
        commands.commands,
        commands.decompressing,
        commands.compile_trace,
        wording.plural,
        wording.history_words,
        wording.message,
        wording.attempt_words,
        wording.tensor_words,
        wording.cell_words,
        wording.why,
        wording.gain,
        wording.captured_words,
        wording.fullgraph_note,
        wording.second_call_note,
        wording.leverage_headline,
        wording.leverage_notes,
        wording.step_fix_words,
        wording.verified_total_words,
        details,
        strip,
        code_spans,
        source_code,
        source_lines,
        history_marks,
        pages.anchor,
        pages.family_counts,
        sentence,
        percents,
        summary.slowest,
        summary.passed_share,
        summary.phase_seconds,
        wording.headline,
        spent,
        target_label,
        moment,
    )


def _printable(value: object) -> object:
    # Markup is a str too: what a macro made is HTML already and holds only what was printable.
    if type(value) is not str or value.isprintable():
        return value
    return wording.printable(value)


def code_spans(text: str) -> Markup:
    """Text in which what stands in backticks is code."""
    parts = _BACKTICKS.split(wording.printable(text))
    marked = (Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))
    return Markup().join(marked)


def sentence(text: str) -> str:
    """As a sentence, without touching names in it, as Jinja's `capitalize` does."""
    return f"{text[:1].upper()}{text[1:]}."


def source_code(graph_break: GraphBreak) -> Markup:
    """The stored lines around a break, numbered, its own marked."""
    lines = source_lines(graph_break)
    width = len(str(lines[-1][0])) if lines else 0
    return Markup().join(
        (_MARKED_LINE if number == graph_break.line else _LINE).format(
            f"{number:>{width}}", wording.printable(text)
        )
        for number, text in lines
    )


def history_marks(history: Sequence[Earlier]) -> Markup:
    """A mark for each run, oldest first, that names the run and what it found."""
    marks = (_mark(earlier.run, status_words(earlier), outcome(earlier)) for earlier in history)
    return Markup("".join(marks))  # each is escaped


@lru_cache(maxsize=10_000)
def _mark(run: str, words: str, kind: ResultGroup) -> Markup:
    # Most models share these: a template's loop over them takes as long as the page around it.
    label = f"{run}: {words}"
    return _MARK.format(kind=kind.value, said=label, symbol=SYMBOLS[kind])


def percents(number: float) -> str:
    """A place in an SVG image, as a share of its width."""
    return f"{number:.2f}%"


@cache
def terms(*names: str) -> Markup:
    """What these words of a page mean, in one paragraph."""
    definition = Markup("<strong>{}</strong>: {}")
    definitions = Markup(" ").join(
        definition.format(name.capitalize(), wording.TERMS[name]) for name in names
    )
    return Markup('<p class="terms">{}</p>').format(definitions)


@lru_cache(maxsize=1000)
def moment(time: str) -> str:
    """`20 Aug 2026, 03:00 UTC` of an RFC 3339 time in UTC."""
    return f"{datetime.fromisoformat(time):%-d %b %Y, %H:%M} UTC"


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
        segments = (
            f"{segment.ops} operations"
            + (f", graph break at {segment.place}" if segment.cut else "")
            for segment in self.segments
        )
        return "; ".join(segments)


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
        graph_break = result.breaks[end] if end >= 0 else None
        cut_shown = _shown(end + 1, cut_x - last[""], cut_x - last["wide"]) if graph_break else None
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
                place=f"{graph_break.file}:{graph_break.line}" if graph_break else "",
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
