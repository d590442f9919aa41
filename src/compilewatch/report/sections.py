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
)
from compilewatch.records.labels import reason_label
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
    found = result.details
    sections: list[Section] = []
    if result.variants:
        sections.append(_variants(result))
    if isinstance(found, ExportDetail):
        sections.append(_export(found))
    elif isinstance(found, Performance):
        sections.append(_performance(found))
    elif isinstance(found, XlaDetail):
        sections.append(_xla(found, captured=result.graph_breaks is not None))
    elif isinstance(found, NeuronDetail):
        sections.append(_neuron(found))
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
            f"{each.name} *" if each.name == result.variant else each.name,
            each.status.value.replace("_", " ") if each.is_verdict else "not evaluated",
            quantity(each.graphs),
            quantity(each.graph_breaks),
            _accepted(each),
            reason_label(each.breaks[0], short=True)
            if each.breaks
            else ""
            if each.is_verdict
            else each.detail,
        )
        for each in result.variants
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


def _listings(*found: Listing) -> tuple[Listing, ...]:
    return tuple(listing for listing in found if listing.rows)


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


def _capture(found: CaptureFigures) -> Section:
    settings = {True: "on", False: "off", None: None}
    return Section(
        title="Captured",
        facts=_facts(
            ("operators in graphs", _count(found.operators_captured)),
            ("operators run eagerly", _count(found.operators_eager)),
            ("frames compiled", _count(found.frames_compiled)),
            ("frames skipped", _count(found.frames_skipped)),
            ("recompilations", _count(found.recompilations)),
            ("nested_graph_breaks", settings[found.nested_graph_breaks]),
        ),
        listings=_listings(_tally("Operators run eagerly", found.eager_operators)),
    )


# --- export ------------------------------------------------------------------------------------


def _export(found: ExportDetail) -> Section:
    variants = (("non-strict", found.non_strict), ("strict", found.strict))
    tried = [(name, variant) for name, variant in variants if variant is not None]
    failures = found.draft.failures if found.draft is not None else ()
    return Section(
        title="torch.export",
        facts=_facts(
            *((name, _variant(variant)) for name, variant in tried),
            ("draft", None if found.draft is None else _draft(found.draft)),
            ("dimensions that stay dynamic", ", ".join(found.dynamic_dimensions) or None),
            ("dimensions made constant", ", ".join(found.specialized_dimensions) or None),
        ),
        listings=_listings(
            Listing(
                title="What draft export found",
                columns=("Kind", "What", "Times", "Place"),
                rows=tuple(
                    (
                        each.kind.replace("_", " "),
                        each.what,
                        f"{each.occurrences:,}",
                        f"{each.file}:{each.line}" if each.file else "",
                    )
                    for each in failures
                ),
            ),
            Listing(
                title="Why a variant is rejected",
                columns=("Variant", "Reason"),
                rows=tuple((name, v.reason.strip()) for name, v in tried if v.reason),
            ),
        ),
    )


def _variant(found: ExportVariant) -> str:
    if not found.exported:
        return f"rejected: {found.code or 'no code'}, after {_time(found.duration_seconds)}"
    ops = "" if found.ops is None else f", {found.ops:,} ops"
    return f"exported{ops}, in {_time(found.duration_seconds)}"


def _draft(found: DraftExport) -> str:
    if not found.exported:
        return f"rejected: {found.reason or 'no reason given'}"
    return f"exported, {plural(len(found.failures), 'finding')}"


# --- Inductor ----------------------------------------------------------------------------------


def _performance(found: Performance) -> Section:
    speedup = None if found.speedup is None else f"{found.speedup:.2f} × eager"
    return Section(
        title="Compile time and speed",
        facts=_facts(
            ("cold compile", _time(found.cold_compile_seconds)),
            ("warm compile", _time(found.warm_compile_seconds)),
            ("eager latency", _time(found.eager_latency_seconds)),
            ("compiled latency", _time(found.compiled_latency_seconds)),
            ("speed", speedup),
            ("runs measured", _count(found.latency_samples)),
            ("graphs recompiled for a larger batch", _count(found.recompiles)),
            ("peak memory of the compiler", _size(found.compiler_peak_memory_bytes)),
        ),
    )


def _numerics(found: Numerics) -> Section:
    figures = ("max_abs_error", "max_rel_error", "atol", "rtol")
    measured = ((name.replace("_", " "), getattr(found, name)) for name in figures)
    return Section(
        title="Numerics against eager",
        facts=_facts(
            ("matches", _yes(found.matches)),
            ("eager is deterministic", _yes(found.deterministic)),
            *((name, None if value is None else f"{value:.3g}") for name, value in measured),
            ("errors held against", found.reference),
            ("outputs that differ", ", ".join(found.mismatches) or None),
            ("samples computed alone", found.alone or None),
        ),
    )


# --- XLA ---------------------------------------------------------------------------------------


