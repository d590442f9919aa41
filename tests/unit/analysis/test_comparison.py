from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch import records
from compilewatch.analysis.comparison import (
    Comparison,
    between_devices,
    between_environments,
    changed_breaks,
    classify_change,
    compare,
    default_baseline,
)
from compilewatch.errors import UsageError
from tests import factories
from tests.factories import graph_break, result, run

A, B, C = graph_break("a"), graph_break("b"), graph_break("c")
OTHER = graph_break("a", "GB0059")

PASS = result()
BROKEN = result(breaks=(A,))
MISMATCH = result(status=records.Status.MISMATCH)
COMPILE_ERROR = result(status=records.Status.ERROR, phase=records.Phase.COMPILE)
CREATE_ERROR = result(status=records.Status.ERROR, phase=records.Phase.CREATE)
TIMEOUT = result(status=records.Status.TIMEOUT)
SKIPPED = result(status=records.Status.SKIPPED)
UNSUPPORTED = result(status=records.Status.UNSUPPORTED)

REGRESSION, FIXED = records.ChangeKind.REGRESSION, records.ChangeKind.FIXED


def _kind(old: records.Result | None, new: records.Result | None) -> records.ChangeKind | None:
    change = classify_change(old, new)
    return change[0] if change else None


def _compare(before: list[records.Result], after: list[records.Result]) -> Comparison:
    return compare(run("1"), before, run("2"), after)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (PASS, PASS, None),
        (PASS, BROKEN, REGRESSION),
        (PASS, MISMATCH, REGRESSION),
        (PASS, COMPILE_ERROR, REGRESSION),
        (BROKEN, COMPILE_ERROR, REGRESSION),
        (BROKEN, MISMATCH, REGRESSION),
        (BROKEN, PASS, FIXED),
        (COMPILE_ERROR, BROKEN, FIXED),
        (MISMATCH, COMPILE_ERROR, None),
        (COMPILE_ERROR, COMPILE_ERROR, None),
        (CREATE_ERROR, PASS, records.ChangeKind.NEWLY_TESTED),
        (CREATE_ERROR, BROKEN, records.ChangeKind.NEWLY_TESTED),
        (TIMEOUT, COMPILE_ERROR, records.ChangeKind.NEWLY_TESTED),
        (SKIPPED, PASS, records.ChangeKind.NEWLY_TESTED),
        (UNSUPPORTED, BROKEN, records.ChangeKind.NEWLY_TESTED),
        (PASS, TIMEOUT, records.ChangeKind.NO_LONGER_TESTED),
        (PASS, CREATE_ERROR, records.ChangeKind.NO_LONGER_TESTED),
        (BROKEN, SKIPPED, records.ChangeKind.NO_LONGER_TESTED),
        (CREATE_ERROR, TIMEOUT, None),
        (None, PASS, records.ChangeKind.NEW),
        (None, SKIPPED, records.ChangeKind.NEW),
        (PASS, None, records.ChangeKind.GONE),
        (CREATE_ERROR, None, records.ChangeKind.GONE),
    ],
)
def test_a_regression_is_claimed_only_where_both_sides_ran(
    old: records.Result | None, new: records.Result | None, kind: records.ChangeKind | None
) -> None:
    assert _kind(old, new) is kind


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((A,), (A, B), REGRESSION),
        ((A, B), (A,), FIXED),
        ((A, B), (C,), FIXED),
        ((A, B), (A, C), None),  # the same cause, in a function that was renamed or moved
        ((A,), (OTHER,), REGRESSION),  # as many, of another cause
        ((A, OTHER), (A, B), None),  # a cause less, one more of a known one
        ((A,), (graph_break("a", line=99),), None),
        ((A,), (graph_break("a", occurrences=43),), None),
        ((A,), (graph_break("a", reason="said otherwise"),), None),
    ],
)
def test_breaks_are_compared_by_fingerprint(
    before: tuple[Any, ...], after: tuple[Any, ...], kind: records.ChangeKind | None
) -> None:
    assert _kind(result(breaks=before), result(breaks=after)) is kind


