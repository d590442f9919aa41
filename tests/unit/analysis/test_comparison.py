import itertools
import random
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch import records
from compilewatch.analysis import comparison
from compilewatch.analysis.comparison import changed_breaks, classify_change, compare
from compilewatch.records import ChangeKind, Mode, Phase, Status, Target
from tests import example_run
from tests.factories import environment, graph_break, result, run, shapes, view

A, B, C = graph_break("a"), graph_break("b"), graph_break("c")
OTHER = graph_break("a", "GB0059")

PASS = result()
BROKEN = result(breaks=(A,))
MISMATCH = result(status=Status.MISMATCH)
COMPILE_ERROR = result(status=Status.ERROR, phase=Phase.COMPILE)
CREATE_ERROR = result(status=Status.ERROR, phase=Phase.CREATE)
TIMEOUT = result(status=Status.TIMEOUT)
SKIPPED = result(status=Status.SKIPPED)
FAILS, _, NO_FORECAST = example_run.forecasts()
LOWERS = msgspec.structs.replace(FAILS, status=Status.FORECAST_PASS, details=None)
BAD_TOOL = msgspec.structs.replace(FAILS, status=Status.ERROR)
UNSUPPORTED = result(status=Status.UNSUPPORTED)
FEW, MANY = result(shapes=shapes(5, 3)), result(shapes=shapes(5, 4))

REGRESSION, FIXED, NEW = ChangeKind.REGRESSION, ChangeKind.FIXED, ChangeKind.NEW
GONE, MISSING, NOT_SELECTED = ChangeKind.GONE, ChangeKind.MISSING, ChangeKind.NOT_SELECTED
NEWLY_TESTED, NO_LONGER_TESTED = ChangeKind.NEWLY_TESTED, ChangeKind.NO_LONGER_TESTED
FORECAST = ChangeKind.FORECAST_CHANGED
MORE_COMPILATIONS = ChangeKind.MORE_COMPILATIONS


def kind_of(old: Any, new: Any, **given: Any) -> ChangeKind | None:
    change = classify_change(old, new, **given)
    return change[0] if change else None


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
        (CREATE_ERROR, PASS, NEWLY_TESTED),
        (TIMEOUT, COMPILE_ERROR, NEWLY_TESTED),
        (UNSUPPORTED, BROKEN, NEWLY_TESTED),
        (PASS, TIMEOUT, NO_LONGER_TESTED),
        (PASS, CREATE_ERROR, NO_LONGER_TESTED),
        (BROKEN, SKIPPED, NO_LONGER_TESTED),
        (CREATE_ERROR, TIMEOUT, None),
        (LOWERS, FAILS, FORECAST),
        (FAILS, LOWERS, FORECAST),
        (FAILS, FAILS, None),
        (FAILS, PASS, NEWLY_TESTED),
        (COMPILE_ERROR, FAILS, NO_LONGER_TESTED),
        (NO_FORECAST, FAILS, NEWLY_TESTED),
        (LOWERS, BAD_TOOL, NO_LONGER_TESTED),
        (NO_FORECAST, BAD_TOOL, None),
        (FEW, MANY, MORE_COMPILATIONS),
        (MANY, FEW, None),
        (FEW, PASS, None),
        (PASS, MANY, None),
        (FEW, BROKEN, REGRESSION),
    ],
)
def test_a_regression_is_claimed_only_where_both_sides_ran(
    old: Any, new: Any, kind: ChangeKind | None
) -> None:
    assert kind_of(old, new) is kind


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
    before: Any, after: Any, kind: ChangeKind | None
) -> None:
    assert kind_of(result(breaks=before), result(breaks=after)) is kind


STATES = [PASS, MISMATCH, COMPILE_ERROR, CREATE_ERROR, TIMEOUT, SKIPPED, UNSUPPORTED]
STATES += [FAILS, LOWERS, NO_FORECAST, BAD_TOOL]
BREAKS = st.lists(st.sampled_from([A, B, C, OTHER]), min_size=1, max_size=4, unique=True)
RESULTS = st.sampled_from(STATES) | BREAKS.map(lambda breaks: result(breaks=tuple(breaks)))
TURNED: dict[ChangeKind | None, set[ChangeKind | None]] = {
    # Of as many breaks, one that is of another cause is a regression in both directions.
    REGRESSION: {FIXED, REGRESSION, None},
    FIXED: {REGRESSION},
    FORECAST: {FORECAST},
    NEWLY_TESTED: {NO_LONGER_TESTED},
    NO_LONGER_TESTED: {NEWLY_TESTED},
    None: {None, REGRESSION},
}
"""What a change may be when the runs are exchanged."""