def _xla(found: XlaDetail, captured: bool) -> Section:
    """`captured`: whether operators outside XLA were counted, so that none is a fact."""
    kept = {"lazy": "of the call itself", "export": "of torch.export, where the call breaks"}
    outside = None
    if captured or found.fallbacks:
        outside = f"{sum(found.fallbacks.values()):,} calls" if found.fallbacks else "none"
    graph = kept.get(found.hlo or "", "none: it would hold values of these inputs")
    return Section(
        title="XLA",
        facts=_facts(
            ("HLO kept", graph if captured or found.hlo else None),
            ("HLO instructions", _count(sum(found.operators.values()) or None)),
            ("operators outside XLA", outside),
            ("compile time", _time(found.compile_seconds)),
            ("graphs recompiled for the same inputs", _count(found.recompiles_same_inputs)),
            ("graphs recompiled for a larger batch", _count(found.recompiles)),
            ("StableHLO", None if found.stablehlo is None else _variant(found.stablehlo)),
            ("Dynamo with openxla", None if found.openxla is None else _openxla(found.openxla)),
        ),
        listings=_listings(
            _expected(found.expected_to_fail_on_neuron),
            _tally("Operators outside XLA", found.fallbacks),
            _tally("Operators outside XLA under Dynamo", _fallbacks(found.openxla)),
            _breaks(found.openxla),
            _tally("Most frequent HLO instructions", found.operators, OPERATORS_SHOWN),
        ),
    )


def _openxla(found: OpenXla) -> str:
    figures = (("graphs", found.graphs), ("graph breaks", found.graph_breaks))
    said = [f"{name}: {number:,}" for name, number in figures if number is not None]
    verdict = "accepted" if found.accepted else f"rejected: {found.code or 'no code'}"
    return "; ".join([verdict, *said])


def _fallbacks(found: OpenXla | None) -> dict[str, int]:
    return {} if found is None else found.fallbacks


def _breaks(found: OpenXla | None) -> Listing:
    return Listing(
        title="Graph breaks of Dynamo with openxla",
        columns=("Reason", "Times", "Place"),
        rows=tuple(
            (reason_label(each), f"{each.occurrences:,}", f"{each.file}:{each.line}")
            for each in (() if found is None else found.breaks)
        ),
    )


def _expected(found: Iterable[NeuronConcern]) -> Listing:
    return Listing(
        title="Expected to fail on Neuron",
        columns=("Operator", "Times", "Reason", "SDK", "Source"),
        rows=tuple((c.operator, f"{c.count:,}", c.reason, c.sdk, c.source) for c in found),
        note=EXPECTATION_NOTE,
    )


def _tally(title: str, counts: dict[str, int], limit: int | None = None) -> Listing:
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple((name, f"{count:,}") for name, count in ranked[:limit])
    return Listing(title=title, columns=("Operator", "Times"), rows=rows)


# --- Neuron ------------------------------------------------------------------------------------


def _neuron(found: NeuronDetail) -> Section:
    support = found.support
    percent = None if support is None or support.percent is None else f"{support.percent:.3g} %"
    return Section(
        title="Neuron",
        facts=_facts(
            ("instance family", found.target),
            ("route", found.route),
            *(_failure(found.failure) if found.failure is not None else ()),
            ("SDK", found.sdk_version),
            ("compiler", found.compiler_version),
            ("flags", " ".join(found.flags) or None),
            ("compile time", "from the compile cache" if found.cached else None),
            ("compile time", _time(found.compile_seconds)),
            ("peak memory of the compiler", _size(found.compiler_peak_memory_bytes)),
            *_neff(found),
            ("NeuronCores on this machine", _count(found.device_cores)),
            ("eager latency on the CPU", _time(found.eager_latency_seconds)),
            ("latency on a NeuronCore", _time(found.latency_seconds)),
            ("runs measured", _count(found.latency_samples)),
            ("operators supported", percent),
        ),
        listings=_listings(
            Listing(
                title="Unsupported operators",
                columns=("Operator", "Times", "Rejected in"),
                rows=tuple(
                    (each.name, f"{each.occurrences:,}", each.failure_at)
                    for each in (support.unsupported if support is not None else ())
                ),
            ),
            _tally("Supported operators", support.supported if support is not None else {}),
        ),
    )


def _failure(found: NeuronFailure) -> Iterator[tuple[str, str | None]]:
    yield "failure", found.kind.replace("_", " ")
    yield "code", found.code
    yield "compiler message", found.message or None
    yield "suggested fix", found.advice or None
    yield "exit status", None if found.exit_status is None else str(found.exit_status)
    yield "signal", found.signal


def _neff(found: NeuronDetail) -> Iterator[tuple[str, str | None]]:
    yield "NEFF", _size(found.neff_bytes)
    if found.neff is not None:
        yield "NEFF format", f"{found.neff.version}, package {found.neff.package_version}"
        yield "NEFF built by", found.neff.build or None
        yield "NEFF for NeuronCores", str(found.neff.cores)
