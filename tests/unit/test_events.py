from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from compilewatch import events
from compilewatch.events import LABELS, Event, EventFactory, all_events, all_meanings
from compilewatch.records import Change, ChangeKind, Mode, Phase, Status, Target, now
from tests import factories

RUN = factories.run(jobs=2, shard="1/3", planned=7)
AUTHOR = EventFactory(RUN)


def _line(event: Event) -> dict[str, object]:
    line: dict[str, object] = msgspec.json.decode(msgspec.json.encode(event))
    return line


def _subclasses(kind: type[Event]) -> set[type[Event]]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def test_times_are_rfc_3339_with_nanoseconds_in_utc() -> None:
    text = now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", text)
    age = datetime.now(UTC) - datetime.fromisoformat(text)
    assert timedelta(0) <= age < timedelta(minutes=1)


def test_all_events_are_listed_and_named_apart() -> None:
    listed = all_events()  # loads the modules of the extras that define theirs
    concrete = {k for k in _subclasses(Event) if isinstance(k.__struct_config__.tag, str)}
    named = {k for k in concrete if k not in (Event, events.ModelEvent)}
    assert set(listed) == named
    tags = [kind.__struct_config__.tag for kind in listed]
    assert len(set(tags)) == len(tags)
    assert {"run_started", "model_checked", "graph_break", "regression", "run_finished"} <= set(
        map(str, tags)
    )


def test_every_event_and_every_field_is_explained() -> None:
    fields = {field for kind in all_events() for field in kind.__struct_fields__}
    assert fields == set(all_meanings())
    assert all((kind.__dict__.get("__doc__") or "").strip() for kind in all_events())


def test_every_line_says_when_what_and_of_which_run() -> None:
    line = _line(AUTHOR.started(reused=1, skipped=2, duplicates=3))
    assert line["event"] == "run_started"
    assert line["run"] == RUN.id
    assert (line["level"], line["source"], line["device"]) == ("info", "library", "cpu")
    assert (line["planned"], line["reused"], line["skipped"]) == (7, 1, 2)
    assert (line["torch"], line["transformers"]) == ("2.13.0", "5.23.0")
    assert line["schema_version"] == 1


def test_labels_are_fields_with_few_values() -> None:
    checked, *breaks = AUTHOR.checked(factories.result(breaks=(factories.graph_break(),)))
    for event in (checked, *breaks):
        assert set(LABELS) <= set(_line(event))
    assert not set(LABELS) & {"model", "family", "reason", "run", "detail", "revision"}


def test_a_checked_model_is_one_line_and_one_for_each_distinct_break() -> None:
    found = (factories.graph_break("a", occurrences=3), factories.graph_break("b", None))
    target = Target(mode=Mode.TRAIN, dynamic=True)
    result = factories.result("org/m", breaks=found, target=target, family="bert", revision="r1")
    checked, first, second = map(_line, AUTHOR.checked(result))
    assert checked["event"] == "model_checked"
    assert (checked["model"], checked["family"], checked["revision"]) == ("org/m", "bert", "r1")
    asked = (checked["target"], checked["mode"], checked["dynamic"])
    assert asked == ("dynamo", "train/dynamic", True)
    assert (checked["status"], checked["graph_breaks"], checked["distinct_breaks"]) == (
        "graph_break",
        4,
        2,
    )
    assert checked["duration_seconds"] == 2.0
    assert checked["durations"] == {"create": 0.5, "compile": 1.5}
    assert checked["fullgraph_accepted"] is False
    assert (first["event"], first["reason"], first["occurrences"]) == (
        "graph_break",
        "GB0170 Data-dependent branching",
        3,
    )
    assert second["reason"] == "unbacked_symint"
    assert second["detail"] == "reason of None in b"


def test_the_breaks_of_a_reused_result_were_logged_before() -> None:
    result = factories.result(breaks=(factories.graph_break(),), reused_from="20260101-000000-0000")
    (line,) = map(_line, AUTHOR.checked(result))
    assert line["reused_from"] == "20260101-000000-0000"


@pytest.mark.parametrize(
    ("status", "expectation", "level"),
    [
        (Status.PASS, None, "info"),
        (Status.TIMEOUT, None, "warning"),
        (Status.TIMEOUT, "known", "info"),
    ],
)
def test_what_reached_no_verdict_unexpectedly_is_a_warning(
    status: Status, expectation: str | None, level: str
) -> None:
    result = factories.result(status=status, expectation=expectation)
    assert next(AUTHOR.checked(result)).level == level


def test_an_error_is_logged_by_its_code() -> None:
    line = _line(next(AUTHOR.checked(factories.result(status=Status.ERROR, phase=Phase.CREATE))))
    assert (line["status"], line["phase"], line["error_code"]) == (
        "error",
        "create",
        "backend_error",
    )


def _change(kind: ChangeKind) -> Change:
    return Change(
        kind=kind,
        model="BertModel",
        target=Target(),
        before=Status.PASS,
        after=Status.GRAPH_BREAK,
        reason="pass -> graph_break",
        causes=("torch 2.12 -> 2.13",),
    )


def test_a_regression_is_an_event_of_its_own() -> None:
    line = _line(AUTHOR.changed(_change(ChangeKind.REGRESSION), "base"))
    assert (line["event"], line["level"], line["baseline"]) == ("regression", "error", "base")
    assert line["causes"] == ["torch 2.12 -> 2.13"]
    assert (line["before"], line["after"]) == ("pass", "graph_break")


@pytest.mark.parametrize("kind", [k for k in ChangeKind if k is not ChangeKind.REGRESSION])
def test_other_changes_name_their_kind(kind: ChangeKind) -> None:
    line = _line(AUTHOR.changed(_change(kind), "base"))
    assert (line["event"], line["kind"], line["level"]) == ("change", kind.value, "info")


def test_a_stale_expectation_is_a_warning() -> None:
    line = _line(AUTHOR.stale("no longer holds", factories.result()))
    assert (line["event"], line["level"]) == ("expectation_stale", "warning")
    assert (line["detail"], line["status"]) == ("no longer holds", "pass")
