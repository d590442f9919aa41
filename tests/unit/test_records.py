from typing import Any

import pytest

from compilewatch.records import reason_label, selection_label
from tests import factories


@pytest.mark.parametrize(
    ("gb_id", "fields", "label"),
    [
        ("GB0170", {}, "GB0170 Data-dependent branching"),
        (None, {}, "unbacked_symint"),
        ("GB9999", {"gb_type": None}, "GB9999"),
        (None, {"code": "fallback", "gb_type": "aten::nonzero"}, "fallback aten::nonzero"),
    ],
)
def test_a_break_is_named_by_id_and_type_or_code_and_operator(
    gb_id: str | None, fields: dict[str, Any], label: str
) -> None:
    assert reason_label(factories.graph_break(gb_id=gb_id, **fields)) == label


def test_a_selection_is_named_and_distinguished_by_what_it_selects() -> None:
    def label(**selection: object) -> str:
        return selection_label({"selection": selection, "depth": "full", "tier": "auto"})

    assert [words.rpartition(" (")[0] for words in (label(top=25), label(all=True), label())] == [
        "top 25",
        "all",
        "default",
    ]
    one, other = label(names=["A", "B"]), label(names=["A", "C"])
    assert one.startswith("2 by name (")
    assert one != other
    assert label(top=25) == label(top=25)
    assert label(top=25) != selection_label({"selection": {"top": 25}, "depth": "reduced"})