RESULTS = st.sampled_from(
    [PASS, MISMATCH, COMPILE_ERROR, CREATE_ERROR, TIMEOUT, SKIPPED, UNSUPPORTED]
) | st.lists(st.sampled_from([A, B, C, OTHER]), min_size=1, max_size=4, unique=True).map(
    lambda breaks: result(breaks=tuple(breaks))
)
TURNED: dict[records.ChangeKind | None, set[records.ChangeKind | None]] = {
    # Of as many breaks, one that is of another cause is a regression in both directions.
    REGRESSION: {FIXED, REGRESSION, None},
    FIXED: {REGRESSION},
    records.ChangeKind.NEWLY_TESTED: {records.ChangeKind.NO_LONGER_TESTED},
    records.ChangeKind.NO_LONGER_TESTED: {records.ChangeKind.NEWLY_TESTED},
    None: {None, REGRESSION},
}
"""What a change may be when the runs are exchanged."""


@given(RESULTS, RESULTS, st.booleans())
def test_any_change_turned_round_is_its_opposite(
    old: records.Result, new: records.Result, by_place: bool
) -> None:
    kinds = []
    for pair in ((old, new), (new, old)):
        change = classify_change(*pair, by_place=by_place)
        kinds.append(change[0] if change else None)
    assert kinds[1] in TURNED[kinds[0]]
    if REGRESSION in kinds:
        assert old.is_verdict
        assert new.is_verdict


@given(RESULTS, st.booleans())
def test_nothing_changes_against_itself(same: records.Result, by_place: bool) -> None:
    assert classify_change(same, same, by_place=by_place) is None


def test_a_regression_names_the_new_causes() -> None:
    new = graph_break("b", "GB0059")
    change = classify_change(BROKEN, result(breaks=(A, new)))
    assert change == (REGRESSION, "1 -> 2 distinct graph breaks; new: GB0059 Type GB0059")
    change = classify_change(PASS, BROKEN)
    assert change == (REGRESSION, "pass -> graph_break (1: GB0170 Data-dependent branching)")
    change = classify_change(PASS, COMPILE_ERROR)
    assert change == (REGRESSION, "pass -> error in compile (backend_error)")


def test_the_fullgraph_verdict_counts_where_the_breaks_are_the_same() -> None:
    def with_verdict(accepted: bool | None) -> records.Result:
        verdict = (
            None if accepted is None else records.FullgraphVerdict(accepted=accepted, code="GB0007")
        )
        return result(breaks=(A,), fullgraph=verdict)

    assert classify_change(with_verdict(True), with_verdict(False)) == (
        REGRESSION,
        "fullgraph=True no longer accepts it: GB0007",
    )
    assert _kind(with_verdict(False), with_verdict(True)) is FIXED
    assert _kind(with_verdict(True), with_verdict(True)) is None
    assert _kind(with_verdict(None), with_verdict(False)) is None


def test_every_model_and_target_is_in_exactly_one_bucket() -> None:
    """Over all pairs of states a model can be in, and in any order."""
    states = [None, PASS, BROKEN, MISMATCH, COMPILE_ERROR, CREATE_ERROR, TIMEOUT, SKIPPED]
    targets = [records.Target(), records.Target(mode=records.Mode.TRAIN)]
    before: list[records.Result] = []
    after: list[records.Result] = []
    expected = set()
    for number, (old, new) in enumerate(itertools.product(states, states)):
        for target in targets:
            for state, side in ((old, before), (new, after)):
                if state is not None:
                    side.append(
                        result(
                            f"M{number}",
                            state.status,
                            state.breaks,
                            phase=state.phase,
                            target=target,
                        )
                    )
                    expected.add((f"M{number}", target))
    random.Random(0).shuffle(after)

    compared = _compare(before, after)

    found = [(c.model, c.target) for c in compared.changes] + list(compared.unchanged)
    assert Counter(found) == Counter(expected)
    absent = {
        records.ChangeKind.NOT_SELECTED,
        records.ChangeKind.PENDING,
        records.ChangeKind.MISSING,
    }
    assert {c.kind for c in compared.changes} == set(records.ChangeKind) - absent
    by_kind = [change for kind in records.ChangeKind for change in compared.of(kind)]
    assert by_kind == list(compared.changes)


def test_changes_come_by_kind_and_downloads() -> None:
    before = [result(n, downloads=d) for n, d in (("A", 1), ("B", 50), ("C", None))]
    after = [result(n, breaks=(A,), downloads=d) for n, d in (("A", 1), ("B", 50), ("C", None))]
    compared = _compare([*before, result("D", breaks=(A,))], [*after, result("D")])
    assert [(c.kind, c.model) for c in compared.changes] == [
        (REGRESSION, "B"),
        (REGRESSION, "A"),
        (REGRESSION, "C"),
        (FIXED, "D"),
    ]
    assert compared.changes[0].downloads == 50


