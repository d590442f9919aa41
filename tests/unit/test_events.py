"""Events: `events.jsonl` has one of each kind as a reviewer reads it; SCREENS=write writes it."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import events
from compilewatch.events import LABELS, Event, EventFactory, all_events, all_meanings
from compilewatch.records import Change, ChangeKind, Mode, Phase, Status, Target, now
from tests import factories
from tests.reviewing import assert_as_reviewed

AUTHOR = EventFactory(factories.run(jobs=2, shard="1/3", planned=7))


def some() -> Iterator[Event]:
    """Events of each kind that the core has, and of each level."""
    yield AUTHOR.started(reused=1, skipped=2, duplicates=3)
    yield events.RunResumed(**AUTHOR.stamp(), planned=7, answered=3)
    breaks = (factories.graph_break("a", occurrences=3), factories.graph_break("b", None))
    target = Target(mode=Mode.TRAIN, dynamic=True, environment="torch-2.9")
    yield from AUTHOR.checked(
        factories.result("org/m", breaks=breaks, target=target, family="bert", revision="r1")
    )
    # The graph breaks of a reused result were logged by the run that found them.
    yield from AUTHOR.checked(factories.result(breaks=breaks, reused_from="20260101-000000-0000"))
    for status, expectation in (
        (Status.PASS, None),
        (Status.TIMEOUT, None),
        (Status.TIMEOUT, "known"),
        (Status.ERROR, None),
    ):
        yield from AUTHOR.checked(
            factories.result(status=status, expectation=expectation, phase=Phase.CREATE)
        )
    changed: dict[str, Any] = {
        "before": Status.PASS,
        "after": Status.GRAPH_BREAK,
        "target": Target(),
    }
    changed |= {"reason": "pass -> graph_break", "causes": ("torch 2.12 -> 2.13",)}
    for kind in ChangeKind:
        yield AUTHOR.changed(Change(kind=kind, model="BertModel", **changed), "base")
    yield AUTHOR.stale("no longer holds", factories.result())
    yield from AUTHOR.failed([("loki", "no server answers")])
    yield events.RunInterrupted(**AUTHOR.stamp("warning"), planned=7, answered=3, detail="Ctrl-C")
    broken = factories.result(breaks=breaks)
    yield AUTHOR.finished(factories.view(broken, factories.result(), wall_seconds=61.5), 1)


def test_events_are_as_reviewed() -> None:
    written = [re.sub(rb'"ts":"[^"]*"', b'"ts":"T"', msgspec.json.encode(e)) for e in some()]
    assert_as_reviewed(b"\n".join([*written, b""]), Path(__file__).with_name("events.jsonl"))
    assert {type(event) for event in some()} == set(events.EVENTS)
    for line in map(msgspec.json.decode, written):
        assert set(LABELS) <= line.keys() or line["event"].startswith(("run_", "sink_"))
    assert not set(LABELS) & {"model", "family", "reason", "run", "detail", "revision"}


def test_times_are_rfc_3339_with_nanoseconds_in_utc() -> None:
    text = now()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", text)
    age = datetime.now(UTC) - datetime.fromisoformat(text)
    assert timedelta(0) <= age < timedelta(minutes=1)


def _subclasses(kind: type[Event]) -> set[type[Event]]:
    return {kind}.union(*map(_subclasses, kind.__subclasses__()))


def test_all_events_are_listed_named_apart_and_explained() -> None:
    listed = all_events()  # loads the modules of the extras that define theirs
    concrete = {k for k in _subclasses(Event) if isinstance(k.__struct_config__.tag, str)}
    assert set(listed) == concrete - {Event, events.ModelEvent}
    tags = [kind.__struct_config__.tag for kind in listed]
    assert len(set(tags)) == len(tags)
    fields = {field for kind in listed for field in kind.__struct_fields__}
    assert fields == set(all_meanings())
    assert all((kind.__dict__.get("__doc__") or "").strip() for kind in listed)


def test_a_long_detail_is_cut() -> None:
    (event,) = AUTHOR.failed([("loki", "x" * 2 * events.TEXT_LENGTH)])
    assert len(event.detail) == events.TEXT_LENGTH
    assert event.detail.endswith("x…")
