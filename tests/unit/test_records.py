from __future__ import annotations

from compilewatch.records import reason_label, selection_label
from tests import factories


def test_a_registered_break_is_named_by_id_and_type() -> None:
    assert reason_label(factories.graph_break()) == "GB0170 Data-dependent branching"


def test_any_other_break_is_named_by_its_short_code() -> None:
    assert reason_label(factories.graph_break(gb_id=None)) == "unbacked_symint"
    odd = factories.graph_break(gb_id="GB9999", code="GB9999", gb_type=None)
    assert reason_label(odd) == "GB9999"


def test_an_operator_belongs_to_the_name() -> None:
    fallback = factories.graph_break(gb_id=None, code="xla_fallback", gb_type="aten::nonzero")
    assert reason_label(fallback) == "xla_fallback aten::nonzero"


def test_a_selection_is_named_and_distinguished_by_what_it_selects() -> None:
    def label(**selection: object) -> str:
        return selection_label({"selection": selection, "depth": "full", "tier": "auto"})

    assert label(top=25).startswith("top 25 (")
    assert label(all=True).startswith("all (")
    assert label().startswith("default (")
    one, other = label(names=["A", "B"]), label(names=["A", "C"])
    assert one.startswith("2 by name (")
    assert one != other
    assert label(top=25) == label(top=25)
    assert label(top=25) != selection_label({"selection": {"top": 25}, "depth": "reduced"})
