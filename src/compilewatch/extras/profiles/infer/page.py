"""The page of a profile: script-free HTML with SVG charts, in the style of a run's report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources

from compilewatch.extras.profiles.infer import analysis
from compilewatch.extras.profiles.infer import words as words
from compilewatch.extras.profiles.infer.charts import PANELS, charts
from compilewatch.extras.profiles.infer.records import BreakCost, InferenceProfile, Samples
from compilewatch.extras.profiles.infer.report_files import answers, facts, operators_of
from compilewatch.records import GraphBreak
from compilewatch.report.html import CHART_WIDTHS, environment, source_code

PAGE = "report.html"
OPERATORS_SHOWN = 15


def render(profile: InferenceProfile, samples: Sequence[Samples]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the page and of everything that it shows; the page comes last."""
    yield "report.css", resources.files("compilewatch.report").joinpath("report.css").read_bytes()
    made = dict(charts(profile, samples, CHART_WIDTHS))
    yield from made.items()
    broken = analysis.broken(profile)
    point = broken[1] if broken is not None else None
    operators = sorted(operators_of(profile), key=lambda o: -o.self_cpu_seconds)
    text = (
        environment("compilewatch.extras.profiles.infer")
        .get_template("profile.html")
        .render(
            profile=profile,
            facts=[(name, value) for name, value in facts(profile) if name != "Software"],
            answers=answers(profile),
            panels=[p for p in PANELS if f"charts/{p.name}.svg" in made],
            has_call="charts/call.svg" in made,
            has_spread="charts/spread.svg" in made,
            best=analysis.fastest(profile),
            costly=point,
            costly_target=broken[0].target if broken is not None else "",
            sources={cost.fingerprint: _source(cost) for cost in point.breaks} if point else {},
            operators=operators[:OPERATORS_SHOWN],
            operator_seconds=sum(o.self_cpu_seconds for o in operators),
            main=analysis.main_traced(profile.options.targets),
            traces=[
                (t.target, analysis.trace_folder(t.target, profile.options.targets))
                for t in profile.targets
                if t.operators
            ],
            words=words,
        )
    )
    yield PAGE, text.encode()


def _source(cost: BreakCost) -> str:
    """The lines around a break, with its own marked."""
    return source_code(
        GraphBreak(
            code=cost.code,
            reason=cost.reason,
            fingerprint=cost.fingerprint,
            file=cost.file,
            line=cost.line,
            function=cost.function,
            source_start=cost.source_start,
            source=cost.source,
        )
    )
