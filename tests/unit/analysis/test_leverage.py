from typing import Any

import msgspec

from compilewatch.analysis.leverage import (
    By,
    FixOrder,
    Leverage,
    VerifiedTotal,
    cause_key,
    models_of_one_reason,
    verified_fixes,
    verified_total,
)
from compilewatch.records import Mode, ModelFix, Result, Status, Target, VariantResult
from tests.factories import graph_break, result, shapes

SHARED = graph_break("helper", file="transformers/utils/import_utils.py", line=7)
BRANCH = graph_break("forward", "GB0059")
LOOP = graph_break("loop", "GB0059")
SILENT = graph_break("?", None, code="unattributed")
BREAKS = {"s": SHARED, "b": BRANCH, "l": LOOP, "?": SILENT}
TRAIN = Target(mode=Mode.TRAIN)


def of(text: str, **fields: Any) -> list[Result]:
    """`A:sb C:` has two results: A with the breaks SHARED and BRANCH, C without any."""
    models = [part.partition(":") for part in text.split()]
    return [
        result(name, breaks=tuple(map(BREAKS.__getitem__, keys)), **fields)
        for name, _, keys in models
    ]


def steps(ranking: Leverage) -> list[tuple[tuple[str, ...], str, bool]]:
    """The causes of each step, as in `BREAKS`, the models that it adds, and whether exactly."""
    keys = {one.fingerprint: key for key, one in BREAKS.items()}
    return [
        (tuple(keys[cause.key] for cause in step.causes), "".join(step.models), step.exact)
        for step in ranking.fixes
    ]


def test_the_first_step_is_the_only_cause_of_most_models() -> None:
    ranking = Leverage([*of("A:s C:b D:"), *of("B:s", downloads=5, source="hub")])
    assert (ranking.broken, ranking.left, ranking.downloads) == (3, 0, 5)
    assert steps(ranking) == [(("s",), "BA", True), (("b",), "C", True)]
    first = ranking.fixes[0]
    assert (first.downloads, first.total_models, ranking.fixes[1].total_models) == (5, 2, 3)


def test_a_later_step_gains_models_whose_other_causes_are_fixed_before() -> None:
    ranking = Leverage(of("A:s B:s C:sb D:sb E:sb"))
    assert steps(ranking) == [(("s",), "AB", True), (("b",), "CDE", False)]
    # The bound of each: the models that it breaks at all.
    assert [fix.affected for fix in ranking.fixes] == [5, 3]
    assert [cause.alone for fix in ranking.fixes for cause in fix.causes] == [2, 0]


def test_where_no_single_fix_is_enough_for_a_model_a_step_has_several() -> None:
    ranking = Leverage(of("A:sb B:sl"))
    assert [(len(fix.causes), fix.exact) for fix in ranking.fixes] == [(2, True), (1, False)]
    # A bundle is worth what it gives for each of its causes.
    assert [len(fix.causes) for fix in Leverage(of("A:sb B:sb C:sb D:l")).fixes] == [2, 1]


def test_by_id_a_fix_is_of_every_place() -> None:
    seen = of("A:bl B:l")
    ((fix,)) = Leverage(seen, by=By.ID).fixes
    (cause,) = fix.causes
    assert (cause.label, cause.places, fix.models) == ("GB0059 Type GB0059", 2, ("A", "B"))
    assert [len(f.models) for f in Leverage(seen).fixes] == [1, 1]


def test_lines_are_ranked_by_the_compilations_that_they_cause() -> None:
    results = [
        result("A", shapes=shapes(5, 3, lines=(8, 8, 8, 9))),
        result("B", shapes=shapes(4, 3, lines=(9,))),
        result("C", breaks=(graph_break("a"),)),
    ]
    ranking = Leverage(results, by=By.COMPILATIONS)
    assert [(fix.causes[0].lines, fix.models) for fix in ranking.fixes] == [
        ((9,), ("B",)),
        ((8,), ("A",)),
    ]
    causes = ranking.by_occurrences()
    assert [(cause.lines, cause.occurrences, cause.models) for cause in causes] == [
        ((8,), 3, 1),
        ((9,), 2, 2),
    ]
    assert {cause.source for cause in causes} == {"if size % 8:"}


def test_a_model_with_an_unknown_cause_is_not_ranked() -> None:
    ranking = Leverage(of("A:s? B:s"))  # torch gave no reason
    assert (ranking.broken, ranking.unknown, ranking.left) == (2, 1, 1)
    assert steps(ranking) == [(("s",), "B", True)]
    assert cause_key(SILENT, By.ID) is None
    ranking = Leverage([*of("A:s", probed=True), *of("B:s")])  # only its first was looked for
    assert (ranking.unknown, steps(ranking)) == (1, [(("s",), "B", True)])
    assert ranking.fixes[0].affected == 2


def test_a_model_counts_once_and_needs_all_of_its_variants_and_modes() -> None:
    text = VariantResult(name="text", status=Status.GRAPH_BREAK, breaks=(SHARED, BRANCH))
    assert [len(fix.causes) for fix in Leverage(of("A:s", variants=(text,))).fixes] == [2]
    ranking = Leverage([*of("A:s"), *of("A:b", target=TRAIN)])
    assert (ranking.broken, ranking.targets) == (1, ("dynamo", "dynamo/train"))
    assert [len(fix.causes) for fix in ranking.fixes] == [2]
    only = Leverage(of("A:b", target=TRAIN), target="dynamo/train")
    assert steps(only) == [(("b",), "A", True)]


