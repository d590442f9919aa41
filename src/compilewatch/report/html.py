"""`report/`: a run as static pages without scripts, for any browser and any file server.

Jenkins serves artifacts under `sandbox; default-src 'none'; img-src 'self'; style-src 'self'`, so
there is one external style sheet, no inline style and no script; charts are SVG files. Everything
is linked relatively: the folder can be moved, mailed or archived.
"""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property, lru_cache
from hashlib import sha256
from importlib import resources
from types import FunctionType
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

import compilewatch
from compilewatch import records
from compilewatch.analysis import summary
from compilewatch.analysis.comparison import changed_breaks
from compilewatch.analysis.leverage import By, Leverage, VerifiedFixes, verified_fixes
from compilewatch.analysis.summary import Cell, MatrixRow
from compilewatch.contract.targets import target_label
from compilewatch.report import charts, sections, wording
from compilewatch.report.wording import OUTCOME_LABELS, ResultGroup, outcome, status_words, why

CHARTED_FAMILIES = 18

FIXES_SHOWN = 10
"""Steps of what to fix first; `compilewatch leverage` lists more."""

TREND_RUNS = 3
"""Fewer runs than these are no trend."""

CHART_WIDTHS = {"": 560, "-narrow": 350}
"""A chart for the desk and one for the phone: scaling one down makes its text unreadable."""

SYMBOLS = dict(zip(OUTCOME_LABELS, "✓÷≠✕?–↗↘?", strict=True))

STATUS_CLASSES = wording.OUTCOME_OF | {records.Status.ERROR: ResultGroup.COMPILE_ERROR}
"""The colour of a status alone, where a change has no phase to go with it."""

WORST_FIRST = tuple(ResultGroup)

FAILURES = tuple(map(ResultGroup, ("compile_error", "no_verdict", "no_forecast", "not_run")))

_BACKTICKS = re.compile(r"`([^`\n]+)`")
_LINE = Markup("<span>{}  {}</span>")
_MARKED_LINE = Markup("<mark>{}  {}</mark>")
_MARK = Markup(
    '<li class="badge {kind}" title="{said}">'
    '<span role="img" aria-label="{said}">{symbol}</span></li>'
)