@given(RESULTS, RESULTS, st.booleans())
def test_any_change_turned_round_is_its_opposite(old: Any, new: Any, by_place: bool) -> None:
    kind, turned = (kind_of(*pair, by_place=by_place) for pair in ((old, new), (new, old)))
    assert turned in TURNED[kind]
    assert REGRESSION not in (kind, turned) or (old.is_verdict and new.is_verdict)
    assert kind_of(old, old, by_place=by_place) is None


def test_a_regression_names_the_new_causes() -> None:
    new = graph_break("b", "GB0059")
    for old, changed, words in (
        (BROKEN, result(breaks=(A, new)), "1 -> 2 distinct graph breaks; new: GB0059 Type GB0059"),
        (PASS, BROKEN, "pass -> graph_break (1: GB0170 Data-dependent branching)"),
        (PASS, COMPILE_ERROR, "pass -> error in compile (backend_error)"),
    ):
        assert classify_change(old, changed) == (REGRESSION, words)
    forecast = "forecast_pass -> forecast_fail (aten.histc.default)"
    assert classify_change(LOWERS, FAILS) == (FORECAST, forecast)


def test_the_fullgraph_verdict_counts_where_the_breaks_are_the_same() -> None:
    accepted, rejected = (
        result(breaks=(A,), fullgraph=records.FullgraphVerdict(accepted=accepted, code="GB0007"))
        for accepted in (True, False)
    )
    unknown = result(breaks=(A,), fullgraph=None)
    said = "fullgraph=True no longer accepts it: GB0007"
    assert classify_change(accepted, rejected) == (REGRESSION, said)
    assert kind_of(rejected, accepted) is FIXED
    assert kind_of(unknown, rejected) is None


def test_every_model_and_target_is_in_exactly_one_bucket() -> None:
    """Over all pairs of states a model can be in, and in any order."""
    states = [None, PASS, BROKEN, MISMATCH, COMPILE_ERROR, CREATE_ERROR, TIMEOUT, SKIPPED]
    states += [result(status=status) for status in records.FORECASTS]
    sides: tuple[list[records.Result], list[records.Result]] = ([], [])
    for number, pair in enumerate(itertools.product(states, states)):
        for target in (Target(), Target(mode=Mode.TRAIN)):
            for state, side in zip(pair, sides, strict=True):
                if state is not None:
                    asked = {"phase": state.phase, "target": target}
                    side.append(result(f"M{number}", state.status, state.breaks, **asked))
    before, after = sides
    random.Random(0).shuffle(after)
    compared = compare(run("1"), before, run("2"), after)
    olds, news = ({(r.request.model.name, r.request.target): r for r in side} for side in sides)
    changed = Counter((change.model, change.target) for change in compared.changes)
    assert set(changed.values()) == {1}
    for identity in (olds.keys() | news.keys()) - changed.keys():
        assert classify_change(olds[identity], news[identity]) is None
    kinds = set(ChangeKind) - {NOT_SELECTED, ChangeKind.PENDING, MISSING, MORE_COMPILATIONS}
    assert {c.kind for c in compared.changes} == kinds
    by_kind = sorted(compared.changes, key=lambda change: list(ChangeKind).index(change.kind))
    assert by_kind == list(compared.changes)


def test_changes_come_by_kind_and_downloads() -> None:
    downloads = {"A": 1, "B": 50, "C": None}
    before = [result(name, downloads=number) for name, number in downloads.items()]
    after = [result(name, breaks=(A,), downloads=n) for name, n in downloads.items()]
    before.append(result("D", breaks=(A,)))
    compared = compare(run("1"), before, run("2"), [*after, result("D")])
    assert [c.model for c in compared.changes] == ["B", "A", "C", "D"]


