"""What verified fixes of a run are worth: only a model with a verification of its own counts."""

from __future__ import annotations

from typing import Any

from compilewatch.analysis.leverage import (
    By,
    VerifiedChange,
    leverage,
    verified_fixes,
    verified_total,
)
from compilewatch.records import Mode, ModelFix, Result, Status, Target, VariantResult
from tests.factories import graph_break, result

ITEM, LOOP = graph_break("item"), graph_break("loop", "GB0059")
TRAIN = Target(mode=Mode.TRAIN)


def broken(name: str, *breaks: Any, **fields: Any) -> Result:
    return result(name, breaks=breaks or (ITEM,), source="hub", **fields)


def fix(name: str, *changes: str, **fields: Any) -> ModelFix:
    overrides = {"target": Target(), "detail": "one graph", "verified": True, "single_graph": True}
    return ModelFix(model=name, changes=changes or ("scalars",), **{**overrides, **fields})


def test_models_with_a_verification_of_their_own_are_counted_with_their_downloads() -> None:
    results = [broken("A", downloads=5), broken("B", downloads=7), broken("C", downloads=11)]
    total = verified_total(results, [fix("A"), fix("B", "scalars", "shapes")])
    assert total is not None
    assert total.models == ("B", "A")
    assert total.downloads == 12
    assert total.broken == 3
    assert total.changes == (
        VerifiedChange(name="scalars", models=2),
        VerifiedChange(name="shapes", models=1),
    )


def test_what_only_improves_or_is_only_captured_does_not_count() -> None:
    results = [broken("A"), broken("B"), broken("C")]
    fixes = [
        fix("A", single_graph=False),
        fix("B", verified=False, single_graph=False),
        fix("C", verified=False),
    ]
    total = verified_total(results, fixes)
    assert total is not None
    assert (total.models, total.downloads, total.improved) == ((), None, 1)
    assert total.changes == ()


def test_a_model_counts_only_with_a_verification_for_each_target_that_it_breaks_on() -> None:
    results = [broken("A"), broken("A", target=TRAIN), broken("B"), result("B", target=TRAIN)]
    one = verified_total(results, [fix("A"), fix("B")])
    both = verified_total(results, [fix("A"), fix("A", "other", target=TRAIN), fix("B")])
    of_eval = verified_total(results, [fix("A"), fix("B")], ["dynamo"])
    assert one is not None
    assert both is not None
    assert of_eval is not None
    assert (one.models, both.models, of_eval.models) == (("B",), ("A", "B"), ("A", "B"))


def test_breaks_of_further_input_variants_are_not_covered_by_the_verification() -> None:
    variants = tuple(
        VariantResult(name=name, status=Status.GRAPH_BREAK, breaks=(ITEM,))
        for name in ("text+image", "text")
    )
    results = [broken("A", variants=variants), broken("B", variants=variants[:1])]
    total = verified_total(results, [fix("A"), fix("B")])
    assert total is not None
    assert total.models == ("B",)


def test_nothing_is_said_of_a_run_that_was_not_searched() -> None:
    results = [broken("A")]
    assert verified_total(results, []) is None
    assert verified_fixes(leverage(results), results, []) is None


def test_a_step_names_the_changes_that_are_verified_for_most_of_its_models() -> None:
    results = [broken(name) for name in "ABCD"] + [broken("E", LOOP)]
    fixes = [fix("A", "rare"), fix("B", "scalars"), fix("C", "scalars"), fix("D", verified=False)]
    verified = verified_fixes(leverage(results), results, fixes)
    assert verified is not None
    first, second = verified.steps
    assert first is not None
    assert (first.changes, first.verified, first.affected) == (("scalars",), 3, 4)
    assert second is None


def test_a_step_by_id_counts_all_places_of_the_id() -> None:
    elsewhere = graph_break("elsewhere")
    results = [broken("A"), broken("B", elsewhere)]
    fixes = verified_fixes(leverage(results, by=By.ID), results, [fix("A"), fix("B", "other")])
    assert fixes is not None
    (step,) = fixes.steps
    assert step is not None
    assert (step.changes, step.verified, step.affected) == (("other",), 2, 2)
