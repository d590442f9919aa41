"""What each target found beyond its verdict: facts and tables for the report and the terminal.

What was not measured is left out: a zero here is a zero that was measured.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from compilewatch import records
from compilewatch.report.wording import (
    memory,
    plural,
    quantity,
    recompilation_cause,
    recompilation_lines,
    seconds,
)

Fact = tuple[str, str]

OPERATORS_SHOWN = 12

EXPECTATION_NOTE = (
    "Expected from the documents named here; not a verdict, since no Neuron compiler ran."
)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A table under a section. The first row has the headings, and each as many cells."""

    title: str
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One subject of a result: `facts` are (name, value), in the order to show them."""

    title: str
    facts: tuple[Fact, ...] = ()
    listings: tuple[Listing, ...] = ()


def details(result: records.Result) -> tuple[Section, ...]:
    """The sections that a result has something to say in."""
    sections: list[Section] = []
    capture = result.capture
    if capture is not None and (result.breaks or capture.share != 1):
        sections.append(_capture(capture))
    if result.recompilations:
        facts = tuple(recompilation_lines(result.recompilations))
        sections.append(Section(title="Recompilations", facts=facts))
    if result.variants:
        sections.append(_variants(result))
    match result.details:
        case records.ExportDetail() as export:
            sections.append(_export(export))
        case records.Performance() as performance:
            sections.append(_performance(performance))
        case records.XlaDetail() as xla:
            sections.append(_xla(xla, captured=result.graph_breaks is not None))
        case records.NeuronDetail() as neuron:
            sections.append(_neuron(neuron))
    if result.shapes is not None:
        sections.append(_shapes(result.shapes.problem, result.traces))
    if result.numerics is not None:
        sections.append(_numerics(result.numerics))
    return tuple(section for section in sections if section.facts or section.listings)


def _section(
    title: str, facts: Iterable[tuple[str, str | None]], listings: Iterable[Listing] = ()
) -> Section:
    """A section without what was not measured, and without empty tables."""
    return Section(
        title=title,
        facts=tuple((name, value) for name, value in facts if value is not None),
        listings=tuple(listing for listing in listings if len(listing.rows) > 1),
    )


def _table(title: str, columns: str, rows: Iterable[tuple[str, ...]], note: str = "") -> Listing:
    """A table whose columns are named in one text, separated by `|`."""
    return Listing(title=title, rows=(tuple(columns.split("|")), *rows), note=note)


def _tally(title: str, counts: dict[str, int], limit: int | None = None) -> Listing:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return _table(title, "Operator|Times", [(name, f"{count:,}") for name, count in ranked[:limit]])


# Formatters that keep None, which the words of tables turn into a dash.


def _time(duration: float | None) -> str | None:
    if duration is None:
        return None
    return f"{duration * 1000:.3g} ms" if duration < 0.1 else seconds(duration)


def _size(number: int | None) -> str | None:
    return None if number is None else memory(number)


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _either(answer: bool | None, yes: str, no: str) -> str | None:
    return None if answer is None else yes if answer else no


def _capture(capture: records.CaptureFigures) -> Section:
    return _section(
        "Captured",
        [
            ("operators in graphs", _count(capture.operators_captured)),
            ("operators run eagerly", _count(capture.operators_eager)),
            ("frames compiled", _count(capture.frames_compiled)),
            ("frames skipped", _count(capture.frames_skipped)),
            ("nested_graph_breaks", _either(capture.nested_graph_breaks, "on", "off")),
        ],
        [_tally("Operators run eagerly", capture.eager_operators)],
    )


def _shapes(problem: str, traces: dict[str, records.TraceFigures]) -> Section:
    names = {"default": "as called", "true": "dynamic=True"}
    facts: list[tuple[str, str | None]] = [("not known", problem or None)]
    rows: list[tuple[str, ...]] = []
    for name, figures in traces.items():
        limit = figures.limit
        label = names[name]
        facts += [
            (f"compilations, {label}", _count(figures.compilations)),
            (f"by call, {label}", ", ".join(map(str, figures.compiled))),
            (f"dynamic, {label}", ", ".join(figures.dynamic) or "none"),
            (f"graph breaks, {label}", _count(figures.graph_breaks or None)),
            (f"limit reached, {label}", f"{limit.file}:{limit.line}" if limit else None),
            (f"calls that the model rejects, {label}", _count(figures.rejected or None)),
            (f"error, {label}", figures.error or None),
        ]
        rows += [
            (f"{label}, call {again.call}", recompilation_cause(again))
            for again in figures.recompilations
        ]
    return _section(
        "Compilations for ten sizes",
        facts,
        [_table("Compiled again", "Call|Cause", rows)],
    )


def _variants(result: records.Result) -> Section:
    """Every input variant; what the page says elsewhere is about the first of the worst ones."""

    def row(variant: records.VariantResult) -> tuple[str, ...]:
        accepted = variant.fullgraph.accepted if variant.fullgraph else None
        reason = "" if variant.is_verdict else variant.detail
        return (
            f"{variant.name} *" if variant.name == result.variant else variant.name,
            variant.status.value.replace("_", " ") if variant.is_verdict else "not evaluated",
            quantity(variant.graphs),
            quantity(variant.graph_breaks),
            _either(accepted, "accepted", "rejected") or "",
            records.reason_label(variant.breaks[0], short=True) if variant.breaks else reason,
        )

    title = "* is the worst one, which everything else here is about"
    columns = "Variant|Result|Graphs|Breaks|fullgraph|First reason"
    return _section("Input variants", (), [_table(title, columns, map(row, result.variants))])


def _export(export: records.ExportDetail) -> Section:
    variants = (("non-strict", export.non_strict), ("strict", export.strict))
    tried = [(name, variant) for name, variant in variants if variant is not None]
    draft, words = export.draft, None
    if draft is not None:
        words = f"exported, {plural(len(draft.failures), 'finding')}"
        if not draft.exported:
            words = f"rejected: {draft.reason or 'no reason given'}"
    return _section(
        "torch.export",
        [
            *((name, _variant(variant)) for name, variant in tried),
            ("draft", words),
            ("dimensions that stay dynamic", ", ".join(export.dynamic_dimensions) or None),
            ("dimensions made constant", ", ".join(export.specialized_dimensions) or None),
        ],
        [
            _table(
                "What draft export found",
                "Kind|What|Times|Place",
                (
                    (
                        failure.kind.replace("_", " "),
                        failure.what,
                        f"{failure.occurrences:,}",
                        f"{failure.file}:{failure.line}" if failure.file else "",
                    )
                    for failure in (draft.failures if draft is not None else ())
                ),
            ),
            _table(
                "Why a variant is rejected",
                "Variant|Reason",
                ((name, v.reason.strip()) for name, v in tried if v.reason),
            ),
        ],
    )


def _variant(variant: records.ExportVariant) -> str:
    if not variant.exported:
        return f"rejected: {variant.code or 'no code'}, after {_time(variant.duration_seconds)}"
    ops = "" if variant.ops is None else f", {variant.ops:,} ops"
    return f"exported{ops}, in {_time(variant.duration_seconds)}"


def _performance(times: records.Performance) -> Section:
    speedup = None if times.speedup is None else f"{times.speedup:.2f} × eager"
    return _section(
        "Compile time and speed",
        [
            ("cold compile", _time(times.cold_compile_seconds)),
            ("warm compile", _time(times.warm_compile_seconds)),
            ("eager latency", _time(times.eager_latency_seconds)),
            ("compiled latency", _time(times.compiled_latency_seconds)),
            ("speed", speedup),
            ("runs measured", _count(times.latency_samples)),
            ("graphs recompiled for a larger batch", _count(times.recompiles)),
            ("peak memory of the compiler", _size(times.compiler_peak_memory_bytes)),
        ],
    )


def _numerics(numerics: records.Numerics) -> Section:
    figures = ("max_abs_error", "max_rel_error", "atol", "rtol")
    measured = ((name.replace("_", " "), getattr(numerics, name)) for name in figures)
    return _section(
        "Numerics against eager",
        [
            ("matches", _either(numerics.matches, "yes", "no")),
            ("eager is deterministic", _either(numerics.deterministic, "yes", "no")),
            *((name, None if value is None else f"{value:.3g}") for name, value in measured),
            ("errors held against", numerics.reference),
            ("outputs that differ", ", ".join(numerics.mismatches) or None),
            ("samples computed alone", numerics.alone or None),
            ("first layer that differs", numerics.first_layer or None),
            ("compiled by", numerics.backend or None),
            ("sizes of the calls", numerics.calls or None),
        ],
    )


def _xla(xla: records.XlaDetail, captured: bool) -> Section:
    """`captured`: whether operators outside XLA were counted, so that none is a fact."""
    kept = {"lazy": "of the call itself", "export": "of torch.export, where the call breaks"}
    outside = None
    if captured or xla.fallbacks:
        outside = f"{sum(xla.fallbacks.values()):,} calls" if xla.fallbacks else "none"
    graph = kept.get(xla.hlo or "", "none: it would hold values of these inputs")
    return _section(
        "XLA",
        [
            ("HLO kept", graph if captured or xla.hlo else None),
            ("HLO instructions", _count(sum(xla.operators.values()) or None)),
            ("operators outside XLA", outside),
            ("compile time", _time(xla.compile_seconds)),
            ("graphs recompiled for the same inputs", _count(xla.recompiles_same_inputs)),
            ("graphs recompiled for a larger batch", _count(xla.recompiles)),
        ],
        [
            _table(
                "Expected to fail on Neuron",
                "Operator|Times|Reason|SDK|Source",
                (
                    (c.operator, f"{c.count:,}", c.reason, c.sdk, c.source)
                    for c in xla.expected_to_fail_on_neuron
                ),
                EXPECTATION_NOTE,
            ),
            _tally("Operators outside XLA", xla.fallbacks),
            _tally("Most frequent HLO instructions", xla.operators, OPERATORS_SHOWN),
        ],
    )


def _neuron(neuron: records.NeuronDetail) -> Section:
    failure = neuron.failure
    facts: list[tuple[str, str | None]] = [
        ("instance family", neuron.target),
        ("route", neuron.route + ("; compiled without a device" if neuron.compile_only else "")),
        ("failed stage", neuron.failed_stage),
    ]
    if failure is not None:
        facts += [
            ("failure", failure.kind.replace("_", " ")),
            ("code", failure.code),
            ("compiler message", failure.message or None),
            ("suggested fix", failure.advice or None),
            ("exit status", _count(failure.exit_status)),
            ("signal", failure.signal),
        ]
    facts += [
        ("SDK", neuron.sdk_version),
        ("compiler", neuron.compiler_version),
        ("torch-mlir", neuron.lowering_version),
        ("flags", " ".join(neuron.flags) or None),
        ("compile time", _time(neuron.compile_seconds)),
        ("peak memory of the compiler", _size(neuron.compiler_peak_memory_bytes)),
        ("NEFF", _size(neuron.neff_bytes)),
        ("NeuronCores on this machine", _count(neuron.device_cores)),
        ("eager latency on the CPU", _time(neuron.eager_latency_seconds)),
        ("latency on a NeuronCore", _time(neuron.latency_seconds)),
        ("runs measured", _count(neuron.latency_samples)),
    ]
    return _section(
        "Neuron",
        facts,
        [
            *(
                _table(
                    title,
                    f"Operator|Times|Rejected in|Line|{last}",
                    (
                        (o.name, f"{o.occurrences:,}", o.stage, f"{o.file}:{o.line}", end)
                        for o in neuron.operators
                        for end in [o.handled_by if handled else o.types]
                        if bool(o.handled_by) is handled
                    ),
                )
                for title, last, handled in (
                    ("Operators without a lowering", "Types", False),
                    ("Handled by TorchNeuron itself: no failure", "Source", True),
                )
            ),
            _tally("Operators that ran on the CPU", neuron.fallback_operators),
            _graphs(neuron.graphs),
        ],
    )


def _graphs(graphs: tuple[records.NeuronGraph, ...]) -> Listing:
    """One row for each graph; a stage's column only where a graph came to it."""
    stages = tuple(dict.fromkeys(stage for graph in graphs for stage in graph.seconds))
    return _table(
        "Graphs",
        "|".join(("Graph|Nodes", *map(str.capitalize, stages), "StableHLO|NEFF|Failed in")),
        (
            (
                *(f"{number} {graph.direction}", f"{graph.nodes:,}"),
                *(seconds(graph.seconds.get(stage)) for stage in stages),
                memory(graph.stablehlo_bytes),
                memory(graph.neff_bytes) + (" (cached)" if graph.cached else ""),
                graph.failed_stage or "–",
            )
            for number, graph in enumerate(graphs, start=1)
        ),
    )