def test_breaks_of_another_target_are_not_mixed_in() -> None:
    xla = of("A:l", target=Target(name="xla", environment="xla"))
    assert Leverage([*xla, *of("A:s")]).targets == ("dynamo",)
    assert Leverage(xla).targets == ("xla",)


def test_downloads_decide_where_they_are_the_order_and_top_limits_the_steps() -> None:
    seen = [*of("A:s B:s", downloads=1, source="hub"), *of("C:b", downloads=9, source="hub")]
    assert [f.models[0] for f in Leverage(seen).fixes] == ["A", "C"]
    assert [f.models[0] for f in Leverage(seen, order=FixOrder.DOWNLOADS).fixes] == ["C", "A"]
    ranking = Leverage(of("A:s B:b"), top=1)
    assert (len(ranking.fixes), ranking.left) == (1, 1)


def test_a_cause_is_shown_at_its_most_frequent_line() -> None:
    here = msgspec.structs.replace(SHARED, line=9, source_start=8, source=("def f():", "    g()"))
    (fix,) = Leverage([*of("A:s"), *(result(name, breaks=(here,)) for name in "BC")]).fixes
    (cause,) = fix.causes
    assert cause.place == "transformers/utils/import_utils.py:7,9 in helper"
    assert (cause.source, cause.example) == ("g()", "A")


def test_models_that_break_for_one_reason_only() -> None:
    assert models_of_one_reason([*of("A:s", downloads=3, source="hub"), *of("B:sb")]) == {
        "GB0170 Data-dependent branching": (1, 3),
        "GB0059 Type GB0059": (0, None),
    }


def fix(name: str, *changes: str, **fields: Any) -> ModelFix:
    overrides = {"target": Target(), "detail": "one graph", "verified": True, "single_graph": True}
    return ModelFix(model=name, changes=changes or ("scalars",), **{**overrides, **fields})


def total(results: list[Result], *fixes: ModelFix, targets: tuple[str, ...] = ()) -> VerifiedTotal:
    counted = verified_total(results, fixes, targets)
    assert counted is not None
    return counted


def test_models_with_a_verification_of_their_own_are_counted_with_their_downloads() -> None:
    downloads = {"A": 5, "B": 7, "C": 11}
    results = [of(f"{n}:s", downloads=d, source="hub")[0] for n, d in downloads.items()]
    counted = total(results, fix("A"), fix("B", "scalars", "shapes"))
    assert (counted.models, counted.downloads, counted.broken) == (("B", "A"), 12, 3)
    assert list(counted.changes.items()) == [("scalars", 2), ("shapes", 1)]
    # What only improves or is only captured does not count.
    counted = total(
        of("A:s B:s C:s"),
        fix("A", single_graph=False),
        fix("B", verified=False, single_graph=False),
        fix("C", verified=False),
    )
    assert (counted.models, counted.downloads, counted.improved) == ((), None, 1)
    assert counted.changes == {}


def test_a_model_counts_only_with_a_verification_for_each_target_that_it_breaks_on() -> None:
    results = [*of("A:s B:s"), *of("A:s B:", target=TRAIN)]
    both = (fix("A"), fix("A", "other", target=TRAIN), fix("B"))
    assert total(results, fix("A"), fix("B")).models == ("B",)
    assert total(results, *both).models == ("A", "B")
    assert total(results, fix("A"), fix("B"), targets=("dynamo",)).models == ("A", "B")


def test_breaks_of_further_input_variants_are_not_covered_by_the_verification() -> None:
    variants = tuple(
        VariantResult(name=name, status=Status.GRAPH_BREAK, breaks=(SHARED,))
        for name in ("text+image", "text")
    )
    results = [*of("A:s", variants=variants), *of("B:s", variants=variants[:1])]
    assert total(results, fix("A"), fix("B")).models == ("B",)


def test_nothing_is_said_of_a_run_that_was_not_searched() -> None:
    results = of("A:s")
    assert verified_total(results, []) is None
    assert verified_fixes(Leverage(results), results, []) is None


def test_a_step_names_the_changes_that_are_verified_for_most_of_its_models() -> None:
    results = of("A:s B:s C:s D:s E:b")
    fixes = [fix("A", "rare"), fix("B"), fix("C"), fix("D", verified=False)]
    verified = verified_fixes(Leverage(results), results, fixes)
    assert verified is not None
    first, second = verified.steps
    assert first is not None
    assert (first.changes, first.verified, first.affected) == (("scalars",), 3, 4)
    assert second is None
    # By id, all places of the id count.
    results = of("A:b B:l")
    verified = verified_fixes(Leverage(results, by=By.ID), results, [fix("A"), fix("B", "other")])
    assert verified is not None
    (step,) = verified.steps
    assert step is not None
    assert (step.changes, step.verified, step.affected) == (("other",), 2, 2)