class RunReport:
    """A run as the templates of its report show it."""

    def __init__(self, view: records.RunView) -> None:
        results = view.results
        self.view = view
        self.figures = summary.summarise(view)
        self.models = model_pages(view)
        self.page_of = {model.spec.name: model.page for model in self.models}
        self.breaks_of = {model.spec.name: model.breaks for model in self.models}
        ordered = [result for model in self.models for result in model.results]
        self.reasons = summary.top_reasons(ordered)
        # Names are given in the order of the labels, so that a report written again has the same.
        taken: set[str] = set()
        self.reason_pages = {
            reason.label: f"reasons/{file_name(reason.breaks[0].code, taken)}"
            for reason in sorted(self.reasons, key=lambda reason: reason.label)
        }
        self.failures = _failures(ordered)
        self.targets = summary.targets_in_order(results)
        self.first_failures = summary.first_failures(r for m in self.models for r in m.rows)
        self.target_reasons = summary.reasons_by_target(view)
        self.counts = Counter(map(outcome, results))
        # The columns: those of forecasts only where there are any.
        self.outcomes = {
            kind: label
            for kind, label in OUTCOME_LABELS.items()
            if self.counts[kind] or kind not in wording.FORECAST_GROUPS
        }
        self.by_target = {
            label: Counter(outcome(r) for r in results if target_label(r.request.target) == label)
            for label in self.targets
        }
        self.families = {
            name: tuple(model for model in self.models if model.spec.family == name)
            for name in summary.by_family(view)
        }
        # Models under the worst of their verdicts, and under their forecasts.
        kinds = {
            k: tuple(
                m
                for m in self.models
                if m.worst is k or (k in wording.FORECAST_GROUPS and m.under(k))
            )
            for k in WORST_FIRST
        }
        self.sections = {kind: models for kind, models in kinds.items() if models}
        by_downloads = sorted(view.changes, key=lambda c: (-(c.downloads or 0), c.model))
        self.changes = {
            kind: [change for change in by_downloads if change.kind is kind]
            for kind in records.ChangeKind
        }
        # What to fix first, by line and by id; empty where no model has a graph break.
        ranked = (Leverage(results, by=by, top=FIXES_SHOWN) for by in By)
        steps_of = {steps.by: steps for steps in ranked if steps.fixes}
        self.specialising = steps_of.pop(By.COMPILATIONS, None)
        self.leverage = tuple(steps_of.values())
        # Those with compilations of the standard trace, most compilations first.
        self.compiled = tuple(
            sorted(
                (result for result in results if result.traces),
                key=lambda result: (-_most_compilations(result), result.request.model.name),
            )
        )
        # Two models of one configuration are evaluated once, and the other's result names this run.
        self.own_runs = (None, view.run.id, *view.run.merged_from)
        self._fixes = {(fix.model, fix.target): fix for fix in view.fixes}
        self._environments = {
            environment.name: environment for environment in view.run.environments
        }
        self._results = {(r.request.model.name, r.request.target): r for r in results}

    @property
    def charted_families(self) -> tuple[tuple[str, Counter[ResultGroup]], ...]:
        """Results by outcome of the families that pass least, then of the most downloaded.

        None where no family has several results: a chart of single results says nothing.
        """
        every = ((name, family_counts(models)) for name, models in self.families.items())
        counts = [(name, Counter(shared_counts(results))) for name, results in every]
        if all(results.total() == 1 for _, results in counts):
            return ()
        counts.sort(key=lambda family: family[1][ResultGroup.PASS] / family[1].total())
        return tuple(counts[:CHARTED_FAMILIES])

    def verified(self, steps: Leverage) -> VerifiedFixes | None:
        """What is verified of the steps of a table; None where no fixes were searched."""
        return verified_fixes(steps, self.view.results, self.view.fixes)

    def fix_of(self, result: records.Result) -> records.ModelFix | None:
        """What was found against the graph breaks of a result; None where nothing was searched."""
        return self._fixes.get((result.request.model.name, result.request.target))

    def source_page(
        self,
        place: records.GraphBreak | records.StackFrame | records.ErrorRecord,
        target: records.Target,
    ) -> str:
        """The page of a line on GitHub; "" where there is none."""
        environment = self._environments.get(target.environment)
        return wording.source_page(place.file, place.line, environment) or ""

    def history(self, result: records.Result) -> tuple[records.Earlier, ...]:
        """What stored runs found for this model and target, this one last; empty if it is first."""
        request = result.request
        earlier = self.view.history.get((request.model.name, target_label(request.target)), ())
        own = records.Earlier(self.view.run.id, result.status, result.phase)
        return (*earlier, own) if earlier else ()

    def changed_breaks(
        self, model: str, target: records.Target
    ) -> tuple[tuple[records.GraphBreak | None, records.GraphBreak | None], ...]:
        """Breaks before and after a change, where either side kept its code."""
        old, new = self.view.before.get((model, target)), self._results.get((model, target))
        if old is None or new is None:
            return ()
        pairs = changed_breaks(old, new)
        return tuple(pair for pair in pairs if any(b and records.source_lines(b) for b in pair))[:5]


