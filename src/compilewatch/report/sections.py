"""What each target found beyond its verdict: facts and tables for the report and the terminal.

What was not measured is left out: a zero here is a zero that was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from compilewatch.records import (
    CaptureFigures,
    DraftExport,
    ExportDetail,
    ExportVariant,
    NeuronConcern,
    NeuronDetail,
    NeuronFailure,
    Numerics,
    OpenXla,
    Performance,
    Result,
    VariantResult,
    XlaDetail,
    reason_label,
)
from compilewatch.report.wording import memory, plural, quantity, seconds

Fact = tuple[str, str]

OPERATORS_SHOWN = 12

EXPECTATION_NOTE = (
    "Expected from the documents named here; this is no verdict, since no Neuron compiler ran."
)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A table under a section; every row has as many cells as there are columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One subject of a result: `facts` are (name, value), in the order to show them."""

    title: str
    facts: tuple[Fact, ...] = ()
    listings: tuple[Listing, ...] = ()


def details(result: Result) -> tuple[Section, ...]:
    """The sections that a result has something to say in."""
    target_details = result.details
    sections: list[Section] = []
    if result.variants:
        sections.append(_variants(result))
    if isinstance(target_details, ExportDetail):
        sections.append(_export(target_details))
    elif isinstance(target_details, Performance):
        sections.append(_performance(target_details))
    elif isinstance(target_details, XlaDetail):
        sections.append(_xla(target_details, captured=result.graph_breaks is not None))
    elif isinstance(target_details, NeuronDetail):
        sections.append(_neuron(target_details))
    captured = result.capture
    if captured is not None and (result.breaks or captured.share != 1 or captured.recompilations):
        sections.insert(0, _capture(captured))
    if result.numerics is not None:
        sections.append(_numerics(result.numerics))
    return tuple(section for section in sections if section.facts or section.listings)


def _variants(result: Result) -> Section:
    """Every input variant; what the page says elsewhere is about the first of the worst ones."""
    rows = tuple(
        (
            f"{variant.name} *" if variant.name == result.variant else variant.name,
            variant.status.value.replace("_", " ") if variant.is_verdict else "not evaluated",
            quantity(variant.graphs),
            quantity(variant.graph_breaks),
            _accepted(variant),
            reason_label(variant.breaks[0], short=True)
            if variant.breaks
            else ""
            if variant.is_verdict
            else variant.detail,
        )
        for variant in result.variants
    )
    return Section(
        title="Input variants",
        listings=(
            Listing(
                title="* is the worst one, which everything else here is about",
                columns=("Variant", "Result", "Graphs", "Breaks", "fullgraph", "First reason"),
                rows=rows,
            ),
        ),
    )


def _accepted(variant: VariantResult) -> str:
    if variant.fullgraph is None:
        return ""
    return "accepted" if variant.fullgraph.accepted else "rejected"


def _facts(*pairs: tuple[str, str | None]) -> tuple[Fact, ...]:
    return tuple((name, value) for name, value in pairs if value is not None)


def _listings(*listings: Listing) -> tuple[Listing, ...]:
    return tuple(listing for listing in listings if listing.rows)


# Formatters that keep None, which the words of tables turn into a dash.


def _time(duration: float | None) -> str | None:
    if duration is None:
        return None
    return f"{duration * 1000:.3g} ms" if duration < 0.1 else seconds(duration)


def _size(number: int | None) -> str | None:
    return None if number is None else memory(number)


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


# --- Dynamo ------------------------------------------------------------------------------------


def _capture(capture: CaptureFigures) -> Section:
    settings = {True: "on", False: "off", None: None}
    return Section(
        title="Captured",
        facts=_facts(
            ("operators in graphs", _count(capture.operators_captured)),
            ("operators run eagerly", _count(capture.operators_eager)),
            ("frames compiled", _count(capture.frames_compiled)),
            ("frames skipped", _count(capture.frames_skipped)),
            ("recompilations", _count(capture.recompilations)),
            ("nested_graph_breaks", settings[capture.nested_graph_breaks]),
        ),
        listings=_listings(_tally("Operators run eagerly", capture.eager_operators)),
    )


# --- export ------------------------------------------------------------------------------------


