"""The double refuses what a real Loki refuses; else the tests on it would show nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.doubles.loki import PATH, LokiDouble, loki

NOW = time.time_ns()
LABELS = {"service_name": "x"}


@pytest.fixture(scope="module")
def server() -> Iterator[LokiDouble]:
    with loki() as double:
        double.clock = lambda: NOW
        yield double


def push(server: LokiDouble, payload: Any, path: str = PATH) -> int:
    return requests.post(server.url + path, json=payload, timeout=10).status_code


def entry(*value: Any, labels: Any = None) -> dict[str, Any]:
    return {"streams": [{"stream": LABELS if labels is None else labels, "values": [list(value)]}]}


@pytest.mark.parametrize(
    "payload",
    [
        entry(NOW, "an integer time"),
        entry(f"{NOW / 1e9}", "seconds"),
        entry(f"{NOW}.5", "a fraction"),
        entry(str(NOW), 1),
        entry(str(NOW), "line", {"count": 1}),
        entry(str(NOW), "line", {"nested": {"a": "b"}}),
        entry(str(NOW), "line", {"a-b": "dash"}),
        entry(str(NOW), "line", {"large": "x" * 65_537}),
        entry(str(NOW), "line", {f"n{n}": "" for n in range(129)}),
        entry(str(NOW), "line", labels={f"l{n}": "x" for n in range(16)}),
        entry(str(NOW), "line", labels={"a-b": "dash"}),
        entry(str(NOW), "line", labels={"a": 1}),
        entry(str(NOW), "line", labels={}),
        entry(str(NOW), "x" * (256 * 1024 + 1)),
        entry(str(NOW - 8 * 86400 * 10**9), "too old"),
        entry(str(NOW + 660 * 10**9), "too new"),
        {"nothing": []},
    ],
)
def test_rejected(server: LokiDouble, payload: Any) -> None:
    before = server.stored()
    assert push(server, payload) == 400
    assert server.stored() == before


def test_no_json_and_no_such_path(server: LokiDouble) -> None:
    headers = {"Content-Type": "application/json"}
    assert requests.post(server.url + PATH, b"{", headers=headers, timeout=10).status_code == 400
    assert push(server, entry(str(NOW), "line"), "/api/prom/push") == 404


def test_the_window_of_a_stream_is_an_hour(server: LokiDouble) -> None:
    labels = {"stream": "window"}
    assert push(server, entry(str(NOW), "new", labels=labels)) == 204
    half, more = (str(NOW - minutes * 60 * 10**9) for minutes in (30, 90))
    assert push(server, entry(half, "half an hour behind", labels=labels)) == 204
    assert push(server, entry(more, "too far behind", labels=labels)) == 400
    assert push(server, entry(more, "a new stream", labels={"stream": "other"})) == 204


def test_good_entries_of_a_rejected_request_are_stored(server: LokiDouble) -> None:
    values = [[str(NOW - 8 * 86400 * 10**9), "old"], [str(NOW), "good"]]
    assert push(server, {"streams": [{"stream": {"s": "mixed"}, "values": values}]}) == 400
    assert "good" in server.lines()
    assert "old" not in server.lines()


def test_the_same_time_and_line_is_kept_once(server: LokiDouble) -> None:
    for _ in range(2):
        assert push(server, entry(str(NOW), "once")) == 204
    assert server.lines().count("once") == 1
    assert push(server, entry(str(NOW), "once", {"a": "other metadata"})) == 204
    assert server.lines().count("once") == 2


def test_the_old_form_is_accepted_and_lost(server: LokiDouble) -> None:
    """What python-logging-loki sends unless told `version="1"`."""
    entries = [{"ts": "2026-01-01T00:00:00Z", "line": "lost"}]
    old = {"streams": [{"labels": '{a="b"}', "entries": entries}]}
    assert push(server, json.loads(json.dumps(old))) == 204
    assert "lost" not in server.lines()
    assert server.lost_in_the_old_form == 1
