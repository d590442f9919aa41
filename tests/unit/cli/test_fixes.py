from __future__ import annotations

from dataclasses import replace

from compilewatch.analysis.leverage import By, leverage, verified_fixes
from compilewatch.cli.tables import fixes_table, stored_fix_text
from compilewatch.records import ModelFix, Target
from tests import factories
from tests.unit.cli.test_tables import narrow, piped

SHARED = factories.graph_break(
    "helper",
    file="transformers/utils/import_utils.py",
    line=7,
    source_start=7,
    source=("  check(x)",),
)
OTHER = factories.graph_break("other", "GB0059")
BROKEN = (
    *(factories.result(n, breaks=(SHARED,), source="hub", downloads=500_000) for n in "AB"),
    factories.result("C", breaks=(SHARED, OTHER), source="hub", downloads=1),
)


def test_a_step_says_what_to_fix_where_and_what_it_gives() -> None:
    lines = [line.split() for line in piped(fixes_table(leverage(BROKEN))).splitlines()]
    text = [" ".join(line) for line in lines]
    assert text[0] == "3 models have graph breaks on dynamo, 1 M downloads a month"
    assert "1. 2 1 M 2 3 GB0170 Data-dependent branching" in text
    assert "transformers/utils/import_utils.py:7 in helper" in text
    assert "> check(x)" in text
    assert "such as A" in text
    assert "2. +1 1 3 1 GB0059 Type GB0059" in text


def test_what_is_left_out_is_said() -> None:
    silent = factories.graph_break("?", None, code="unattributed")
    results = (*BROKEN, factories.result("D", breaks=(silent,)))
    text = piped(fixes_table(leverage(results, top=1)))
    assert "1 model cannot be ranked, because not all causes of their breaks are known." in text
    assert "1 model would need steps that are not listed." in text


def test_an_id_counts_its_other_places() -> None:
    both = (factories.result("A", breaks=(SHARED, factories.graph_break("second"))),)
    assert "and 1 other place" in piped(fixes_table(leverage(both, by=By.ID)))


def test_nothing_to_fix_is_a_sentence() -> None:
    text = piped(fixes_table(leverage([factories.result("A")])))
    assert text == "No model has a graph break: there is nothing to fix.\n"


def test_it_fits_eighty_columns() -> None:
    assert max(map(len, narrow(fixes_table(leverage(BROKEN))))) <= 80


FIXES = tuple(
    ModelFix(
        model=name,
        target=Target(),
        detail="one graph",
        verified=True,
        single_graph=True,
        changes=("capture_scalar_outputs=True",),
        removed=frozenset({SHARED.fingerprint}),
        code="import torch\n",
    )
    for name in "AB"
)


def test_verified_fixes_have_a_column_and_a_total() -> None:
    found = leverage(BROKEN)
    verified = verified_fixes(found, BROKEN, FIXES)
    text = " ".join(piped(fixes_table(found, verified)).split())
    assert "capture_scalar_outputs=True (2 of 3 models)" in text
    assert (
        "Verified: this change leaves 2 more models without graph breaks, 1 M downloads a month; "
        "each of them is verified by a script of its own."
    ) in text


def test_a_fix_of_another_model_says_where_it_is_from_and_that_it_is_not_verified_here() -> None:
    result = BROKEN[2]
    stored = replace(FIXES[0], run="20260102")
    text = piped(stored_fix_text(stored, result))
    assert "Stored fix: capture_scalar_outputs=True" in text
    assert "From run 20260102, where it is verified for A; it removes 1 of 2 graph breaks." in text
    assert "For C nothing is verified: compilewatch fix C" in text
    assert "import torch" in text


def test_a_fix_of_the_same_model_is_verified_for_it() -> None:
    stored = replace(FIXES[0], run="20260102")
    assert "nothing is verified" not in piped(stored_fix_text(stored, BROKEN[0]))