def _changed(old: dict[str, Any], new: dict[str, Any]) -> Comparison:
    """One regression between two environments."""
    before = run("1", environments=(factories.environment(**old),))
    after = run("2", environments=(factories.environment(**new),))
    return compare(before, [PASS], after, [BROKEN])


def test_what_differs_is_named_of_all_environments_and_for_each_model_of_its_own() -> None:
    def both(default: str, nightly: str) -> tuple[records.Environment, ...]:
        named = {"default": default, "nightly": nightly}
        return tuple(factories.environment(name=n, torch=t) for n, t in named.items())

    before = run("1", environments=both("2.12.0", "2.14.0"))
    after = run("2", environments=both("2.13.0", "2.15.0"))
    target = records.Target(environment="nightly")
    compared = compare(
        before, [PASS, result(target=target)], after, [BROKEN, result(breaks=(A,), target=target)]
    )
    assert compared.differences == ("torch 2.12.0 -> 2.13.0", "torch 2.14.0 -> 2.15.0")
    causes = {c.target.environment: c.causes for c in compared.changes}
    assert causes == {
        "default": ("torch 2.12.0 -> 2.13.0",),
        "nightly": ("torch 2.14.0 -> 2.15.0",),
    }


def test_what_differs_between_the_environments_is_named() -> None:
    compared = _changed(
        {"torch": "2.12.0", "packages": {"numpy": "2.4.6", "timm": "1.0"}},
        {
            "torch": "2.13.0",
            "transformers": "5.24.0",
            "python": "3.12.1",
            "packages": {"numpy": "3"},
        },
    )
    expected = (
        "numpy 2.4.6 -> 3",
        "python 3.11.7 -> 3.12.1",
        "timm 1.0 -> none",
        "torch 2.12.0 -> 2.13.0",
        "transformers 5.23.0 -> 5.24.0",
    )
    assert compared.differences == expected
    assert sorted(compared.changes[0].causes) == list(expected)


def test_a_nightly_is_known_by_its_revision_and_our_own_version_is_a_cause() -> None:
    compared = _changed({"torch_git": "1" * 40}, {"torch_git": "2" * 40})
    assert compared.differences == ("torch git 1111111111 -> 2222222222",)
    compared = compare(run("1", harness_version=1), [PASS], run("2", harness_version=2), [BROKEN])
    assert compared.differences == ("compilewatch 1 -> 2",)


def test_causes_of_one_model_are_its_own() -> None:
    def asked(revision: str, digest: str, **fields: Any) -> records.Result:
        build = records.ConfigBuild(config_file=f"/{revision}", config_sha256=digest)
        return result("org/m", revision=revision, build=build, **fields)

    before = [asked("r1", "c" * 64), PASS]
    after = [
        asked(
            "r2",
            "d" * 64,
            breaks=(A,),
            tier=records.Tier.REAL,
            depth=records.Depth.REDUCED,
            inputs=(records.TensorSummary(name="input_ids", shape=(2, 8)),),
        ),
        BROKEN,
    ]
    causes = {c.model: c.causes for c in _compare(before, after).changes}
    assert causes["org/m"] == (
        "revision r1 -> r2",
        "configuration cccccccccc -> dddddddddd",
        "tier fake -> real",
        "depth full -> reduced",
        "other example inputs",
    )
    assert causes["BertModel"] == ()


def test_the_configuration_of_a_model_of_another_library_is_a_cause() -> None:
    def made(digest: str, name: str = "resnet50", **fields: Any) -> records.Result:
        build = records.LibraryBuild(library="timm", name=name, configuration_sha256=digest)
        return result("org/m", build=build, **fields)

    for after, cause in (
        (made("d" * 64, breaks=(A,)), "configuration cccccccccc -> dddddddddd"),
        (made("c" * 64, name="vit", breaks=(A,)), "built otherwise"),
    ):
        (change,) = _compare([made("c" * 64)], [after]).changes
        assert change.causes == (cause,)


def test_a_new_model_has_no_causes() -> None:
    (change,) = _compare([], [BROKEN]).changes
    assert (change.before, change.after, change.causes) == (None, records.Status.GRAPH_BREAK, ())


