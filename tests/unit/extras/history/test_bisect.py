from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.extras.history import bisect
from compilewatch.extras.history.bisect import Evaluated, Kind, changed_lines, search
from compilewatch.records import Phase, Status
from tests import factories
from tests.factories import graph_break

PASS = Evaluated(release="", kind=Kind.VERDICT, status=Status.PASS, phase=Phase.DONE)
BREAKS = Evaluated(
    release="",
    kind=Kind.VERDICT,
    status=Status.GRAPH_BREAK,
    phase=Phase.DONE,
    breaks=(graph_break(),),
)
ABSENT = Evaluated(release="", kind=Kind.ABSENT)
UNKNOWN = Evaluated(release="", kind=Kind.UNDETERMINED, detail="no environment")


def asked(states: list[Evaluated]) -> tuple[list[str], Callable[[str], Evaluated], list[str]]:
    """Releases 0, 1, 2…, a function that evaluates them, and the list of its calls."""
    calls: list[str] = []

    def evaluate(release: str) -> Evaluated:
        calls.append(release)
        found = states[int(release)]
        return Evaluated(release=release, kind=found.kind, status=found.status, breaks=found.breaks)

    return [str(number) for number in range(len(states))], evaluate, calls


@given(st.integers(2, 80), st.data())
def test_the_pair_is_found_within_the_limit(count: int, data: st.DataObject) -> None:
    change = data.draw(st.integers(1, count - 1))
    releases, evaluate, calls = asked([PASS] * change + [BREAKS] * (count - change))
    found = search(releases, evaluate)
    assert (found.pair, found.between) == ((str(change - 1), str(change)), ())
    assert len(calls) == len(set(calls)) <= bisect.most_evaluations(count) - 2
    assert not found.changes_again


@given(st.integers(2, 80), st.data())
def test_releases_without_a_state_never_cost_more_than_the_limit(
    count: int, data: st.DataObject
) -> None:
    kinds = [PASS, BREAKS, ABSENT, UNKNOWN]
    states = data.draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    releases, evaluate, calls = asked(states)
    found = search(releases, evaluate)
    assert len(calls) == len(set(calls)) <= bisect.most_evaluations(count)
    if found.pair is not None:
        last, first = map(int, found.pair)
        assert states[last].state == states[0].state != states[first].state
        assert states[first] is not UNKNOWN
        assert [releases.index(each) for each in found.between] == list(range(last + 1, first))


@pytest.mark.parametrize(
    ("states", "pair", "calls"),
    [
        ([PASS, PASS, UNKNOWN, BREAKS, BREAKS], (("1", "3"), ("2",)), None),
        ([PASS, PASS, PASS, UNKNOWN, PASS, PASS, BREAKS], (("5", "6"), ()), None),
        ([PASS, BREAKS, PASS], (None, ()), ["0", "2"]),
        ([UNKNOWN, PASS, PASS], (None, ()), ["0", "2"]),
        ([PASS, PASS, UNKNOWN], (None, ()), ["0", "2"]),
    ],
)
def test_what_has_no_state_is_passed_over_and_named_only_inside_the_pair(
    states: list[Evaluated], pair: tuple[Any, ...], calls: list[str] | None
) -> None:
    releases, evaluate, made = asked(states)
    found = search(releases, evaluate)
    assert (found.pair, found.between) == pair
    assert calls in (None, made)


def test_a_further_change_is_said() -> None:
    releases, evaluate, _ = asked([PASS, PASS, ABSENT, ABSENT, BREAKS])
    found = search(releases, evaluate)
    assert found.changes_again
    assert found.of("2").lacks(found.of("4")) == BREAKS.breaks
    assert found.of("4").lacks(found.of("2")) == ()


def evaluated(**fields: Any) -> Evaluated:
    return bisect.evaluated("1", bisect.EvaluatedVersion(factories.result(**fields)), "e")


def test_the_state_of_a_result_is_its_verdict_and_its_breaks() -> None:
    one, other = graph_break("forward", line=1), graph_break("other")
    state = evaluated(breaks=(one,)).state
    assert state == evaluated(breaks=(graph_break("forward", line=99),)).state
    for breaks in ((other,), (one, other), ()):
        assert state != evaluated(breaks=breaks).state
    assert evaluated(status=Status.ERROR).state != evaluated().state


@pytest.mark.parametrize(
    ("status", "phase", "kind"),
    [
        (Status.PASS, Phase.DONE, Kind.VERDICT),
        (Status.ERROR, Phase.COMPILE, Kind.VERDICT),
        (Status.ERROR, Phase.CREATE, Kind.FAILED),
        (Status.UNSUPPORTED, Phase.SETUP, Kind.FAILED),
        (Status.ERROR, Phase.SETUP, Kind.UNDETERMINED),
        (Status.TIMEOUT, Phase.COMPILE, Kind.UNDETERMINED),
        (Status.OOM, Phase.EAGER, Kind.UNDETERMINED),
        (Status.CRASHED, Phase.COMPILE, Kind.UNDETERMINED),
    ],
)
def test_what_the_machine_caused_is_no_state(status: Status, phase: Phase, kind: Kind) -> None:
    assert evaluated(status=status, phase=phase).kind is kind


BEFORE = [f"line {number}" for number in range(1, 41)]
AFTER = [*BEFORE[:4], "changed near the top", *BEFORE[5:34], "new", *BEFORE[34:]]
TOP, END = "@@ -3,5 +3,5 @@", "@@ -33,4 +33,5 @@"


def test_changes_come_with_their_context_in_order_and_many_are_cut() -> None:
    found = changed_lines(BEFORE, AFTER, 60)
    assert found[:6] == (TOP, " line 3", " line 4", "-line 5", "+changed near the top", " line 6")
    assert found[7:] == (END, " line 33", " line 34", "+new", " line 35", " line 36")
    assert changed_lines(BEFORE, AFTER, 6) == (*found[:6], "… and 7 more lines")
    assert changed_lines(BEFORE, BEFORE, 6) == ()
    assert changed_lines([], ["a"], 6) == ("@@ -0,0 +1 @@", "+a")
