from __future__ import annotations

from typing import Any

import msgspec

from compilewatch.analysis.leverage import (
    By,
    FixOrder,
    Leverage,
    LeverageStep,
    VerifiedChange,
    cause_key,
    leverage,
    models_of_one_reason,
    verified_fixes,
    verified_total,
)
from compilewatch.records import Mode, ModelFix, Result, Status, Target, VariantResult
from tests.factories import graph_break, result

SHARED = graph_break("helper", file="transformers/utils/import_utils.py", line=7)
BRANCH = graph_break("forward", "GB0059")
LOOP = graph_break("loop", "GB0059")
SILENT = graph_break("?", None, code="unattributed")


def steps(ranking: Leverage) -> list[tuple[tuple[str, ...], tuple[str, ...], bool]]:
    return [(tuple(c.key for c in f.causes), f.models, f.exact) for f in ranking.fixes]


def test_the_first_step_is_the_only_cause_of_most_models() -> None:
    ranking = leverage(
        [
            result("A", breaks=(SHARED,)),
            result("B", breaks=(SHARED,), downloads=5, source="hub"),
            result("C", breaks=(BRANCH,)),
            result("D"),
        ]
    )
    assert (ranking.broken, ranking.left, ranking.downloads) == (3, 0, 5)
    assert steps(ranking) == [
        ((SHARED.fingerprint,), ("B", "A"), True),
        ((BRANCH.fingerprint,), ("C",), True),
    ]
    first = ranking.fixes[0]
    assert (first.downloads, first.total_models, ranking.fixes[1].total_models) == (5, 2, 3)


def test_a_later_step_gains_models_whose_other_causes_are_fixed_before() -> None:
    ranking = leverage(
        [
            *(result(name, breaks=(SHARED,)) for name in "AB"),
            *(result(name, breaks=(SHARED, BRANCH)) for name in "CDE"),
        ]
    )
    assert steps(ranking) == [
        ((SHARED.fingerprint,), ("A", "B"), True),
        ((BRANCH.fingerprint,), ("C", "D", "E"), False),
    ]
    # The bound of each: the models that it breaks at all.
    assert [fix.affected for fix in ranking.fixes] == [5, 3]
    assert [cause.alone for fix in ranking.fixes for cause in fix.causes] == [2, 0]


def test_where_no_single_fix_is_enough_for_a_model_a_step_has_several() -> None:
    ranking = leverage([result("A", breaks=(SHARED, BRANCH)), result("B", breaks=(SHARED, LOOP))])
    (first, second) = ranking.fixes
    assert [len(fix.causes) for fix in ranking.fixes] == [2, 1]
    assert (first.exact, second.exact) == (True, False)
    # A bundle is worth what it gives for each of its causes.
    ranking = leverage(
        [
            *(result(name, breaks=(SHARED, BRANCH)) for name in "ABC"),
            result("D", breaks=(LOOP,)),
        ]
    )
    assert [len(fix.causes) for fix in ranking.fixes] == [2, 1]


def test_by_id_a_fix_is_of_every_place() -> None:
    seen = [result("A", breaks=(BRANCH, LOOP)), result("B", breaks=(LOOP,))]
    ranking = leverage(seen, by=By.ID)
    ((fix,)) = ranking.fixes
    (cause,) = fix.causes
    assert (cause.label, cause.places, fix.models) == ("GB0059 Type GB0059", 2, ("A", "B"))
    assert [len(f.models) for f in leverage(seen).fixes] == [1, 1]


def test_a_break_without_a_reason_is_no_fix_and_its_model_never_fixed() -> None:
    ranking = leverage([result("A", breaks=(SHARED, SILENT)), result("B", breaks=(SHARED,))])
    assert (ranking.broken, ranking.unknown, ranking.left) == (2, 1, 1)
    assert steps(ranking) == [((SHARED.fingerprint,), ("B",), True)]
    assert cause_key(SILENT, By.ID) is None


def test_a_model_whose_first_break_alone_was_looked_for_is_not_ranked() -> None:
    ranking = leverage([result("A", breaks=(SHARED,), probed=True), result("B", breaks=(SHARED,))])
    assert (ranking.unknown, steps(ranking)) == (1, [((SHARED.fingerprint,), ("B",), True)])
    assert ranking.fixes[0].affected == 2


def test_every_input_variant_has_to_be_without_breaks() -> None:
    text = VariantResult(name="text", status=Status.GRAPH_BREAK, breaks=(SHARED, BRANCH))
    ranking = leverage([result("A", breaks=(SHARED,), variants=(text,))])
    assert [len(fix.causes) for fix in ranking.fixes] == [2]


def test_a_model_counts_once_and_needs_all_of_its_modes() -> None:
    train = Target(mode=Mode.TRAIN)
    ranking = leverage([result("A", breaks=(SHARED,)), result("A", breaks=(BRANCH,), target=train)])
    assert (ranking.broken, ranking.targets) == (1, ("dynamo", "dynamo/train"))
    assert [len(fix.causes) for fix in ranking.fixes] == [2]
    only = leverage([result("A", breaks=(BRANCH,), target=train)], target="dynamo/train")
    assert steps(only) == [((BRANCH.fingerprint,), ("A",), True)]


def test_breaks_of_another_target_are_not_mixed_in() -> None:
    xla = result("A", breaks=(LOOP,), target=Target(name="xla", environment="xla"))
    assert leverage([xla, result("A", breaks=(SHARED,))]).targets == ("dynamo",)
    assert leverage([xla]).targets == ("xla",)


def test_downloads_decide_where_they_are_the_order() -> None:
    seen = [
        *(result(name, breaks=(SHARED,), downloads=1, source="hub") for name in "AB"),
        result("C", breaks=(BRANCH,), downloads=9, source="hub"),
    ]
    assert [f.models[0] for f in leverage(seen).fixes] == ["A", "C"]
    assert [f.models[0] for f in leverage(seen, order=FixOrder.DOWNLOADS).fixes] == ["C", "A"]


def test_top_limits_the_steps_and_says_what_is_left() -> None:
    ranking = leverage([result("A", breaks=(SHARED,)), result("B", breaks=(BRANCH,))], top=1)
    assert (len(ranking.fixes), ranking.left) == (1, 1)


def test_nothing_breaks() -> None:
    ranking = leverage([result("A"), result("B", status=Status.ERROR)])
    assert (ranking.broken, ranking.fixes, ranking.downloads) == (0, (), None)


def test_a_cause_is_shown_at_its_most_frequent_line() -> None:
    here = msgspec.structs.replace(SHARED, line=9, source_start=8, source=("def f():", "    g()"))
    (fix,) = leverage(
        [result("A", breaks=(SHARED,)), *(result(n, breaks=(here,)) for n in "BC")]
    ).fixes
    (cause,) = fix.causes
    assert cause.place == "transformers/utils/import_utils.py:7,9 in helper"
    assert cause.source == "g()"
    assert cause.example == "A"


def test_models_that_break_for_one_reason_only() -> None:
    seen = [
        result("A", breaks=(SHARED,), downloads=3, source="hub"),
        result("B", breaks=(SHARED, BRANCH)),
    ]
    assert models_of_one_reason(seen) == {
        "GB0170 Data-dependent branching": (1, 3),
        "GB0059 Type GB0059": (0, None),
    }


def test_a_fix_is_plain_data() -> None:
    (fix,) = leverage([result("A", breaks=(SHARED,))]).fixes
    assert msgspec.json.decode(msgspec.json.encode(fix), type=LeverageStep) == fix


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