def test_what_differs_is_named_of_all_environments_and_for_each_model_of_its_own() -> None:
    nightly = Target(environment="nightly")
    before, after = (
        run("1", environments=(environment(torch=torch), environment(name="nightly", torch=later)))
        for torch, later in (("2.12.0", "2.14.0"), ("2.13.0", "2.15.0"))
    )
    olds, news = [PASS, result(target=nightly)], [BROKEN, result(breaks=(A,), target=nightly)]
    compared = compare(before, olds, after, news)
    lines = ("torch 2.12.0 -> 2.13.0", "torch 2.14.0 -> 2.15.0")
    assert compared.differences == lines
    causes = {c.target.environment: c.causes for c in compared.changes}
    assert causes == {"default": lines[:1], "nightly": lines[1:]}


def test_what_differs_between_the_environments_is_named() -> None:
    old = {"torch": "2.12.0", "packages": {"numpy": "2.4.6", "timm": "1.0"}}
    new = {"torch": "2.13.0", "python": "3.12.1", "packages": {"numpy": "3"}}
    lines = ("numpy 2.4.6 -> 3", "python 3.11.7 -> 3.12.1", "timm 1.0 -> none")
    revisions = [{"torch_git": digit * 40} for digit in "12"]  # by which a nightly is known
    for pair, expected in (
        ((old, new), (*lines, "torch 2.12.0 -> 2.13.0")),
        (revisions, ("torch git 1111111111 -> 2222222222",)),
    ):
        before, after = (run("1", environments=(environment(**fields),)) for fields in pair)
        compared = compare(before, [PASS], after, [BROKEN])
        assert compared.differences == expected
        assert tuple(sorted(compared.changes[0].causes)) == expected
    compared = compare(run("1", harness_version=1), [PASS], run("2", harness_version=2), [BROKEN])
    assert compared.differences == ("compilewatch 1 -> 2",)


def test_causes_of_one_model_are_its_own() -> None:
    def asked(revision: str, digest: str, **fields: Any) -> records.Result:
        build = records.ConfigBuild(config_file=f"/{revision}", config_sha256=digest)
        return result("org/m", revision=revision, build=build, **fields)

    inputs = (records.TensorSummary(name="input_ids", shape=(2, 8)),)
    otherwise = {"tier": records.Tier.REAL, "depth": records.Depth.REDUCED, "inputs": inputs}
    after = [asked("r2", "d" * 64, breaks=(A,), **otherwise), BROKEN]
    compared = compare(run("1"), [asked("r1", "c" * 64), PASS], run("2"), after)
    causes = {c.model: c.causes for c in compared.changes}
    assert causes["org/m"] == (
        "revision r1 -> r2",
        "configuration cccccccccc -> dddddddddd",
        "tier fake -> real",
        "depth full -> reduced",
        "other example inputs",
    )
    assert causes["BertModel"] == ()
    (change,) = compare(run("1"), [], run("2"), [BROKEN]).changes
    assert (change.before, change.after, change.causes) == (None, Status.GRAPH_BREAK, ())


def test_the_configuration_of_a_model_of_another_library_is_a_cause() -> None:
    def made(digest: str, name: str = "resnet50", **fields: Any) -> records.Result:
        build = records.LibraryBuild(library="timm", name=name, configuration_sha256=digest)
        return result("org/m", build=build, **fields)

    for after, cause in (
        (made("d" * 64, breaks=(A,)), "configuration cccccccccc -> dddddddddd"),
        (made("c" * 64, name="vit", breaks=(A,)), "built otherwise"),
    ):
        (change,) = compare(run("1"), [made("c" * 64)], run("2"), [after]).changes
        assert change.causes == (cause,)


SETTINGS = {"targets": ["dynamo"], "depth": "full", "tier": "auto"}
RUNS = [
    run("20260101"),
    run("20260102"),
    run("20260103", state="interrupted"),
    run("20260104", source="hub"),
    run("20260105", shard="1/2"),
    run("20260106", settings={**SETTINGS, "depth": "reduced"}),
    run("20260107", settings={**SETTINGS, "targets": ["dynamo/train"]}),
    run("20260109"),
]


@pytest.mark.parametrize(
    ("of", "baseline"),
    [
        (run("20260108"), "20260102"),
        (run("20260102"), "20260101"),
        (run("20260108", source="hub"), "20260104"),
        (run("20260108", shard="1/2"), "20260105"),
        (run("20260101"), None),
        (run("20260108", settings={"selection": {"top": 3}}), None),
        (run("20260108", environments=(environment(torch="2.14.0"),)), "20260102"),
    ],
)
def test_the_baseline_is_the_newest_earlier_finished_run_of_the_same_kind(
    of: records.Run, baseline: str | None
) -> None:
    found = comparison.default_baseline(random.Random(1).sample(RUNS, len(RUNS)), of)
    assert (found.id if found else None) == baseline