def _export(export: ExportDetail) -> Section:
    variants = (("non-strict", export.non_strict), ("strict", export.strict))
    tried = [(name, variant) for name, variant in variants if variant is not None]
    failures = export.draft.failures if export.draft is not None else ()
    return Section(
        title="torch.export",
        facts=_facts(
            *((name, _variant(variant)) for name, variant in tried),
            ("draft", None if export.draft is None else _draft(export.draft)),
            ("dimensions that stay dynamic", ", ".join(export.dynamic_dimensions) or None),
            ("dimensions made constant", ", ".join(export.specialized_dimensions) or None),
        ),
        listings=_listings(
            Listing(
                title="What draft export found",
                columns=("Kind", "What", "Times", "Place"),
                rows=tuple(
                    (
                        failure.kind.replace("_", " "),
                        failure.what,
                        f"{failure.occurrences:,}",
                        f"{failure.file}:{failure.line}" if failure.file else "",
                    )
                    for failure in failures
                ),
            ),
            Listing(
                title="Why a variant is rejected",
                columns=("Variant", "Reason"),
                rows=tuple((name, v.reason.strip()) for name, v in tried if v.reason),
            ),
        ),
    )


def _variant(variant: ExportVariant) -> str:
    if not variant.exported:
        return f"rejected: {variant.code or 'no code'}, after {_time(variant.duration_seconds)}"
    ops = "" if variant.ops is None else f", {variant.ops:,} ops"
    return f"exported{ops}, in {_time(variant.duration_seconds)}"


def _draft(draft: DraftExport) -> str:
    if not draft.exported:
        return f"rejected: {draft.reason or 'no reason given'}"
    return f"exported, {plural(len(draft.failures), 'finding')}"


# --- Inductor ----------------------------------------------------------------------------------


def _performance(performance: Performance) -> Section:
    speedup = None if performance.speedup is None else f"{performance.speedup:.2f} × eager"
    return Section(
        title="Compile time and speed",
        facts=_facts(
            ("cold compile", _time(performance.cold_compile_seconds)),
            ("warm compile", _time(performance.warm_compile_seconds)),
            ("eager latency", _time(performance.eager_latency_seconds)),
            ("compiled latency", _time(performance.compiled_latency_seconds)),
            ("speed", speedup),
            ("runs measured", _count(performance.latency_samples)),
            ("graphs recompiled for a larger batch", _count(performance.recompiles)),
            ("peak memory of the compiler", _size(performance.compiler_peak_memory_bytes)),
        ),
    )


def _numerics(numerics: Numerics) -> Section:
    figures = ("max_abs_error", "max_rel_error", "atol", "rtol")
    measured = ((name.replace("_", " "), getattr(numerics, name)) for name in figures)
    return Section(
        title="Numerics against eager",
        facts=_facts(
            ("matches", _yes(numerics.matches)),
            ("eager is deterministic", _yes(numerics.deterministic)),
            *((name, None if value is None else f"{value:.3g}") for name, value in measured),
            ("errors held against", numerics.reference),
            ("outputs that differ", ", ".join(numerics.mismatches) or None),
            ("samples computed alone", numerics.alone or None),
        ),
    )


# --- XLA ---------------------------------------------------------------------------------------


def _xla(xla: XlaDetail, captured: bool) -> Section:
    """`captured`: whether operators outside XLA were counted, so that none is a fact."""
    kept = {"lazy": "of the call itself", "export": "of torch.export, where the call breaks"}
    outside = None
    if captured or xla.fallbacks:
        outside = f"{sum(xla.fallbacks.values()):,} calls" if xla.fallbacks else "none"
    graph = kept.get(xla.hlo or "", "none: it would hold values of these inputs")
    return Section(
        title="XLA",
        facts=_facts(
            ("HLO kept", graph if captured or xla.hlo else None),
            ("HLO instructions", _count(sum(xla.operators.values()) or None)),
            ("operators outside XLA", outside),
            ("compile time", _time(xla.compile_seconds)),
            ("graphs recompiled for the same inputs", _count(xla.recompiles_same_inputs)),
            ("graphs recompiled for a larger batch", _count(xla.recompiles)),
            ("StableHLO", None if xla.stablehlo is None else _variant(xla.stablehlo)),
            ("Dynamo with openxla", None if xla.openxla is None else _openxla(xla.openxla)),
        ),
        listings=_listings(
            _expected(xla.expected_to_fail_on_neuron),
            _tally("Operators outside XLA", xla.fallbacks),
            _tally("Operators outside XLA under Dynamo", _fallbacks(xla.openxla)),
            _breaks(xla.openxla),
            _tally("Most frequent HLO instructions", xla.operators, OPERATORS_SHOWN),
        ),
    )


