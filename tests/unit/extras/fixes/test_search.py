"""The search: what it adds, leaves out, bans, and when it ends. No process, no torch."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
import pytest

from compilewatch.extras.fixes import records
from compilewatch.extras.fixes import search as searching
from compilewatch.extras.fixes.candidates import Place
from compilewatch.extras.fixes.search import MAX_VERIFICATIONS, Limits, Search
from compilewatch.records import ErrorRecord, GraphBreak, Phase, Result, Status
from tests.factories import error, graph_break, request, result
from tests.unit.extras.fixes.finding import change

Names = frozenset[str]

ANY = {"any change"}


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
    offers: dict[str, Sequence[records.FixChange]]
    hidden: dict[str, str] = field(default_factory=dict)
    errors: Callable[[Names], str] = lambda _: ""
    rejects: Callable[[Names], str] = lambda _: ""
    single: Callable[[Names], bool] | None = None
    verified: list[list[str]] = field(default_factory=list)
    asked: list[GraphBreak] = field(default_factory=list)

    def left(self, names: Names) -> list[str]:
        there = [
            place
            for place, needed in self.breaks.items()
            if (not names if needed is ANY else not needed <= names)
        ]
        return [place for place in there if self.hidden.get(place) not in there]

    def evaluate(self, several: Sequence[Sequence[records.FixChange]]) -> list[Result]:
        return [self.result(frozenset(c.name for c in changes)) for changes in several]

    def result(self, names: Names) -> Result:
        if where := self.errors(names):
            return failing(where)
        left = self.left(names)
        return broken(*left) if left else result()

    def verify(self, changes: Sequence[records.FixChange]) -> tuple[str, records.Verification]:
        names = frozenset(each.name for each in changes)
        self.verified.append([each.name for each in changes])
        reason = self.rejects(names)
        single = self.single(names) if self.single else not self.left(names)
        step = records.VerificationStep(name="results", passed=not reason, detail=reason)
        counts = (len(self.left(frozenset())), len(self.left(names)))
        return "script", records.Verification(steps=(step,), single_graph=single, breaks=counts)

    def proposals(
        self, breaks: Sequence[GraphBreak], _: Place, *, rewrites: bool
    ) -> tuple[records.FixChange, ...]:
        self.asked += breaks
        offered = [c for each in breaks for c in self.offers.get(each.function, ())]
        return tuple(
            c for c in dict.fromkeys(offered) if rewrites or c.kind is not records.FixKind.REWRITE
        )


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[..., records.Fix]:
    def search(world: World, **options: Any) -> records.Fix:
        monkeypatch.setattr(searching, "proposals", world.proposals)
        place = Place(request=request(), source_of=lambda _: None)
        rewrites = options.pop("rewrites", True)
        limits = Limits(**{name.removeprefix("max_"): limit for name, limit in options.items()})
        search = partial(Search, world.evaluate, world.verify, place, limits, rewrites=rewrites)
        ahead = search(ahead=True).run()  # finds the same, in the same trials
        asked, verified = len(world.asked), len(world.verified)
        fix = search().run()
        del world.asked[asked:], world.verified[verified:]
        assert ahead.trials == fix.trials
        assert (ahead.status, ahead.changes, ahead.left) == (fix.status, fix.changes, fix.left)
        return fix

    return search


def names(fix: records.Fix) -> list[str]:
    return [each.name for each in fix.changes]


A, B, C, D = (change(name) for name in "ABCD")
REWRITE = change("rewrite", records.FixKind.REWRITE)
OTHER = change("other-rewrite", records.FixKind.REWRITE)
ONCE = change("once", records.FixKind.FUNCTION, once=True)
MOVING: dict[str, Sequence[records.FixChange]] = {
    "f": [A],
    "error": [REWRITE],
    "second error": [OTHER],
}
VERIFIED, IMPROVES, NOTHING = (
    records.FixStatus.VERIFIED,
    records.FixStatus.IMPROVES,
    records.FixStatus.NOTHING,
)

A_THEN_B = World({"1": {"rewrite"}, "2": {"A"}}, {"1": [REWRITE], "2": [A]}, hidden={"2": "1"})
HIDDEN = World(
    {"1": {"A"}, "2": {"B"}, "3": {"C"}, "4": {"D"}},
    {"1": [A], "2": [B], "3": [C], "4": [D]},
    hidden={"2": "1", "3": "2", "4": "3"},
)
ONE = {"f": {"A"}}
# Why, the world, the status, and the changes of the fix.
SEARCHES = [
    ("no breaks", World({}, {}), records.FixStatus.NO_BREAK, ""),
    ("two help only together", World({"f": {"A", "B"}}, {"f": [A, B]}), VERIFIED, "A B"),
    ("not needed is left out", World({"f": {"B"}}, {"f": [A, B, C, D]}), VERIFIED, "B"),
    ("the least intrusive first, found behind a rewrite", A_THEN_B, VERIFIED, "A rewrite"),
    ("breaks that others hid", HIDDEN, VERIFIED, "A B C D"),
    (
        "what ends in an error alone is not kept",
        World({"f": {"B"}}, {"f": [A, B]}, errors=lambda names: "x" * ("A" in names)),
        *(VERIFIED, "B"),
    ),
    (
        "rewrites while the error moves on",
        World(ONE, MOVING, errors=lambda n: {1: "error", 2: "second error"}.get(len(n), "")),
        *(VERIFIED, "A rewrite other-rewrite"),
    ),
    (
        "a rewrite that leaves the error where it was",
        World(ONE, MOVING, errors=lambda names: "error" if names else ""),
        *(NOTHING, ""),
    ),
    ("fewer breaks", World({"one": {"A"}, "two": {"nothing"}}, {"one": [A]}), IMPROVES, "A"),
    ("the script's graph", World(ONE, {"f": [A]}, single=lambda _: False), IMPROVES, "A"),
    (
        "a shape that cannot be dynamic is compiled by itself",
        World(ONE, {"f": [A]}, rejects=lambda n: "Unbacked" * ("dynamic=False" not in n)),
        *(VERIFIED, "dynamic=False A"),
    ),
    (
        "what the verification rejects is banned",
        World({"f": ANY}, {"f": [A, B]}, rejects=lambda names: "NaN" * ("A" in names)),
        *(VERIFIED, "B"),
    ),
]


@pytest.mark.parametrize(("why", "world", "status", "changes"), SEARCHES)
def test_what_a_search_finds(
    found: Callable[..., records.Fix],
    why: str,
    world: World,
    status: records.FixStatus,
    changes: str,
) -> None:
    fix, expected = found(world), changes.split()
    assert (fix.status, names(fix), fix.limit) == (status, expected, ""), why
    assert bool(fix.code) == bool(expected)
    assert fix.script == ("script" if expected else "")
    assert [each.function for each in fix.left] == world.left(frozenset(expected))
    tried = [frozenset(trial.changes) for trial in fix.trials]
    assert len(tried) == len(set(tried))  # the same changes are evaluated once


def test_a_model_that_cannot_be_judged_is_not_searched(found: Callable[..., records.Fix]) -> None:
    world = World({}, {"error": [A]})
    late = result(status=Status.TIMEOUT)
    failed = result(status=Status.ERROR, phase=Phase.EAGER, error=error())
    for outcome in (late, failed):
        world.evaluate = lambda _, outcome=outcome: [outcome]  # type: ignore[method-assign, misc]
        fix = found(world)
        assert (fix.status, len(fix.trials)) == (records.FixStatus.NO_VERDICT, 1)


def test_it_goes_beyond_an_error_of_the_compiler(found: Callable[..., records.Fix]) -> None:
    world = World(
        {"f": {"A"}},
        {"f": [A], "error": [REWRITE]},
        errors=lambda names: "error" if names == {"A"} else "",
    )
    assert names(found(world)) == ["A", "rewrite"]
    assert found(world, rewrites=False).status is NOTHING
    # The stack of the model is read from the message.
    stack = next(each.user_stack for each in world.asked if each.file == "m.py")
    assert [(f.file, f.line, f.function) for f in stack] == [
        ("library/model.py", 7, "forward"),
        ("torch/nn/functional.py", 9, "pad"),
    ]


def test_a_change_that_works_once_only_is_tried_alone(found: Callable[..., records.Fix]) -> None:
    fix = found(World({"forward": {"once"}}, {"forward": [A, ONCE]}))
    assert names(fix) == ["once"]
    assert [each.changes for each in fix.trials][1:3] == [("A",), ("once",)]


def test_nothing_is_printed_if_the_verification_rejects_everything(
    found: Callable[..., records.Fix],
) -> None:
    changes = [change(f"change {number}") for number in range(2 * MAX_VERIFICATIONS)]
    world = World({"forward": ANY}, {"forward": changes}, rejects=lambda _: "wrong")
    fix = found(world, max_evaluations=100)
    assert (fix.status, fix.code, fix.changes) == (records.FixStatus.CAPTURED, "", ())
    assert len(world.verified) == len(fix.rejections) == MAX_VERIFICATIONS
    assert fix.rejections[0].reason == "results: wrong"
    assert fix.left == fix.breaks
    # It ends where the model fails without the fix, too: another one would not compile either.
    world.verified.clear()
    world.rejects = lambda _: "AssertionError: stride (without the fix, too)"
    assert found(world).status is records.FixStatus.CAPTURED
    assert len(world.verified) == 1


def test_it_stops_at_its_number_of_evaluations(found: Callable[..., records.Fix]) -> None:
    fix = found(World({"f": {"A", "B"}}, {"f": [A, B]}), max_evaluations=1)
    assert (fix.status, fix.limit, len(fix.trials)) == (NOTHING, "1 evaluations", 1)
    fix = found(World(ONE, {"f": [A]}), max_seconds=-1.0)  # a search of a run that is late
    assert (fix.status, fix.limit, len(fix.trials)) == (NOTHING, "-1 seconds", 1)
    # What was verified before the limit is kept.
    world = World({"one": {"A"}, "two": {"nothing"}}, {"one": [A], "two": [B, C, D]})
    complete = found(world)
    fix = found(world, max_evaluations=len(complete.trials) - 1)
    assert (fix.status, names(fix)) == (IMPROVES, ["A"])
    assert fix.limit
    # What helped until the limit is verified.
    world = World({"one": {"A"}, "two": {"B"}}, {"one": [A], "two": [B]}, {"two": "one"})
    fix = found(world, max_evaluations=2)
    assert (fix.status, names(fix), fix.limit) == (IMPROVES, ["A"], "2 evaluations")
    assert world.verified == [["A"]]
    # What turned out not to be needed is not.
    fix = found(World({"one": {"A"}}, {"one": [A, B, C]}), max_evaluations=3)
    assert (fix.status, names(fix), fix.limit) == (VERIFIED, ["A", "B"], "3 evaluations")
    # What was rejected is not verified again.
    world = World({"one": {"A"}}, {"one": [A, B]}, rejects=lambda _: "other results")
    for most in range(2, len(found(world, max_evaluations=100).trials)):
        world.verified.clear()
        assert found(world, max_evaluations=most).status is records.FixStatus.CAPTURED
        assert len(world.verified) == len({*map(tuple, world.verified)})


@pytest.mark.parametrize("slow", ["errors", "rejects"])
def test_it_stops_at_its_time(found: Callable[..., records.Fix], slow: str) -> None:
    def late(_: Names) -> str:
        time.sleep(0.06)
        return "GuardOnDataDependentSymNode" if slow == "rejects" else ""

    world = World({"forward": {"A", "B"}}, {"forward": [A, B]})
    setattr(world, slow, late)
    fix = found(world, max_seconds=0.05)
    assert fix.limit == "0.05 seconds"
    rejected = [("A", "B")] if slow == "rejects" else []  # which is said all the same
    assert [each.changes for each in fix.rejections] == rejected
    assert fix.status is (records.FixStatus.CAPTURED if rejected else NOTHING)