RUNS = [
    run("20260101-000000-0000"),
    run("20260102-000000-0000"),
    run("20260103-000000-0000", state="interrupted"),
    run("20260104-000000-0000", source="hub"),
    run("20260105-000000-0000", shard="1/2"),
    run(
        "20260106-000000-0000", settings={"targets": ["dynamo"], "depth": "reduced", "tier": "auto"}
    ),
    run(
        "20260107-000000-0000",
        settings={"targets": ["dynamo/train"], "depth": "full", "tier": "auto"},
    ),
    run("20260109-000000-0000"),
]


def _baseline(of: records.Run) -> str | None:
    shuffled = random.Random(1).sample(RUNS, len(RUNS))
    found = default_baseline(shuffled, of)
    return found.id if found else None


def test_the_baseline_is_the_newest_earlier_finished_run_of_the_same_kind() -> None:
    assert _baseline(run("20260108-000000-0000")) == "20260102-000000-0000"
    assert _baseline(run("20260102-000000-0000")) == "20260101-000000-0000"
    assert _baseline(run("20260108-000000-0000", source="hub")) == "20260104-000000-0000"
    assert _baseline(run("20260108-000000-0000", shard="1/2")) == "20260105-000000-0000"
    assert _baseline(run("20260101-000000-0000")) is None
    assert _baseline(run("20260108-000000-0000", settings={"selection": {"top": 3}})) is None
    newer = factories.environment(torch="2.14.0")
    newest = run("20260108-000000-0000", environments=(newer,))
    assert _baseline(newest) == "20260102-000000-0000"


OLDER = factories.environment(name="torch-2.9", torch="2.9.0")


def test_between_environments_targets_match_whatever_theirs_is() -> None:
    both = run("1", environments=(factories.environment(), OLDER))
    older = records.Target(environment="torch-2.9")
    results = [
        PASS,
        result(breaks=(A,), target=older),
        result("Other"),
        result("Old", target=older),
    ]
    before, after, found = between_environments(
        both, results, both, results, ("default", "torch-2.9")
    )
    kinds = {change.model: change.kind for change in found.changes}
    assert kinds == {
        "BertModel": REGRESSION,
        "Other": records.ChangeKind.GONE,
        "Old": records.ChangeKind.NEW,
    }
    assert found.differences == ("torch 2.13.0 -> 2.9.0",)
    assert [e.torch for e in (*before.environments, *after.environments)] == ["2.13.0", "2.9.0"]


def _between(
    old: tuple[records.GraphBreak, ...], new: tuple[records.GraphBreak, ...]
) -> list[tuple[str, str]]:
    both = run("1", environments=(factories.environment(), OLDER))
    results = [
        result(breaks=old),
        result(breaks=new, target=records.Target(environment="torch-2.9")),
    ]
    _, _, found = between_environments(both, results, both, results, ("default", "torch-2.9"))
    return [(change.kind.value, change.reason) for change in found.changes]


def _at(line: int, gb_id: str | None, text: str = "") -> records.GraphBreak:
    result = factories.graph_break("forward", gb_id, line=line)
    frame = records.StackFrame(file=result.file, line=line, function="forward", text=text)
    return msgspec.structs.replace(result, user_stack=(frame,))


def test_between_environments_a_break_at_one_place_is_one_whatever_it_is_called() -> None:
    assert _between((_at(12, "GB0291"),), (_at(12, None),)) == []
    drifted = _at(12, "GB0291", "logger.warning(x)"), _at(19, None, "  logger.warning(x)")
    assert _between((drifted[0],), (drifted[1],)) == []


def test_between_environments_a_break_at_a_new_place_is_a_regression() -> None:
    one, two = _at(12, "GB0291", "a()"), _at(30, "GB0170", "b()")
    place = "GB0170 Data-dependent branching at transformers/models/bert/modeling_bert.py:30"
    assert _between((one,), (one, two)) == [("regression", f"breaks at a new place: {place}")]
    assert _between((one, two), (one,)) == [("fixed", f"no longer breaks: {place}")]


def test_between_environments_a_break_without_a_place_is_no_change() -> None:
    lost = factories.graph_break("unknown", None, code="unattributed", file="unknown", line=0)
    assert _between((_at(12, "GB0291"),), (_at(12, None), lost)) == []