def _openxla(openxla: OpenXla) -> str:
    figures = (("graphs", openxla.graphs), ("graph breaks", openxla.graph_breaks))
    counts = [f"{name}: {number:,}" for name, number in figures if number is not None]
    verdict = "accepted" if openxla.accepted else f"rejected: {openxla.code or 'no code'}"
    return "; ".join([verdict, *counts])


def _fallbacks(openxla: OpenXla | None) -> dict[str, int]:
    return {} if openxla is None else openxla.fallbacks


def _breaks(openxla: OpenXla | None) -> Listing:
    return Listing(
        title="Graph breaks of Dynamo with openxla",
        columns=("Reason", "Times", "Place"),
        rows=tuple(
            (
                reason_label(graph_break),
                f"{graph_break.occurrences:,}",
                f"{graph_break.file}:{graph_break.line}",
            )
            for graph_break in (() if openxla is None else openxla.breaks)
        ),
    )


def _expected(concerns: Iterable[NeuronConcern]) -> Listing:
    return Listing(
        title="Expected to fail on Neuron",
        columns=("Operator", "Times", "Reason", "SDK", "Source"),
        rows=tuple((c.operator, f"{c.count:,}", c.reason, c.sdk, c.source) for c in concerns),
        note=EXPECTATION_NOTE,
    )


def _tally(title: str, counts: dict[str, int], limit: int | None = None) -> Listing:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple((name, f"{count:,}") for name, count in ranked[:limit])
    return Listing(title=title, columns=("Operator", "Times"), rows=rows)


# --- Neuron ------------------------------------------------------------------------------------


def _neuron(neuron: NeuronDetail) -> Section:
    support = neuron.support
    percent = None if support is None or support.percent is None else f"{support.percent:.3g} %"
    return Section(
        title="Neuron",
        facts=_facts(
            ("instance family", neuron.target),
            ("route", neuron.route),
            *(_failure(neuron.failure) if neuron.failure is not None else ()),
            ("SDK", neuron.sdk_version),
            ("compiler", neuron.compiler_version),
            ("flags", " ".join(neuron.flags) or None),
            ("compile time", "from the compile cache" if neuron.cached else None),
            ("compile time", _time(neuron.compile_seconds)),
            ("peak memory of the compiler", _size(neuron.compiler_peak_memory_bytes)),
            *_neff(neuron),
            ("NeuronCores on this machine", _count(neuron.device_cores)),
            ("eager latency on the CPU", _time(neuron.eager_latency_seconds)),
            ("latency on a NeuronCore", _time(neuron.latency_seconds)),
            ("runs measured", _count(neuron.latency_samples)),
            ("operators supported", percent),
        ),
        listings=_listings(
            Listing(
                title="Unsupported operators",
                columns=("Operator", "Times", "Rejected in"),
                rows=tuple(
                    (operator.name, f"{operator.occurrences:,}", operator.failure_at)
                    for operator in (support.unsupported if support is not None else ())
                ),
            ),
            _tally("Supported operators", support.supported if support is not None else {}),
        ),
    )


def _failure(failure: NeuronFailure) -> Iterator[tuple[str, str | None]]:
    yield "failure", failure.kind.replace("_", " ")
    yield "code", failure.code
    yield "compiler message", failure.message or None
    yield "suggested fix", failure.advice or None
    yield "exit status", None if failure.exit_status is None else str(failure.exit_status)
    yield "signal", failure.signal


def _neff(neuron: NeuronDetail) -> Iterator[tuple[str, str | None]]:
    yield "NEFF", _size(neuron.neff_bytes)
    if neuron.neff is not None:
        yield "NEFF format", f"{neuron.neff.version}, package {neuron.neff.package_version}"
        yield "NEFF built by", neuron.neff.build or None
        yield "NEFF for NeuronCores", str(neuron.neff.cores)
