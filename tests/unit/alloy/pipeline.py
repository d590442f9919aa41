"""What Alloy's `loki.process` makes of a line: a double of the stages that config.alloy uses.

After grafana/alloy `internal/component/loki/process/stages`: json.go, timestamp.go, regex.go,
labels.go, structured_metadata.go, match.go, metric.go, static_labels.go, label_drop.go, and
`getString` of util.go. A stage that is not here is an error, so that the double cannot lag behind.
"""

import calendar
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from scripts.check_alloy import Block, Value

READ_AT = 1
"""The time of an entry, in nanoseconds, until a stage says otherwise: that of reading it."""


@dataclass
class Entry:
    line: str
    labels: dict[str, str]
    timestamp: int = READ_AT
    metadata: dict[str, str] = field(default_factory=dict)
    extracted: dict[str, Any] = field(default_factory=dict)


class Pipeline:
    """The stages of a `loki.process`; `counters` are the metrics that they define."""

    def __init__(self, process: Block) -> None:
        self._stages = process.blocks
        self.counters: Counter[str] = Counter()

    def __call__(self, line: str, **labels: str) -> Entry:
        entry = Entry(line=line, labels=dict(labels))
        self._run(self._stages, entry)
        return entry

    def _run(self, stages: list[Block], entry: Entry) -> None:
        for stage in stages:
            getattr(self, stage.name.replace("stage.", "_"))(stage, entry)

    def _json(self, stage: Block, entry: Entry) -> None:
        try:
            data = json.loads(entry.line, parse_int=float)
        except ValueError:
            return
        if data is not None and not isinstance(data, dict):
            return
        for name, expression in _table(stage, "expressions").items():
            path = expression or name
            assert re.fullmatch(r"[A-Za-z_]\w*", path), f"the double knows names only: {path}"
            value = (data or {}).get(path)
            plain = value is None or isinstance(value, str | float | bool)
            entry.extracted[name] = value if plain else json.dumps(value)

    def _timestamp(self, stage: Block, entry: Entry) -> None:
        given = {name: _text(value) for name, value in stage.attributes.items()}
        assert (given["format"], given["action_on_failure"]) == ("RFC3339Nano", "skip")
        value = entry.extracted.get(given["source"])
        match = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z", str(value))
        if match:
            seconds = calendar.timegm(time.strptime(match[1], "%Y-%m-%dT%H:%M:%S"))
            entry.timestamp = seconds * 10**9 + int((match[2] or "").ljust(9, "0"))

    def _regex(self, stage: Block, entry: Entry) -> None:
        given = {name: _text(value) for name, value in stage.attributes.items()}
        value = entry.extracted.get(given["source"])
        match = re.search(given["expression"], value) if isinstance(value, str) else None
        entry.extracted |= match.groupdict() if match else {}

    def _labels(self, stage: Block, entry: Entry) -> None:
        entry.labels |= _chosen(stage, entry)

    def _structured_metadata(self, stage: Block, entry: Entry) -> None:
        entry.metadata |= _chosen(stage, entry)
        for name, source in _table(stage, "values").items():
            if (source or name) in entry.labels:
                entry.metadata[name] = entry.labels.pop(source or name)

    def _match(self, stage: Block, entry: Entry) -> None:
        (selector,) = map(_text, stage.attributes.values())
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', selector))
        assert selector == "{" + ", ".join(f'{k}="{v}"' for k, v in wanted.items()) + "}"
        if all(entry.labels.get(name, "") == value for name, value in wanted.items()):
            self._run(stage.blocks, entry)

    def _static_labels(self, stage: Block, entry: Entry) -> None:
        entry.labels |= {name: value for name, value in _table(stage, "values").items() if value}

    def _label_drop(self, stage: Block, entry: Entry) -> None:
        (names,) = stage.attributes.values()
        assert isinstance(names, list)
        for name in names:
            entry.labels.pop(_text(name), None)

    def _metrics(self, stage: Block, entry: Entry) -> None:
        for metric in stage.blocks:
            given = metric.attributes
            assert metric.name == "metric.counter"
            assert (given["action"], given["match_all"]) == ("inc", True)
            self.counters[f"loki_process_custom_{_text(given['name'])}"] += 1


def _text(value: Value) -> str:
    assert isinstance(value, str), f"the double takes literals only: {value}"
    return value


def _table(stage: Block, attribute: str) -> dict[str, str]:
    table = stage.attributes[attribute]
    assert isinstance(table, dict)
    return {name: _text(value) for name, value in table.items()}


def _chosen(stage: Block, entry: Entry) -> dict[str, str]:
    """Values that were extracted and can be told in a string, by the names the stage gives them."""
    found = {}
    for name, source in _table(stage, "values").items():
        value = entry.extracted.get(source or name)
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, float):
            found[name] = f"{Decimal(repr(value)).normalize():f}"
        elif value is not None:
            found[name] = value
    return found