def test_an_environment_without_results_is_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no result in environment 'xla'; it has: default"):
        between_environments(run("1"), [PASS], run("1"), [PASS], ("default", "xla"))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, records.ChangeKind.GONE),
        ({"settings": {"selection": {"top": 5}}}, records.ChangeKind.NOT_SELECTED),
        ({"source": "manifest"}, records.ChangeKind.NOT_SELECTED),
        ({"targets": (records.Target(mode=records.Mode.TRAIN),)}, records.ChangeKind.NOT_SELECTED),
        ({"planned": 2, "state": "running"}, records.ChangeKind.PENDING),
        ({"planned": 2, "state": "interrupted"}, records.ChangeKind.MISSING),
        ({"planned": 2, "state": "finished"}, records.ChangeKind.MISSING),
    ],
)
def test_what_a_run_has_no_result_of_is_one_of_four_things(
    changes: dict[str, Any], kind: records.ChangeKind
) -> None:
    before, after = factories.run("1", planned=2), factories.run("2", planned=1)
    after = msgspec.structs.replace(after, **changes)
    kept = factories.result("Kept")
    comparison = compare(before, [kept, factories.result("Absent")], after, [kept])
    (change,) = comparison.changes
    assert (change.model, change.kind, change.after) == ("Absent", kind, None)
    assert change.reason.endswith("was pass")


def _on(device: str, **fields: Any) -> records.Result:
    dtype = records.Dtype.FLOAT32 if device == "cpu" else records.Dtype.CONFIG
    return result(target=records.Target(device=device, dtype=dtype), **fields)


def test_between_devices_a_target_is_one_whatever_its_device_and_type() -> None:
    both = [_on("cpu", breaks=(A,)), _on("cuda"), _on("cuda:T4", breaks=(A, B))]
    comparison = between_devices(run("1"), both, run("1"), both, ("cpu", "cuda"))
    (change,) = comparison.changes
    assert (change.kind, change.before, change.after) == (
        records.ChangeKind.FIXED,
        records.Status.GRAPH_BREAK,
        records.Status.PASS,
    )
    assert comparison.differences[0] == "device cpu -> cuda"
    worse = between_devices(run("1"), both, run("1"), both, ("cpu", "cuda:T4"))
    assert [c.kind for c in worse.changes] == [records.ChangeKind.REGRESSION]


def test_between_devices_a_device_without_results_is_one_line() -> None:
    with pytest.raises(UsageError, match="no result for device 'cuda'; it has: cpu"):
        between_devices(run("1"), [_on("cpu")], run("1"), [_on("cpu")], ("cpu", "cuda"))


def test_breaks_that_a_probe_did_not_look_for_are_not_resolved() -> None:
    complete = result(breaks=(A, B))
    probed = result(breaks=(A,), probed=True)
    assert classify_change(complete, probed) is None
    assert classify_change(probed, complete) is None
    assert classify_change(PASS, probed) is not None


@pytest.mark.parametrize(
    ("planned", "kind"), [(3, records.ChangeKind.GONE), (4, records.ChangeKind.MISSING)]
)
def test_what_an_environment_lacks_is_removed_unless_the_run_is_incomplete(
    planned: int, kind: records.ChangeKind
) -> None:
    old, new = records.Target(environment="old"), records.Target(environment="new")
    results = [result("Both", target=old), result("Both", target=new), result("Gone", target=old)]
    environments = tuple(factories.environment(name=name) for name in ("old", "new"))
    both = run(environments=environments, targets=(old, new), planned=planned)
    _, _, comparison = between_environments(both, results, both, results, ("old", "new"))
    assert [(c.kind, c.model) for c in comparison.changes] == [(kind, "Gone")]
    _, _, comparison = between_environments(both, results, both, results, ("new", "old"))
    assert [(c.kind, c.model) for c in comparison.changes] == [(records.ChangeKind.NEW, "Gone")]


def code(text: str, line: int) -> dict[str, Any]:
    return {"line": line, "source_start": line, "source": (text,)}


def test_a_break_on_the_same_line_of_code_has_not_changed_wherever_it_stands() -> None:
    old = result(breaks=(graph_break("f", **code("if x:", 5)),))
    new = result(breaks=(graph_break("f", **code("  if x:", 9)),))
    assert changed_breaks(old, new) == ()


def test_breaks_are_paired_by_fingerprint_then_by_function_and_the_rest_stand_alone() -> None:
    moved = graph_break("f", **code("if x:", 5)), graph_break("f", **code("if y:", 5))
    other = graph_break("g", "GB0001"), graph_break("g", "GB0002")
    gone, added = graph_break("h"), graph_break("i")
    old = result(breaks=(gone, other[0], moved[0]))
    new = result(breaks=(moved[1], other[1], added))
    assert changed_breaks(old, new) == (moved, other, (gone, None), (None, added))