@dataclass(frozen=True, kw_only=True)
class ModelPage:
    """One model with its results in the order of the layers; `worst` sorts it."""

    page: str
    results: tuple[records.Result, ...]
    changes: tuple[records.Change, ...]

    @property
    def spec(self) -> records.ModelSpec:
        return self.results[0].request.model

    @property
    def worst(self) -> ResultGroup:
        return min((outcome(result) for result in self.results), key=WORST_FIRST.index)

    @property
    def by_target(self) -> dict[str, records.Result]:
        return {target_label(result.request.target): result for result in self.results}

    @cached_property
    def rows(self) -> tuple[MatrixRow, ...]:
        return summary.matrix_rows(self.results)

    @property
    def first_failing(self) -> tuple[tuple[MatrixRow, Cell], ...]:
        """For each way in which it failed, the row and its first failing layer."""
        firsts = ((row, row.first_failing) for row in self.rows)
        return tuple((row, cell) for row, cell in firsts if cell is not None)

    def first_mark(self, result: records.Result) -> str:
        """`fails first` on the result that a row's first failure is of, else nothing."""
        for _, cell in self.first_failing:
            if cell.result is result:
                own = cell.layer == result.request.target.name
                return "fails first" if own else "fails in eager"
        return ""

    @property
    def tiers(self) -> str:
        """`fake, full`; each kind of result once. Nothing ran where there are no durations."""
        kinds = {f"{r.tier.value}, {r.depth.value}": None for r in self.results if r.durations}
        return "; ".join(kinds) or "–"

    def under(self, kind: ResultGroup) -> list[records.Result]:
        """The results that a section about an outcome shows: its forecasts, or all that fail."""
        if kind in (*wording.FORECAST_GROUPS, ResultGroup.PASS):
            return [result for result in self.results if outcome(result) == kind]
        return [result for result in self.results if outcome(result) is not ResultGroup.PASS]

    def why(self, kind: ResultGroup) -> str:
        """Their causes, in few words."""
        return ", ".join(dict.fromkeys(cause for r in self.under(kind) for cause in why(r)))

    @property
    def seconds(self) -> float:
        return sum(records.spent(result) for result in self.results)

    @property
    def compilations(self) -> str:
        """Of the standard trace, as called and with `dynamic=True`: `5 / 3`."""
        words = (wording.compilations_words(result, short=True) for result in self.results)
        return ", ".join(filter(None, words))

    @property
    def breaks(self) -> int | None:
        counts = [r.graph_breaks for r in self.results if r.graph_breaks is not None]
        return sum(counts) if counts else None


def model_pages(view: records.RunView) -> tuple[ModelPage, ...]:
    """The pages of all models, the most downloaded first."""
    results: dict[str, list[records.Result]] = defaultdict(list)
    for result in view.results:
        results[result.request.model.name].append(result)
    changes: dict[str, list[records.Change]] = defaultdict(list)
    for change in view.changes:
        changes[change.model].append(change)
    # File names are given in the order of the names, so that a report written again has the same.
    taken: set[str] = set()
    pages = [
        ModelPage(
            page=f"models/{file_name(name, taken)}",
            results=tuple(
                sorted(results[name], key=lambda r: summary.target_order(r.request.target))
            ),
            changes=tuple(changes[name]),
        )
        for name in sorted(results)
    ]
    return tuple(sorted(pages, key=lambda page: (-(page.spec.downloads or 0), page.spec.name)))


def file_name(name: str, taken: set[str]) -> str:
    """A file name that is safe in a URL and on any file system, unlike all in `taken`.

    Names that differ only in case, or in what was replaced, get a digest of the name.
    """
    safe = re.sub(r"[^A-Za-z0-9_.-]", "-", name.replace("/", "--")).lstrip(".-")[:100] or "model"
    if safe.casefold() in taken:
        safe += f"-{sha256(name.encode()).hexdigest()[:8]}"
    taken.add(safe.casefold())
    return f"{safe}.html"


class Failure(NamedTuple):
    """Results that failed alike: a code of an error, or the status where there is none."""

    outcome: ResultGroup
    code: str
    results: tuple[records.Result, ...]


def _failures(results: Iterable[records.Result]) -> tuple[Failure, ...]:
    alike: defaultdict[tuple[ResultGroup, str], list[records.Result]] = defaultdict(list)
    for result in results:
        code = result.error.code if result.error else result.status.value
        alike[outcome(result), code].append(result)
    failures = (Failure(*key, tuple(members)) for key, members in alike.items())
    return tuple(
        sorted(
            (failure for failure in failures if failure.outcome in FAILURES),
            key=lambda f: (FAILURES.index(f.outcome), -len(f.results), f.code),
        )
    )