TWO = ("default", "torch-2.9")
OLDER = Target(environment="torch-2.9")
BOTH = run("1", environments=(environment(), environment(name="torch-2.9", torch="2.9.0")))


def between(
    results: list[records.Result], names: Any = TWO, field: str = "environment", **changes: Any
) -> Any:
    both = msgspec.structs.replace(BOTH, **changes)
    return comparison.between(both, results, both, results, names, field)


def test_between_environments_targets_match_whatever_theirs_is() -> None:
    older = [result(breaks=(A,), target=OLDER), result("Old", target=OLDER)]
    before, after, found = between([PASS, result("Other"), *older])
    kinds = {change.model: change.kind for change in found.changes}
    assert kinds == {"BertModel": REGRESSION, "Other": GONE, "Old": NEW}
    assert found.differences == ("torch 2.13.0 -> 2.9.0",)
    assert [e.torch for e in (*before.environments, *after.environments)] == ["2.13.0", "2.9.0"]


def at(line: int, gb_id: str | None, text: str = "") -> records.GraphBreak:
    frame = records.StackFrame(file=A.file, line=line, function="forward", text=text)
    return graph_break("forward", gb_id, line=line, user_stack=(frame,))


LOST = graph_break("unknown", None, code="unattributed", file="unknown", line=0)
ONE, SECOND = at(12, "GB0291", "a()"), at(30, "GB0170", "b()")
PLACE = "GB0170 Data-dependent branching at transformers/models/bert/modeling_bert.py:30"


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        # A break at one place is one, whatever it is called, and where its line has moved.
        ((at(12, "GB0291"),), (at(12, None),), []),
        ((at(12, "GB0291", "warn(x)"),), (at(19, None, "  warn(x)"),), []),
        ((ONE,), (ONE, SECOND), [(REGRESSION, f"breaks at a new place: {PLACE}")]),
        ((ONE, SECOND), (ONE,), [(FIXED, f"no longer breaks: {PLACE}")]),
        ((at(12, "GB0291"),), (at(12, None), LOST), []),
    ],
)
def test_between_environments_breaks_are_compared_by_place(
    old: Any, new: Any, changes: list[Any]
) -> None:
    _, _, found = between([result(breaks=old), result(breaks=new, target=OLDER)])
    assert [(change.kind, change.reason) for change in found.changes] == changes


@pytest.mark.parametrize(("planned", "kind"), [(3, GONE), (4, MISSING)])
def test_what_an_environment_lacks_is_removed_unless_the_run_is_incomplete(
    planned: int, kind: ChangeKind
) -> None:
    results = [result("Both"), result("Both", target=OLDER), result("Gone")]
    for names, expected in ((TWO, kind), (TWO[::-1], NEW)):
        _, _, found = between(results, names, targets=(Target(), OLDER), planned=planned)
        assert [(c.kind, c.model) for c in found.changes] == [(expected, "Gone")]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, GONE),
        ({"settings": {"selection": {"top": 5}}}, NOT_SELECTED),
        ({"source": "manifest"}, NOT_SELECTED),
        ({"targets": (Target(mode=Mode.TRAIN),)}, NOT_SELECTED),
        ({"planned": 2, "state": "running"}, ChangeKind.PENDING),
        ({"planned": 2, "state": "interrupted"}, MISSING),
        ({"planned": 2, "state": "finished"}, MISSING),
    ],
)
def test_what_a_run_has_no_result_of_is_one_of_four_things(
    changes: dict[str, Any], kind: ChangeKind
) -> None:
    kept, after = result("Kept"), msgspec.structs.replace(run("2", planned=1), **changes)
    (change,) = compare(run("1", planned=2), [kept, result("Absent")], after, [kept]).changes
    assert (change.model, change.kind, change.after) == ("Absent", kind, None)
    assert change.reason.endswith("was pass")


def on(device: str, **fields: Any) -> records.Result:
    dtype = records.Dtype.FLOAT32 if device == "cpu" else records.Dtype.CONFIG
    return result(target=Target(device=device, dtype=dtype), **fields)


