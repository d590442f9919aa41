"""What the page asks Streamlit to draw of runs, with a Streamlit that only records it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from compilewatch.extras.monitor import page
from compilewatch.extras.monitor.view import Monitor
from compilewatch.report.charts import MID_TONES
from compilewatch.store import Store
from tests import factories
from tests.unit.store.conftest import store, stored

__all__ = ["store", "stored"]  # fixtures

Stored = Callable[..., str]
Rows = list[dict[str, Any]]


@pytest.fixture
def monitor(store: Store, stored: Stored) -> Monitor:
    slow = factories.result("B", breaks=(factories.graph_break(),))
    stored(factories.result("A"), slow)
    return Monitor(store.root)


def streamlit() -> MagicMock:
    return MagicMock(session_state={}, columns=lambda count: [MagicMock() for _ in range(count)])


def drawn(draw: Callable[..., None], monitor: Monitor) -> MagicMock:
    st = streamlit()
    draw(st, monitor, monitor.entries()[0].key)
    return st


def test_a_selected_row_is_opened(monitor: Monitor) -> None:
    st = drawn(page._overview, monitor)
    (table,) = (one for one in st.dataframe.call_args_list if one.kwargs.get("key") == "rows")
    st.session_state["rows"] = {"selection": {"rows": [0]}}
    table.kwargs["on_select"]()
    assert st.session_state["entry"] == monitor.entries()[0].key
    assert table.kwargs["selection_mode"] == "single-row"


def test_what_has_no_number_of_done_requests_says_nothing() -> None:
    st = streamlit()
    entries = [MagicMock(done=done, started_at="") for done in (1200, None)]
    page._overview(st, MagicMock(entries=lambda: entries), "none")
    rows: Rows = st.dataframe.call_args_list[-1].args[0]
    assert [row["done"] for row in rows] == ["1,200", ""]


def test_statuses_have_the_colours_of_the_report(monitor: Monitor) -> None:
    details = page._details(MagicMock(), monitor, monitor.entries()[0].key)
    assert details is not None
    st = streamlit()
    page._summary(st, details)
    rows: Rows = st.bar_chart.call_args.args[0]
    assert {row["status"]: row["colour"] for row in rows} == {
        "pass": MID_TONES["pass"],
        "graph_break": MID_TONES["graph_break"],
    }
    assert page._tone("error") == MID_TONES["compile_error"]
    assert page._tone("timeout") == MID_TONES["no_verdict"]


def test_the_slowest_requests_are_listed_slowest_first_with_their_complete_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    st = MagicMock()
    name = "AVeryLongModelForConditionalGeneration dynamo eval"
    page._ranked(st, "Slowest", [(name, 9.0), ("A dynamo eval", 1.0)], "seconds")
    assert st.dataframe.call_args.args[0] == [
        {"request": name, "seconds": 9.0},
        {"request": "A dynamo eval", "seconds": 1.0},
    ]
    shown: list[str] = []
    monkeypatch.setattr(page, "_ranked", lambda st, heading, values, what: shown.append(what))
    details = MagicMock(slowest=((name, 9.0),), largest=((name, 8.0),), batch_rows=())
    monkeypatch.setattr(page, "_details", lambda *arguments: details)
    page._timing(MagicMock(), details)
    page._memory(MagicMock(), details)
    assert shown == ["seconds", "megabytes"]