def render(view: records.RunView) -> Iterator[tuple[str, bytes]]:
    """Every file of the report as (path in report/, content); the overview comes last.

    The overview is what people open and tools wait for: once it is there, its links work.
    """
    report = RunReport(view)
    yield "report.css", resources.files(__package__).joinpath("report.css").read_bytes()
    yield from _charts(report)
    for model in report.models:
        yield model.page, _page("model.html", report, root="../", model=model)
    for reason in report.reasons:
        page = report.reason_pages[reason.label]
        yield page, _page("reason.html", report, root="../", reason=reason)
    if len(report.targets) > 1:
        yield "targets.html", _page("targets.html", report)
    if report.compiled:
        yield "shapes.html", _page("shapes.html", report)
    for name in ("families.html", "reasons.html", "changes.html", "index.html"):
        yield name, _page(name, report)


def _most_compilations(result: records.Result) -> int:
    return max(figures.compilations for figures in result.traces.values())


def frame(result: records.Result, left: Sequence[str] = ()) -> str:
    """One result as a frame of its own in another page, such as a notebook, without scripts."""
    page = (
        environment()
        .get_template("check.html")
        .render(
            result=result,
            again=list(wording.recompilation_lines(result.recompilations)),
            left=left,
            style=Markup(resources.files(__package__).joinpath("report.css").read_text()),
        )
    )
    height = 260 + 230 * len(result.breaks) + 60 * len(result.recompilations) + 30 * len(left)
    frame = '<iframe sandbox srcdoc="{}" style="width: 100%; height: {}px; border: 0"></iframe>'
    return Markup(frame).format(page, min(height, 900))


def _charts(report: RunReport) -> Iterator[tuple[str, bytes]]:
    legend = {outcome.value: label for outcome, label in report.outcomes.items()}
    bars = [
        charts.Bar(label=name, parts=tuple((o.value, counts.get(o, 0)) for o in report.outcomes))
        for name, counts in report.charted_families
    ]
    shares = [
        (f"{records.started(point.run):%-d %b %Y}", point.passed / (point.planned or 1))
        for point in report.view.trend
    ]
    for suffix, width in CHART_WIDTHS.items():
        if bars:
            chart = charts.stacked_bars("Results by model family", bars, legend, width)
            yield f"charts/families{suffix}.svg", chart
        if len(report.view.trend) >= TREND_RUNS:
            yield f"charts/trend{suffix}.svg", charts.trend("Without graph breaks", shares, width)


def _page(template: str, report: RunReport, root: str = "", **values: Any) -> bytes:
    page = environment().get_template(template)
    return page.render(report=report, root=root, **values).encode()


@cache
def environment(package: str = "compilewatch.report") -> jinja2.Environment:
    """Return the environment of the templates of a package.

    Its filters are the functions of this module and those that it takes words and figures from.
    """
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for namespace in map(vars, (records, summary, sections, wording, sys.modules[__name__])):
        templates.filters |= {
            name: function
            for name, function in namespace.items()
            if isinstance(function, FunctionType) and function.__module__.startswith("compilewatch")
        }
    templates.filters["moment"] = moment  # a cache, and no function
    templates.globals |= {
        "OUTCOMES": OUTCOME_LABELS,
        "FORECASTS": wording.FORECAST_GROUPS,
        "MEANINGS": wording.OUTCOME_MEANINGS,
        "terms": terms,
        "RECOMPILATIONS": wording.RECOMPILATION_KINDS,
        "CHANGES": wording.CHANGE_LABELS,
        "SYMBOLS": SYMBOLS,
        "STATUS_CLASSES": STATUS_CLASSES,
        "TREND_RUNS": TREND_RUNS,
        "version": compilewatch.__version__,
    }
    return templates


def _printable(value: object) -> object:
    # Markup is a str too: what a macro made is HTML already and holds only what was printable.
    if type(value) is not str or value.isprintable():
        return value
    return wording.printable(value)


def shared_counts(counts: Mapping[ResultGroup, int]) -> dict[ResultGroup, int]:
    """The counts that make up a bar: of verdicts, or of forecasts where there is nothing else."""
    alone = bool(counts) and all(kind in wording.FORECAST_GROUPS for kind in counts if counts[kind])
    return {k: counts.get(k, 0) for k in OUTCOME_LABELS if (k in wording.FORECAST_GROUPS) is alone}


