"""Every event of a run, as config.alloy collects it and as it is pushed: to Loki, the same."""

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import events
from compilewatch.records import Plan, now
from compilewatch.sinks.loki import stream_of
from compilewatch.store import Store
from scripts.check_alloy import Block, parse
from tests import factories
from tests.unit.alloy.pipeline import READ_AT, Entry, Pipeline

CONFIG = Path(__file__).parents[3] / "alloy" / "config.alloy"
FILE = "/data/outputs/20260102-030405-0001/logs/20260102-030405-0001.jsonl"
LOKI_METADATA_BYTES = 64 * 1024


def component(name: str) -> Block:
    (found,) = (
        each
        for each in parse(CONFIG.name, CONFIG.read_text()).blocks
        if f"{each.name}.{each.label}" == name
    )
    return found


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline(component("loki.process.events"))


def sent(pipeline: Pipeline, line: str) -> Entry:
    """As `loki.source.file.runs` hands it on: with the label of its target and its file's name."""
    return pipeline(line, service_name="compilewatch", filename=FILE)


def sample(name: str, hint: Any) -> Any:
    """A value of a field's type that is not None."""
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    plain = {str: f"some {name}", int: 7, float: 1.25, bool: True}
    if hint in plain:
        return plain[hint]
    return {"some": 1} if typing.get_origin(hint) is dict else ("some", "more")


def full(kind: type[events.Event]) -> events.Event:
    """An event that has all its fields."""
    hints = typing.get_type_hints(kind)
    fields = {name: sample(name, hints[name]) for name in kind.__struct_fields__}
    return kind(**{**fields, "ts": now()})


def written(event: events.Event) -> str:
    return msgspec.json.encode(event).decode()


Sent = tuple[dict[str, str], int, str, dict[str, str]]


def collected(pipeline: Pipeline, line: str) -> Sent:
    entry = sent(pipeline, line)
    return entry.labels, entry.timestamp, entry.line, entry.metadata


def pushed(line: str) -> Sent:
    stream = stream_of(line.encode())
    assert stream is not None
    labels, (at, text, metadata) = stream
    return labels, int(at), text, metadata


def variants(kind: type[events.Event]) -> Iterator[events.Event]:
    """An event with all its fields, with values at their edges, and with as few as it may have."""
    event = full(kind)
    yield event
    hints = typing.get_type_hints(kind)
    edges: dict[Any, tuple[Any, ...]] = {
        str: ("", 'é \N{SNOWMAN}\n\t"\\', "long " * events.TEXT_LENGTH),
        int: (0, -1, 10**15),
        float: (0.0, 1e-06, 0.1 + 0.2, 1e21, 123456789.0),
        bool: (False,),
    }
    for name in kind.__struct_fields__:
        values = () if name == "ts" or name in events.LABELS else edges.get(hints[name], (None,))
        for value in values:
            yield msgspec.structs.replace(event, **{name: value})


def test_both_ways_make_the_same_of_every_event(pipeline: Pipeline) -> None:
    """Loki keeps a line twice where labels, time, line or metadata differ in a byte."""
    for event in (event for kind in events.all_events() for event in variants(kind)):
        line = written(event)
        assert collected(pipeline, line) == pushed(line)


def test_lists_and_objects_stay_in_the_line() -> None:
    hints = [hint for kind in events.all_events() for hint in typing.get_type_hints(kind).items()]
    assert {name for name, hint in hints if typing.get_origin(hint) in (dict, tuple)} == {
        *events.LINE_ONLY
    }
    fields = {name for name, _ in hints}
    assert not {*events.metadata_of(fields)} & {"ts", *events.LABELS, *events.LINE_ONLY}


def test_a_line_that_is_no_event_is_kept_and_counted(pipeline: Pipeline) -> None:
    lines = ["Traceback (most", '{"event": "cut', "[1]", "null", "{}", '"a"']
    unparsed = {"service_name": "compilewatch", "event": "unparsed", "level": "warning"}
    for line in lines:
        assert collected(pipeline, line) == (unparsed, READ_AT, line, {"filename": FILE})
    assert pipeline.counters == {"loki_process_custom_unparsed_lines_total": len(lines)}


def test_an_event_of_tomorrow_is_taken_as_far_as_it_is_known(pipeline: Pipeline) -> None:
    line = json.dumps({"event": "new_kind", "ts": "yesterday", "model": "m", "novel": [1]})
    entry = sent(pipeline, line)
    assert (entry.line, entry.timestamp) == (line, READ_AT)
    assert entry.labels == {"service_name": "compilewatch", "event": "new_kind"}
    assert entry.metadata == {"model": "m"}
    assert not pipeline.counters


def test_a_huge_text_leaves_the_metadata_below_what_loki_takes(pipeline: Pipeline) -> None:
    event = msgspec.structs.replace(
        full(events.all_events()[3]), detail="\N{CLINKING BEER MUGS}" * 100_000
    )
    entry = sent(pipeline, written(event))
    size = sum(len(name) + len(value.encode()) for name, value in entry.metadata.items())
    assert events.TEXT_LENGTH < size < LOKI_METADATA_BYTES
    assert len(json.loads(entry.line)["detail"]) == events.TEXT_LENGTH


def test_each_run_is_read_once(tmp_path: Path) -> None:
    """Neither by the link `latest`, nor in the folder where it is made."""
    targets = component("loki.source.file.runs").attributes["targets"]
    assert isinstance(targets, list)
    (target,) = targets
    assert isinstance(target, dict)
    pattern = str(target["__path__"]).removeprefix("/data/outputs/")
    store = Store(tmp_path)
    with store.create_run(factories.run(), Plan(requests=(), skipped=(), digest="")) as writer:
        run = writer.path
    stale = tmp_path / f".new-{run.name}" / "logs"
    stale.mkdir(parents=True)
    (stale / "a.jsonl").touch()
    assert (tmp_path / "latest").resolve() == run
    assert list(tmp_path.glob(pattern)) == [run / "logs" / f"{run.name}.jsonl"]
