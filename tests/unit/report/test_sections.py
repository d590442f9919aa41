"""Sections of a result: what is shown of its input variants."""

from __future__ import annotations

from compilewatch.records import FullgraphVerdict, Status, VariantResult
from compilewatch.report.sections import details
from tests import factories


def test_variants_are_a_table_with_the_worst_marked_and_failures_named() -> None:
    broken = factories.graph_break()
    accepted = FullgraphVerdict(accepted=True)
    variants = (
        VariantResult(
            name="text+image", status=Status.GRAPH_BREAK, graphs=2, graph_breaks=1, breaks=(broken,)
        ),
        VariantResult(
            name="text", status=Status.PASS, graphs=1, graph_breaks=0, fullgraph=accepted
        ),
        VariantResult(name="text+audio", status=Status.UNSUPPORTED, detail="ValueError: no audio"),
    )
    result = factories.result(breaks=(broken,), variant="text+image", variants=variants)
    (section,) = details(result)
    (listing,) = section.listings
    assert [row[:2] for row in listing.rows] == [
        ("text+image *", "graph break"),
        ("text", "pass"),
        ("text+audio", "not evaluated"),
    ]
    assert listing.rows[1][4] == "accepted"
    assert listing.rows[2][5] == "ValueError: no audio"


def test_one_variant_needs_no_table() -> None:
    assert details(factories.result()) == ()