def family_counts(models: Iterable[ModelPage]) -> Counter[ResultGroup]:
    """Results by outcome."""
    return Counter(outcome(result) for model in models for result in model.results)


def outcome_columns(outcomes: Mapping[ResultGroup, str]) -> list[str]:
    """The columns of results by outcome; a narrow page has passes and graph breaks alone."""
    usual = (ResultGroup.PASS, ResultGroup.GRAPH_BREAK)
    return [
        f"{wording.FORECAST_GROUPS.get(kind, label).capitalize()}"
        f"|number{'' if kind in usual else ' wide'}"
        for kind, label in outcomes.items()
    ]


def anchor(label: str) -> str:
    """The id of a target's section on the page of a model."""
    return "on-" + re.sub(r"[^A-Za-z0-9_.-]", "-", label)


def code_spans(text: str) -> Markup:
    """Text in which what stands in backticks is code."""
    parts = _BACKTICKS.split(wording.printable(text))
    marked = (Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))
    return Markup().join(marked)


def sentence(text: str) -> str:
    """As a sentence, without touching names in it, as Jinja's `capitalize` does."""
    return f"{text[:1].upper()}{text[1:]}."


def source_code(graph_break: records.GraphBreak) -> Markup:
    """The stored lines around a break, numbered, its own marked."""
    lines = records.source_lines(graph_break)
    width = len(str(lines[-1][0])) if lines else 0
    return Markup().join(
        (_MARKED_LINE if number == graph_break.line else _LINE).format(
            f"{number:>{width}}", wording.printable(text)
        )
        for number, text in lines
    )


def history_marks(history: Sequence[records.Earlier]) -> Markup:
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


STRIP_PIXELS, DIGIT_PIXELS = 800, 8
"""The width of a strip on a wide page, which alone has its numbers, and of a digit."""


def strip(result: records.Result) -> dict[str, Any] | None:
    """The captured graphs of a result in order, to be drawn as a strip.

    None where it has one graph without a break, or none was recorded. Each of `segments` is a
    graph; its `cut` numbers the break that it ended in, from 1 as listed, and is 0 for none;
    `ops_shown` and `cut_shown` say whether there is space for the number. `cuts` are (number,
    break, how often) in the strip; `elsewhere` counts breaks that ended no graph, since nothing had
    been captured before them; `described` is the strip in words.
    """
    ends = [end if 0 <= end < len(result.breaks) else -1 for end in result.graph_ends]
    count = len(ends)
    if not count or ends == [-1]:
        return None
    # Every graph can be seen and so can every cut, also where there are hundreds of them.
    gap, least = min(1.2, 40 / count), min(0.8, 30 / count)
    scale = (100 - gap * count - least * count) / (sum(result.graph_ops) or 1)
    segments: list[dict[str, Any]] = []
    words: list[str] = []
    x, last = 0.0, -100.0
    for ops, end in zip(result.graph_ops, ends, strict=True):
        width = least + ops * scale
        cut_x = x + width + gap / 3
        place, cut_shown = "", False
        words.append(f"{ops} operations")
        if end >= 0:
            graph_break = result.breaks[end]
            place = f"{graph_break.file}:{graph_break.line}"
            words[-1] += f", graph break at {place}"
            cut_shown = _fits(end + 1, cut_x - last)
        last = cut_x if cut_shown else last
        segments.append({"x": x, "width": width, "ops": ops, "ops_shown": _fits(ops, width)})
        segments[-1] |= {"cut": end + 1, "cut_x": cut_x, "cut_shown": cut_shown, "place": place}
        x += width + gap
    counts = Counter(end for end in ends if end >= 0)
    total = result.graph_breaks or 0
    return {
        "segments": segments,
        "cut_width": gap / 3,
        "cuts": [(end + 1, result.breaks[end], counts[end]) for end in sorted(counts)],
        "elsewhere": total - counts.total() if result.graphs == count else 0,
        "described": "; ".join(words),
    }


def _fits(number: int, width: float) -> bool:
    """Whether a number fits into so many percent of a strip."""
    return width * STRIP_PIXELS >= 100 * (len(str(number)) + 1) * DIGIT_PIXELS
