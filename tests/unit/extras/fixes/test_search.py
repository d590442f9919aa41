"""The search: what it adds, leaves out, bans, and when it ends. No process, no torch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from compilewatch.extras.fixes import search as searching
from compilewatch.extras.fixes.candidates import Place
from compilewatch.extras.fixes.records import (
    Fix,
    FixChange,
    FixKind,
    FixStatus,
    Verification,
    VerificationStep,
)
from compilewatch.extras.fixes.search import MAX_VERIFICATIONS, Search
from compilewatch.records import ErrorRecord, GraphBreak, Phase, Result, Status
from tests.factories import error, graph_break, request, result
from tests.unit.extras.fixes.finding import change

Names = frozenset[str]


def broken(*places: str) -> Result:
    return result(breaks=tuple(graph_break(place) for place in places))


MESSAGE = """\
PendingUnbackedSymbolNotFound: Pending unbacked symbols

from user code:
   File "library/model.py", line 7, in forward
    x = self.padded(x)
  File "torch/nn/functional.py", line 9, in pad
    return torch._C._nn.pad(x)

Set TORCHDYNAMO_VERBOSE=1
"""


def failing(where: str) -> Result:
    record = ErrorRecord(type="Guard", message=MESSAGE, code="data", file="m.py", function=where)
    return result(status=Status.ERROR, error=msgspec.structs.replace(record, line=len(where)))


@dataclass
class World:
    """A model with breaks, each of which some set of changes removes.

    `breaks` has, for each place, the names of which all together remove it; a place in `hidden`
    appears only when another is gone. `offers` has what is proposed for a place or an error.
    """

    breaks: dict[str, set[str]]
    offers: dict[str, Sequence[FixChange]]
    hidden: dict[str, str] = field(default_factory=dict)
    errors: Callable[[Names], str] = lambda _: ""
    rejects: Callable[[Names], str] = lambda _: ""
    single: Callable[[Names], bool] | None = None
    verified: list[list[str]] = field(default_factory=list)
    asked: list[GraphBreak] = field(default_factory=list)

    def left(self, names: Names) -> list[str]:
        there = [place for place, needed in self.breaks.items() if not needed <= names]
        return [place for place in there if self.hidden.get(place) not in there]

    def evaluate(self, changes: Sequence[FixChange]) -> Result:
        names = frozenset(each.name for each in changes)
        if where := self.errors(names):
            return failing(where)
        left = self.left(names)
        return broken(*left) if left else result()

    def verify(self, changes: Sequence[FixChange]) -> tuple[str, Verification]:
        names = frozenset(each.name for each in changes)
        self.verified.append([each.name for each in changes])
        reason = self.rejects(names)
        single = self.single(names) if self.single else not self.left(names)
        step = VerificationStep(name="results", passed=not reason, detail=reason)
        counts = (len(self.left(frozenset())), len(self.left(names)))
        return "script", Verification(steps=(step,), single_graph=single, breaks=counts)

    def proposals(
        self, breaks: Sequence[GraphBreak], _: Place, *, rewrites: bool
    ) -> tuple[FixChange, ...]:
        self.asked += breaks
        found = [c for each in breaks for c in self.offers.get(each.function, ())]
        return tuple(c for c in dict.fromkeys(found) if rewrites or c.kind is not FixKind.REWRITE)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fix]:
    def search(world: World, **options: Any) -> Fix:
        monkeypatch.setattr(searching, "proposals", world.proposals)
        place = Place(request=request(), source_of=lambda _: None)
        return Search(evaluate=world.evaluate, verify=world.verify, place=place, **options).run()

    return search


def names(fix: Fix) -> list[str]:
    return [each.name for each in fix.changes]


A, B, C, D = (change(name) for name in "ABCD")
REWRITE = change("rewrite", FixKind.REWRITE)


def test_a_model_without_breaks_needs_nothing(found: Callable[..., Fix]) -> None:
    fix = found(World({}, {}))
    assert (fix.status, len(fix.trials)) == (FixStatus.NO_BREAK, 1)


def test_a_model_that_cannot_be_judged_is_not_searched(found: Callable[..., Fix]) -> None:
    world = World({}, {"error": [A]})
    late = result(status=Status.TIMEOUT)
    failed = result(status=Status.ERROR, phase=Phase.EAGER, error=error())
    for outcome in (late, failed):
        world.evaluate = lambda _, outcome=outcome: outcome  # type: ignore[method-assign, misc]
        fix = found(world)
        assert (fix.status, len(fix.trials)) == (FixStatus.NO_VERDICT, 1)


def test_two_changes_that_help_only_together(found: Callable[..., Fix]) -> None:
    fix = found(World({"forward": {"A", "B"}}, {"forward": [A, B]}))
    assert (fix.status, names(fix)) == (FixStatus.VERIFIED, ["A", "B"])
    assert fix.left == ()
    assert fix.code
    assert fix.script == "script"


def test_what_is_not_needed_is_left_out(found: Callable[..., Fix]) -> None:
    world = World({"forward": {"B"}}, {"forward": [A, B, C, D]})
    assert names(found(world)) == ["B"]
    assert world.verified == [["B"]]


def test_the_least_intrusive_change_comes_first_in_the_code(found: Callable[..., Fix]) -> None:
    """The rewrite is found first, because what needs a setting is hidden behind it."""
    world = World(
        {"first": {"rewrite"}, "second": {"A"}},
        {"first": [REWRITE], "second": [A]},
        hidden={"second": "first"},
    )
    assert names(found(world)) == ["A", "rewrite"]


def test_it_goes_on_to_breaks_that_others_hid(found: Callable[..., Fix]) -> None:
    places = ["one", "two", "three", "four"]
    world = World(
        {place: {name} for place, name in zip(places, "ABCD", strict=True)},
        {place: [each] for place, each in zip(places, (A, B, C, D), strict=True)},
        hidden=dict(itertools.pairwise(places[::-1])),
    )
    fix = found(world)
    assert (fix.status, names(fix)) == (FixStatus.VERIFIED, ["A", "B", "C", "D"])
    assert [each.breaks for each in fix.trials[:5]] == [1, 1, 1, 1, 0]


def test_it_goes_beyond_an_error_of_the_compiler(found: Callable[..., Fix]) -> None:
    world = World(
        {"forward": {"A"}},
        {"forward": [A], "error": [REWRITE]},
        errors=lambda names: "error" if names == {"A"} else "",
    )
    fix = found(world)
    assert names(fix) == ["A", "rewrite"]
    assert found(world, rewrites=False).status is FixStatus.NOTHING
    # The stack of the model is read from the message.
    stack = next(each.user_stack for each in world.asked if each.file == "m.py")
    assert [(f.file, f.line, f.function) for f in stack] == [
        ("library/model.py", 7, "forward"),
        ("torch/nn/functional.py", 9, "pad"),
    ]


def test_rewrites_are_added_while_the_error_moves_on(found: Callable[..., Fix]) -> None:
    other = change("other rewrite", FixKind.REWRITE)
    world = World(
        {"forward": {"A"}},
        {"forward": [A], "error": [REWRITE], "second error": [other]},
        errors=lambda names: {1: "error", 2: "second error"}.get(len(names), ""),
    )
    fix = found(world)
    assert (fix.status, names(fix)) == (FixStatus.VERIFIED, ["A", "rewrite", "other rewrite"])
    world.errors = lambda names: "error" if names else ""  # a rewrite that leaves it where it was
    fix = found(world)
    assert fix.status is FixStatus.NOTHING
    tried = {name for trial in fix.trials for name in trial.changes}
    assert tried == {"A", "rewrite"}


def test_what_ends_in_an_error_alone_is_not_kept(found: Callable[..., Fix]) -> None:
    world = World(
        {"forward": {"B"}}, {"forward": [A, B]}, errors=lambda names: "x" * ("A" in names)
    )
    assert names(found(world)) == ["B"]


def test_a_change_that_removes_a_check_is_tried_alone_and_last(found: Callable[..., Fix]) -> None:
    dropped = change("dropped", removes_check=True)
    world = World({"forward": {"A"}}, {"forward": [A, dropped]})
    fix = found(world)
    assert names(fix) == ["A"]
    assert not any("dropped" in trial.changes for trial in fix.trials)


def test_a_change_that_works_once_only_is_tried_alone(found: Callable[..., Fix]) -> None:
    once = change("once", FixKind.FUNCTION, once=True)
    fix = found(World({"forward": {"once"}}, {"forward": [A, once]}))
    assert names(fix) == ["once"]
    assert [each.changes for each in fix.trials][1:3] == [("A",), ("once",)]


def test_what_the_verification_rejects_is_banned_and_another_found(
    found: Callable[..., Fix],
) -> None:
    """Either change removes the break, and the first one is wrong."""
    world = World({}, {"forward": [A, B]}, rejects=lambda names: "NaN" if "A" in names else "")
    world.left = lambda names: [] if names else ["forward"]  # type: ignore[method-assign]
    fix = found(world)
    assert (fix.status, names(fix)) == (FixStatus.VERIFIED, ["B"])
    assert [(each.changes, each.reason) for each in fix.rejections] == [(("A",), "results: NaN")]


def test_nothing_is_printed_if_the_verification_rejects_everything(
    found: Callable[..., Fix],
) -> None:
    changes = [change(f"change {number}") for number in range(2 * MAX_VERIFICATIONS)]
    world = World({}, {"forward": changes}, rejects=lambda _: "wrong")
    world.left = lambda names: [] if names else ["forward"]  # type: ignore[method-assign]
    fix = found(world, max_evaluations=100)
    assert (fix.status, fix.code, fix.changes) == (FixStatus.CAPTURED, "", ())
    assert len(world.verified) == len(fix.rejections) == MAX_VERIFICATIONS
    assert fix.left == fix.breaks


def test_it_ends_where_the_model_fails_without_the_fix_too(found: Callable[..., Fix]) -> None:
    """Another fix would not compile either."""
    failure = "results of Inductor: AssertionError: stride (without the fix, too)"
    world = World({}, {"forward": [A, B]}, rejects=lambda _: failure)
    world.left = lambda names: [] if names else ["forward"]  # type: ignore[method-assign]
    assert found(world).status is FixStatus.CAPTURED
    assert len(world.verified) == 1


def test_fewer_breaks_are_an_improvement(found: Callable[..., Fix]) -> None:
    fix = found(World({"one": {"A"}, "two": {"nothing"}}, {"one": [A]}))
    assert (fix.status, names(fix)) == (FixStatus.IMPROVES, ["A"])
    assert fix.detail == "1 graph break instead of 2"
    assert [each.function for each in fix.left] == ["two"]


def test_dynamo_alone_does_not_make_a_single_graph(found: Callable[..., Fix]) -> None:
    """The search is told that all is captured; what is printed is what the verification says."""
    fix = found(World({"forward": {"A"}}, {"forward": [A]}, single=lambda _: False))
    assert fix.status is FixStatus.IMPROVES


def test_a_shape_that_cannot_be_dynamic_is_compiled_by_itself(found: Callable[..., Fix]) -> None:
    world = World(
        {"forward": {"A"}},
        {"forward": [A]},
        rejects=lambda names: "" if "dynamic=False" in names else "GuardOnDataDependentSymNode",
    )
    fix = found(world)
    assert (fix.status, names(fix)) == (FixStatus.VERIFIED, ["dynamic=False", "A"])
    assert len(fix.rejections) == 1


def test_it_stops_at_its_number_of_evaluations(found: Callable[..., Fix]) -> None:
    world = World({"forward": {"A", "B"}}, {"forward": [A, B]})
    fix = found(world, max_evaluations=1)
    assert (fix.status, fix.limit) == (FixStatus.NOTHING, "1 evaluations")
    assert len(fix.trials) == 1
    assert found(world).limit == ""


def test_what_was_verified_before_the_limit_is_kept(found: Callable[..., Fix]) -> None:
    world = World({"one": {"A"}, "two": {"nothing"}}, {"one": [A], "two": [B, C, D]})
    complete = found(world)
    limited = found(world, max_evaluations=len(complete.trials) - 1)
    assert (limited.status, names(limited)) == (FixStatus.IMPROVES, ["A"])
    assert limited.limit


def test_what_helped_until_the_limit_is_verified(found: Callable[..., Fix]) -> None:
    world = World({"one": {"A"}, "two": {"B"}}, {"one": [A], "two": [B]}, {"two": "one"})
    fix = found(world, max_evaluations=2)
    assert (fix.status, names(fix), fix.limit) == (FixStatus.IMPROVES, ["A"], "2 evaluations")
    assert world.verified == [["A"]]


def test_what_turned_out_not_to_be_needed_is_not_verified_at_the_limit(
    found: Callable[..., Fix],
) -> None:
    fix = found(World({"one": {"A"}}, {"one": [A, B, C]}), max_evaluations=3)
    assert (fix.status, names(fix), fix.limit) == (FixStatus.VERIFIED, ["A", "B"], "3 evaluations")


def test_what_the_verification_rejected_is_not_verified_again_at_the_limit(
    found: Callable[..., Fix],
) -> None:
    world = World({"one": {"A"}}, {"one": [A, B]}, rejects=lambda _: "other results")
    complete = found(world, max_evaluations=100)
    for most in range(2, len(complete.trials)):
        world.verified.clear()
        assert found(world, max_evaluations=most).status is FixStatus.CAPTURED
        assert len(world.verified) == len({*map(tuple, world.verified)})


def test_it_stops_at_its_time(found: Callable[..., Fix]) -> None:
    def slow(_: Names) -> str:
        time.sleep(0.06)
        return ""

    world = World({"forward": {"A", "B"}}, {"forward": [A, B]}, errors=slow)
    fix = found(world, max_seconds=0.05)
    assert (fix.limit, len(fix.trials)) == ("0.05 seconds", 1)


def test_what_the_verification_rejected_is_said_although_the_time_has_ended(
    found: Callable[..., Fix],
) -> None:
    def slow(_: Names) -> str:
        time.sleep(0.06)
        return "GuardOnDataDependentSymNode"

    world = World({"forward": {"A"}}, {"forward": [A]}, rejects=slow)
    fix = found(world, max_seconds=0.05)
    assert (fix.status, fix.limit) == (FixStatus.CAPTURED, "0.05 seconds")
    assert [each.changes for each in fix.rejections] == [("A",)]


def test_the_same_changes_are_evaluated_once(found: Callable[..., Fix]) -> None:
    world = World({"one": {"A"}, "two": {"B"}}, {"one": [A, B], "two": [A, B]})
    fix = found(world)
    tried = [frozenset(each.changes) for each in fix.trials]
    assert len(tried) == len(set(tried))