def test_between_devices_a_target_is_one_whatever_its_device_and_type() -> None:
    results = [on("cpu", breaks=(A,)), on("cuda"), on("cuda:T4", breaks=(A, B))]
    for device, kind in (("cuda", FIXED), ("cuda:T4", REGRESSION)):
        _, _, found = between(results, ("cpu", device), "device")
        assert [change.kind for change in found.changes] == [kind]
        assert found.differences[0] == f"device cpu -> {device}"


def test_breaks_that_a_probe_did_not_look_for_are_not_resolved() -> None:
    complete, probed = result(breaks=(A, B)), result(breaks=(A,), probed=True)
    assert kind_of(complete, probed) is kind_of(probed, complete) is None
    assert kind_of(PASS, probed) is REGRESSION


def code(text: str, line: int) -> dict[str, Any]:
    return {"line": line, "source_start": line, "source": (text,)}


def test_breaks_are_paired_by_fingerprint_then_by_function_and_the_rest_stand_alone() -> None:
    moved = graph_break("f", **code("if x:", 5)), graph_break("f", **code("if y:", 5))
    other = graph_break("g", "GB0001"), graph_break("g", "GB0002")
    gone, added = graph_break("h"), graph_break("i")
    old = result(breaks=(gone, other[0], moved[0]))
    new = result(breaks=(moved[1], other[1], added))
    assert changed_breaks(old, new) == (moved, other, (gone, None), (None, added))
    # The same line of code has not changed, wherever it stands.
    elsewhere = result(breaks=(graph_break("f", **code("  if x:", 9)),))
    assert changed_breaks(result(breaks=moved[:1]), elsewhere) == ()


DAYS = [f"2026010{day}-030405-0001" for day in range(1, 5)]
BROKE = result("A", breaks=(A,))


def after(earlier: list[Status], shown: records.Result = BROKE, **fields: Any) -> records.RunView:
    """A view of one result with these statuses in earlier runs, oldest first."""
    points = tuple(
        records.Earlier(day, status, Phase.SETUP if status is Status.TIMEOUT else Phase.COMPILE)
        for day, status in zip(DAYS, earlier, strict=False)
    )
    return view(shown, history={(shown.request.model.name, "dynamo"): points}, **fields)


PASSED, BREAK, ENDED = Status.PASS, Status.GRAPH_BREAK, Status.TIMEOUT


@pytest.mark.parametrize(
    ("shown", "earlier", "since"),
    [
        (BROKE, [PASSED], run().id),
        (BROKE, [PASSED, BREAK, BREAK], DAYS[1]),
        (BROKE, [BREAK, Status.ERROR], None),  # never better
        (BROKE, [], None),
        (result("A"), [PASSED, BREAK], None),  # passes again
        (BROKE, [PASSED, ENDED, BREAK], DAYS[2]),  # a timeout says nothing
        (BROKE, [ENDED], None),
        (result("A", Status.TIMEOUT), [PASSED], None),
        (result("A", breaks=(A,), expectation="known"), [PASSED], None),
    ],
)
def test_a_model_is_regressed_since_the_run_after_its_last_better_verdict(
    shown: records.Result, earlier: list[Status], since: str | None
) -> None:
    found = [one.since for one in comparison.regressed(after(earlier, shown))]
    assert found == ([since] if since else [])


def test_what_is_regressed_comes_by_downloads_and_without_a_history_by_the_baseline() -> None:
    results = [result(n, breaks=(A,), downloads=d) for n, d in (("A", 1), ("B", 3), ("C", None))]
    history = {(n, "dynamo"): (records.Earlier(DAYS[0], PASSED, Phase.DONE),) for n in "ABC"}
    regressed = comparison.regressed(view(*results, history=history))
    assert [one.result.request.model.name for one in regressed] == ["B", "A", "C"]
    changes = compare(run(DAYS[0]), [result("A")], run(), [BROKE]).changes
    seen = view(BROKE, changes=changes, baseline=run(DAYS[0]))
    assert [one.since for one in comparison.regressed(seen)] == [seen.run.id]
    assert not comparison.is_comparable(view(BROKE))
    assert comparison.is_comparable(after([PASSED]))
    assert not comparison.is_comparable(after([ENDED]))
    assert comparison.is_comparable(view(BROKE, baseline=run(DAYS[0])))
