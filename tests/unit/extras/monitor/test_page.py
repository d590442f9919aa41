"""The monitor page on runs and profiles as they grow, with a Streamlit that only records it."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from compilewatch.config import load_settings
from compilewatch.environments.creation import Tool
from compilewatch.errors import StoreError
from compilewatch.extras.monitor import cli, view
from compilewatch.extras.monitor.page import _list, _stages, draw
from compilewatch.extras.monitor.view import Monitor, MonitorEntry
from compilewatch.extras.profiles import report
from compilewatch.extras.profiles.store import PROFILES_FILE, ProfileFolder, read_profiles
from compilewatch.extras.profiles.training import Stage, Step
from compilewatch.profiling import Profiler
from compilewatch.records import Phase, Status
from compilewatch.report.charts import MID_TONES
from compilewatch.store import Store
from tests import factories, profiled
from tests.unit.store.conftest import EMPTY, store, stored

__all__ = ["store", "stored"]  # fixtures

Stored = Callable[..., str]

NAME = "profile-20261122-100000-0001"


class Page:
    """A Streamlit that records each call with the heading above it."""

    column_config = MagicMock()

    def __init__(self, calls: list[tuple[str, str, Any, dict[str, Any]]] | None = None) -> None:
        self.calls = [] if calls is None else calls
        self.session_state: dict[str, Any] = {}
        self._heading = ""

    def subheader(self, text: str) -> None:
        self._heading = text

    def columns(self, count: int) -> list[Page]:
        return [Page(self.calls) for _ in range(count)]

    def metric(self, name: str, value: str) -> None:
        self.calls.append((name, "metric", value, {}))

    def __getattr__(self, widget: str) -> Callable[..., None]:
        return lambda data, *args, **options: self.calls.append(
            (self._heading, widget, data, options)
        )

    def of(self, widget: str) -> list[Any]:
        return [data for _, name, data, _ in self.calls if name == widget]

    def under(self, heading: str) -> Any:
        return next((data for name, _, data, _ in self.calls if name == heading), None)


@pytest.fixture
def monitor(store: Store) -> Monitor:
    return Monitor(store.root)


def tab(monitor: Monitor, name: str = "Overview", number: int = 0) -> Page:
    page = Page()
    draw(page, name, monitor, monitor.entries()[number].key)
    return page


def test_a_selected_row_is_opened() -> None:
    entries = [MonitorEntry(key=key, state="finished", about=None) for key in ("a", "b")]
    monitor: Any = SimpleNamespace(entries=lambda: entries)
    page = Page()
    _list(page, monitor)
    ((_, _, rows, options),) = [call for call in page.calls if call[1] == "dataframe"]
    assert [row["folder"] for row in rows] == ["a", "b"]
    page.session_state["rows"] = {"selection": {"rows": [1]}}
    options["on_select"]()
    assert page.session_state["entry"] == "b"


@pytest.mark.parametrize("installed", [True, False])
def test_streamlit_of_the_extra_is_used_instead_of_an_environment(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace() if installed else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    created: list[str] = []
    monkeypatch.setattr(Tool, "create", lambda self: created.append(self.name))
    python = cli._python(load_settings({"cache": str(tmp_path)}))
    assert created == ([] if installed else ["monitor"])
    assert (python == Path(sys.executable)) is installed


# --- sweeps --------------------------------------------------------------------------------------


def test_a_run_is_counted_and_its_largest_requests_are_named(
    monitor: Monitor, stored: Stored
) -> None:
    assert monitor.entries() == ()
    stored(
        factories.result("A"),
        factories.result("B", status=Status.CRASHED, phase=Phase.COMPILE),
        factories.result("C", durations={"compile": 7.0}, peak_memory_bytes=3 * 10**9),
    )
    page = tab(monitor)
    assert page.under("results") == "3 of 3"
    assert page.of("bar_chart") == [
        [
            {"status": "pass", "requests": 2, "colour": MID_TONES["pass"]},
            {"status": "crashed", "requests": 1, "colour": MID_TONES["no_verdict"]},
        ]
    ]
    (alert,) = page.of("warning")
    assert alert.endswith("→ run `compilewatch show B`")
    slowest = tab(monitor, "Timing").under("Slowest requests")
    assert slowest[0] == {"request": "C on dynamo", "seconds": 7.0}
    assert tab(monitor, "Memory").under("Largest requests, in megabytes") == [
        {"request": "C on dynamo", "megabytes": 3000.0}
    ]


def test_a_running_sweep_is_followed_and_each_line_is_read_once(
    monitor: Monitor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a line was read twice")

    with store.create_run(factories.run("", state="running", planned=3), EMPTY) as writer:
        writer.append([factories.result("A")])
        assert monitor.entries()[0].state == "running"
        assert tab(monitor).under("results") == "1 of 3"
        writer.append([factories.result("B")])
        assert tab(monitor).under("results") == "2 of 3"
        with (writer.path / "results.jsonl").open("ab") as file:
            file.write(b'{"half": ')
        monkeypatch.setattr(view, "decode", never)
        assert tab(monitor).under("results") == "2 of 3"
        writer.finish("interrupted")
    assert "continue it with `compilewatch sweep --resume`" in tab(monitor).of("error")[0]


# --- training ------------------------------------------------------------------------------------


def train(root: Path, steps: int = 8) -> Path:
    with Profiler(root / "profiles", trace_steps=0, model="Tiny", target="eager") as profiler:
        for _ in range(steps):
            with profiler.stage("forward"):
                pass
            profiler.step(loss=0.25, samples=4)
    assert profiler.folder is not None
    return profiler.folder


def test_a_training_profile_is_followed_while_it_is_written(monitor: Monitor) -> None:
    with Profiler(monitor.root / "profiles", trace_steps=0, model="Tiny") as profiler:
        for count in (1, 2):
            profiler.step()
            assert monitor.entries()[0].state == "running"
            assert tab(monitor).under("steps") == str(count)
        (sizes,) = tab(monitor, "Memory").of("line_chart")
        assert len(sizes) == 2
    assert monitor.entries()[0].state == "finished"


def test_the_tabs_of_a_training_profile_have_their_rows(monitor: Monitor) -> None:
    train(monitor.root)
    page, timing = tab(monitor), tab(monitor, "Timing")
    steps = timing.under("Stages of each step, in milliseconds")
    assert [row["step"] for row in steps] == list(range(8))
    shares = timing.under("Share of the steady steps")
    assert sum(row["share"] for row in shares) == pytest.approx(1)
    assert page.under("newest loss") == "0.25"
    assert page.of("write")
    assert monitor.entries()[0].label.endswith("training Tiny on eager (finished)")


def test_a_slow_first_step_is_left_out_of_the_chart_and_named() -> None:
    steps = [
        Step(index=n, at_seconds=0.0, wall_seconds=s, cpu_seconds=0.0, stages={Stage.FORWARD: s})
        for n, s in enumerate((154.0, 0.01, 0.01, 0.01))
    ]
    for shown, drawn, left_out in (
        (steps, [1, 2, 3], ["Step 0 took 154 s and is not drawn."]),
        (steps[1:], [1, 2, 3], []),
        (steps[:1], [0], []),
    ):
        page = Page()
        _stages(page, shown, {Stage.FORWARD: 1.0})
        assert [row["step"] for row in page.of("area_chart")[0]] == drawn
        assert page.of("caption") == left_out


# --- inference -----------------------------------------------------------------------------------


def measured(root: Path, name: str = NAME, place: str = ".", **changes: Any) -> Path:
    made, samples = profiled.profile(name=name)
    folder = ProfileFolder(root / name, place)
    files = {"raw_values.json": msgspec.json.encode(samples), report.CALL: b"<svg/>"}
    folder.write(files | {report.COMPARISON: b"picture"})
    folder.finish(msgspec.structs.replace(made, place=place, **changes))
    folder.close()
    return folder.path


def test_a_profile_has_its_pictures_memory_by_batch_and_lines_of_breaks(
    monitor: Monitor,
) -> None:
    measured(monitor.root, "20261122-100000-0001", "profiles/net")  # of a sweep
    (entry,) = monitor.entries()
    assert entry.title == "Net<script> on eager, inductor"
    assert list(monitor.artifacts(entry)) == [report.CALL, report.COMPARISON, "raw_values.json"]
    timing, memory = tab(monitor, "Timing"), tab(monitor, "Memory")
    assert timing.of("image") == [b"picture", "<svg/>"]
    (cost,) = timing.under("What each graph break costs in a call")
    assert cost["line"] == "net.py:8"
    assert "Python 0.700 ms" in cost["cost"]
    assert timing.under("Operators of the trace")[0]["own CPU ms"] == 10.0
    sizes = memory.under("Memory by batch size")
    assert [row["batch size"] for row in sizes] == [*profiled.SIZES, *profiled.SIZES]
    assert sizes[1]["one call alone, MB"] == pytest.approx(0.004)
    assert sizes[1]["peak on the GPU, MB"] is None
    written = tab(monitor).of("write")
    assert any(text.startswith("Main bottleneck: graph breaks") for text in written)


def test_notes_and_points_that_failed_are_alerts(monitor: Monitor) -> None:
    made, _ = profiled.profile()
    oom = {"latency": None, "samples_per_second": None, "status": Status.OOM}
    failed = profiled.changed(made, "eager", detail="used 9 GiB of 8 GiB", **oom).targets[:1]
    measured(monitor.root, notes=("the machine was busy",), targets=failed)
    page = tab(monitor)
    assert "the machine was busy" in page.of("info")[0]
    (alert,) = page.of("error")
    assert "eager was not measured at batch 1: oom: used 9 GiB" in alert
    assert tab(monitor, "Memory").of("info") == ["No memory was measured."]


@pytest.mark.parametrize(
    ("pid", "state"),
    [(os.getpid(), "running"), (2**22 + 1, "interrupted")],
    ids=["of a process", "of none"],  # Workers of pytest-xdist must agree on the ids.
)
def test_a_profile_without_a_record(monitor: Monitor, pid: int, state: str) -> None:
    """2**22 is the largest id that Linux gives to a process."""
    (monitor.root / NAME / f".scratch-profile-{pid}").mkdir(parents=True)
    (entry,) = monitor.entries()
    assert (entry.state, entry.started_at) == (state, "2026-11-22T10:00:00Z")
    assert len(tab(monitor).of("error")) == (state == "interrupted")


@pytest.mark.parametrize(
    ("line", "said"),
    [(b"{}\n", "damaged line"), (b'{"kind": "inference", "schema_version": 99}\n', "newer")],
)
def test_what_cannot_be_read_is_an_error_of_its_own_tab_only(
    monitor: Monitor, line: bytes, said: str
) -> None:
    (train(monitor.root) / "steps.jsonl").write_bytes(b"{}\n")
    (train(monitor.root) / "config.json").write_bytes(b"{")
    measured(monitor.root, "profile-20261122-100000-0002")
    (measured(monitor.root) / PROFILES_FILE).write_bytes(line)
    states = [entry.state for entry in monitor.entries()]
    assert sorted(states) == ["damaged", "finished"]
    assert tab(monitor, "Timing", states.index("finished")).of("image")
    (error,) = tab(monitor, "Timing", states.index("damaged")).of("error")
    assert said in error


def test_many_profiles_are_read_once(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tab that redraws itself twice a second may look at names, but read no profile again."""
    for number in range(20):
        measured(monitor.root, f"profile-20261122-100000-{number:04x}")
    reads: list[Path] = []

    def counted(root: Path) -> Any:
        reads.append(root)
        return read_profiles(root)

    monkeypatch.setattr(view, "read_profiles", counted)
    first = monitor.entries()
    assert monitor.entries() == first
    tab(monitor)
    assert len(first) == len(reads) == 20
    (monitor.root / first[7].key / PROFILES_FILE).write_bytes(b"")
    assert len(monitor.entries()) == 19
    assert len(reads) == 21


def test_files_are_listed_and_read_and_none_outside(monitor: Monitor) -> None:
    folder = train(monitor.root)
    (folder / ".hidden").write_text("")
    (entry,) = monitor.entries()
    names = set(monitor.artifacts(entry))
    assert {"config.json", "steps.jsonl", "metrics.json"} <= names
    assert ".hidden" not in names
    assert monitor.read(entry, "config.json") == (folder / "config.json").read_bytes()
    assert len(monitor.read(entry, "config.json", 10)) == 10
    (monitor.root / "secret").write_text("x")
    for name in ("../../secret", "/etc/hostname"):
        with pytest.raises(StoreError, match="is outside of"):
            monitor.read(entry, name)
    with pytest.raises(StoreError, match="cannot be read"):
        monitor.read(entry, "none.txt")
