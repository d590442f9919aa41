from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch.errors import UsageError
from compilewatch.extras.history import cli
from compilewatch.extras.history.bisect import (
    Evaluated,
    EvaluatedVersion,
    Kind,
    changed_lines,
    evaluated,
    most_evaluations,
    search,
)
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
    assert (found.last, found.first, found.between) == (str(change - 1), str(change), ())
    assert len(calls) == len(set(calls)) <= most_evaluations(count) - 2
    assert not found.changes_again


@given(st.integers(2, 80), st.data())
def test_releases_without_a_state_never_cost_more_than_the_limit(
    count: int, data: st.DataObject
) -> None:
    kinds = [PASS, BREAKS, ABSENT, UNKNOWN]
    states = data.draw(st.lists(st.sampled_from(kinds), min_size=count, max_size=count))
    releases, evaluate, calls = asked(states)
    found = search(releases, evaluate)
    assert len(calls) == len(set(calls)) <= most_evaluations(count)
    if found.last is not None and found.first is not None:
        last, first = int(found.last), int(found.first)
        assert states[last].state == states[0].state != states[first].state
        assert states[first] is not UNKNOWN
        assert [releases.index(each) for each in found.between] == list(range(last + 1, first))


def test_one_without_a_state_is_passed_over_and_named_only_inside_the_pair() -> None:
    releases, evaluate, _ = asked([PASS, PASS, UNKNOWN, BREAKS, BREAKS])
    found = search(releases, evaluate)
    assert (found.last, found.first, found.between) == ("1", "3", ("2",))
    releases, evaluate, _ = asked([PASS, PASS, PASS, UNKNOWN, PASS, PASS, BREAKS])
    found = search(releases, evaluate)
    assert (found.last, found.first, found.between) == ("5", "6", ())


def test_ends_that_do_not_differ_or_are_unknown_need_no_search() -> None:
    for states in ([PASS, BREAKS, PASS], [UNKNOWN, PASS, PASS], [PASS, PASS, UNKNOWN]):
        releases, evaluate, calls = asked(states)
        found = search(releases, evaluate)
        assert (found.last, found.first) == (None, None)
        assert calls == ["0", "2"]


def test_a_further_change_is_said() -> None:
    releases, evaluate, _ = asked([PASS, PASS, ABSENT, ABSENT, BREAKS])
    found = search(releases, evaluate)
    assert found.changes_again
    assert found.of("2").lacks(found.of("4")) == BREAKS.breaks
    assert found.of("4").lacks(found.of("2")) == ()


def test_the_state_of_a_result_is_its_verdict_and_its_breaks() -> None:
    def state(**given: object) -> tuple[object, ...]:
        made = factories.result(**given)  # type: ignore[arg-type]
        return evaluated("1", EvaluatedVersion(made), "e").state

    one = graph_break("forward", line=1)
    assert state(breaks=(one,)) == state(breaks=(graph_break("forward", line=99),))
    assert state(breaks=(one,)) != state(breaks=(graph_break("other"),))
    assert state(breaks=(one,)) != state(breaks=(one, graph_break("other")))
    assert state() != state(breaks=(one,))
    assert state(status=Status.ERROR) != state()


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
    made = EvaluatedVersion(factories.result(status=status, phase=phase))
    assert evaluated("1", made, "e").kind is kind


def test_bisect_rejects_the_setting_for_a_target_without_it() -> None:
    arguments = ["BertModel", "--good", "5.5.4", "--bad", "5.23.0", "--torch", "2.15.0"]
    arguments += ["--target", "export", "--nested-graph-breaks", "on"]
    with pytest.raises(UsageError, match="--nested-graph-breaks is a setting of the target dynamo"):
        cli.bisect_command.main(arguments, standalone_mode=False)


BEFORE = [f"line {number}" for number in range(1, 41)]
AFTER = [*BEFORE[:4], "changed near the top", *BEFORE[5:34], "new", *BEFORE[34:]]


def test_changes_come_with_their_context_in_order() -> None:
    assert changed_lines(BEFORE, AFTER) == (
        "@@ -3,5 +3,5 @@",
        " line 3",
        " line 4",
        "-line 5",
        "+changed near the top",
        " line 6",
        " line 7",
        "@@ -33,4 +33,5 @@",
        " line 33",
        " line 34",
        "+new",
        " line 35",
        " line 36",
    )


def test_what_contains_a_marked_line_comes_first_on_either_side() -> None:
    assert changed_lines(BEFORE, AFTER, marked_before={35})[0] == "@@ -33,4 +33,5 @@"
    assert changed_lines(BEFORE, AFTER, marked_after={35})[0] == "@@ -33,4 +33,5 @@"
    assert changed_lines(BEFORE, AFTER, marked_after={20})[0] == "@@ -3,5 +3,5 @@"


def test_many_lines_are_cut_and_equal_files_have_no_changes() -> None:
    found = changed_lines(BEFORE, AFTER, limit=6)
    assert found[-1] == "… and 7 more lines"
    assert len(found) == 7
    assert changed_lines(BEFORE, BEFORE) == ()
    assert changed_lines([], ["a"]) == ("@@ -1,0 +1,1 @@", "+a")
