"""The view of the monitor page: runs and profiles as they grow, without Streamlit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.errors import StoreError
from compilewatch.extras.monitor.view import Details, Monitor, _drawn
from compilewatch.extras.profiles.training import Stage, Step
from compilewatch.profiling import Profiler
from compilewatch.records import Phase, Status
from compilewatch.store import Store
from tests import factories
from tests.unit.store.conftest import EMPTY, store, stored

__all__ = ["store", "stored"]  # fixtures

Stored = Callable[..., str]


@pytest.fixture
def monitor(store: Store) -> Monitor:
    return Monitor(store.root)


def details(monitor: Monitor, number: int = 0) -> Details:
    return monitor.details(monitor.entries()[number])


def train(root: Path, steps: int = 8) -> Path:
    with Profiler(root / "profiles", trace_steps=0, model="Tiny", target="eager") as profiler:
        for _ in range(steps):
            with profiler.stage("forward"):
                pass
            profiler.step(loss=0.25, samples=4)
    assert profiler.folder is not None
    return profiler.folder


def test_nothing_is_there_yet(monitor: Monitor) -> None:
    assert monitor.entries() == ()
    assert not monitor.root.exists()


def test_a_run_is_counted(monitor: Monitor, stored: Stored) -> None:
    stored(
        factories.result("A"),
        factories.result("B", status=Status.CRASHED, phase=Phase.COMPILE),
        factories.result("C", durations={"compile": 7.0}, peak_memory_bytes=3 * 10**9),
    )
    found = details(monitor)
    assert (found.entry.kind, found.entry.state, found.entry.done) == ("sweep", "finished", 3)
    assert found.statuses == {"pass": 2, "crashed": 1}
    assert found.slowest[0] == ("C on dynamo", 7.0)
    assert found.largest[0] == ("C on dynamo", 3000.0)
    assert [a.advice for a in found.alerts] == ["run `compilewatch show B`"]


def test_a_running_sweep_is_followed_and_each_line_is_read_once(
    monitor: Monitor, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.create_run(factories.run("", state="running", planned=3), EMPTY) as writer:
        writer.append([factories.result("A")])
        entry = monitor.entries()[0]
        assert (entry.state, entry.done, entry.total, entry.passed) == ("running", 1, 3, 1)
        writer.append([factories.result("B")])
        assert details(monitor).entry.done == 2
        monkeypatch.setattr("compilewatch.extras.monitor.view.decode", _never)
        assert details(monitor).entry.done == 2
        monkeypatch.undo()
        with (writer.path / "results.jsonl").open("ab") as file:
            file.write(b'{"half": ')
        assert details(monitor).entry.done == 2
        writer.finish("finished")
    assert monitor.entries()[0].state == "finished"


def _never(*_: object) -> None:
    raise AssertionError("a line was read twice")


def test_an_interrupted_run_says_how_to_continue(monitor: Monitor, stored: Stored) -> None:
    stored(factories.result("A"), state="interrupted")
    assert details(monitor).alerts[0].advice == "continue it with `compilewatch sweep --resume`"


def test_a_training_profile_is_followed_while_it_is_written(monitor: Monitor) -> None:
    with Profiler(monitor.root / "profiles", trace_steps=0, model="Tiny") as profiler:
        profiler.step()
        assert monitor.entries()[0].state == "running"
        assert details(monitor).figures[0] == ("steps", "1")
        profiler.step()
        found = details(monitor)
        assert found.figures[0] == ("steps", "2")
        assert len(found.memory_rows) == 2
    assert details(monitor).entry.state == "finished"


def test_the_tabs_of_a_training_profile_have_their_rows(monitor: Monitor) -> None:
    train(monitor.root)
    found = details(monitor)
    assert [row["step"] for row in found.stage_rows] == list(range(8))
    assert sum(found.shares.values()) == pytest.approx(1)
    assert dict(found.figures)["newest loss"] == "0.25"
    assert found.explanation
    assert found.entry.label.endswith("training Tiny on eager (finished)")


def test_a_damaged_profile_is_an_error_of_its_own_tab_only(
    monitor: Monitor, stored: Stored
) -> None:
    stored(factories.result("A"))
    (train(monitor.root) / "steps.jsonl").write_bytes(b"{}\n")
    (train(monitor.root) / "config.json").write_bytes(b"{")
    assert "sweep" in [entry.kind for entry in monitor.entries()]


def test_files_are_listed_and_read_and_none_outside(monitor: Monitor) -> None:
    folder = train(monitor.root)
    (folder / ".hidden").write_text("")
    (entry,) = monitor.entries()
    names = {each.name for each in monitor.artifacts(entry)}
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


def test_a_run_shows_what_changed_since_its_baseline(monitor: Monitor, stored: Stored) -> None:
    first = stored(factories.result("A"), factories.result("B"))
    broken = factories.result("A", breaks=(factories.graph_break(),))
    stored(broken, factories.result("B"), baseline=first)
    (change,) = details(monitor).changes
    assert (change["model"], change["change"]) == ("A", "worse")
    assert (change["before"], change["after"]) == ("pass", "graph_break")
    assert details(monitor, 1).changes == ()


def test_a_slow_first_step_is_left_out_of_the_chart_and_named() -> None:
    steps = [
        Step(
            index=index,
            at_seconds=0.0,
            wall_seconds=seconds,
            cpu_seconds=0.0,
            stages={Stage.FORWARD: seconds},
        )
        for index, seconds in enumerate((154.0, 0.01, 0.01, 0.01))
    ]
    rows, said = _drawn(steps)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert said == "Step 0 took 154 s and is not drawn."
    assert _drawn(steps[1:])[1] == ""
    assert len(_drawn(steps[:1])[0]) == 1
