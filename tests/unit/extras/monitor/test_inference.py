"""Inference profiles in the view of the monitor page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.errors import StoreError
from compilewatch.extras.monitor import view
from compilewatch.extras.monitor.view import Details, Monitor
from compilewatch.extras.profiles.store import PROFILES_FILE, ProfileFolder, read_profiles
from compilewatch.records import Status
from tests import profiled

NAME = "profile-20261122-100000-0001"


@pytest.fixture
def monitor(tmp_path: Path) -> Monitor:
    return Monitor(tmp_path)


def stored(root: Path, name: str = NAME, place: str = ".", notes: tuple[str, ...] = ()) -> Path:
    made, samples = profiled.profile(name=name)
    folder = ProfileFolder(root / name, place)
    folder.write({"raw_values.json": msgspec.json.encode(samples), "report.html": b"page"})
    folder.finish(msgspec.structs.replace(made, place=place, notes=notes))
    folder.close()
    return folder.path


def details(monitor: Monitor) -> Details:
    (entry,) = monitor.entries()
    return monitor.details(entry)


def test_a_profile_has_a_row_for_each_target_and_batch(monitor: Monitor) -> None:
    stored(monitor.root)
    found = details(monitor)
    assert found.entry.title == "Net<script> on eager, inductor"
    assert found.entry.started_at.startswith("2026-11-22T10:00")
    rows = {(row["target"], row["batch size"]): row for row in found.batch_rows}
    assert rows.keys() == {(t, n) for t in ("eager", "inductor") for n in profiled.SIZES}
    assert rows["eager", 1][view.LATENCY] == pytest.approx(10, rel=0.05)
    assert rows["eager", 4][view.CALL] == pytest.approx(0.004)
    assert view.SPEEDUP not in rows["eager", 1]
    assert rows["inductor", 1][view.SPEEDUP] == 1.25
    assert view.DEVICE not in rows["eager", 1]


def test_the_parts_of_a_call_and_the_lines_of_breaks_are_shown(monitor: Monitor) -> None:
    stored(monitor.root)
    found = details(monitor)
    assert [row["call"] for row in found.call_rows] == [
        f"inductor, batch {size}" for size in profiled.SIZES
    ]
    parts = [float(found.call_rows[0][name]) for name in view.PARTS]
    assert sum(parts) == pytest.approx(8.0)
    (cost,) = found.break_rows
    assert (cost["line"], cost["share of the call"]) == ("net.py:8", "12.5%")
    assert cost["Python between graphs"] == pytest.approx(0.7)
    assert any(each.startswith("Main bottleneck: graph breaks") for each in found.explanation)


def test_notes_and_points_that_failed_are_alerts(monitor: Monitor) -> None:
    folder = stored(monitor.root, notes=("the machine was busy",))
    assert [alert.text for alert in details(monitor).alerts] == ["the machine was busy"]
    made, _ = profiled.profile()
    point = msgspec.structs.replace(
        made.targets[0].points[0],
        latency=None,
        samples_per_second=None,
        status=Status.OOM,
        detail="used 9 GiB of 8 GiB",
    )
    target = msgspec.structs.replace(made.targets[0], points=(point,))
    line = msgspec.json.encode(msgspec.structs.replace(made, targets=(target,)))
    (folder / PROFILES_FILE).write_bytes(line + b"\n")
    (alert,) = details(monitor).alerts
    assert alert.level == "error"
    assert "eager was not measured at batch 1: oom: used 9 GiB" in alert.text


def test_the_profiles_of_a_sweep_are_listed(monitor: Monitor) -> None:
    stored(monitor.root, "20261122-100000-0001", "profiles/net")
    (entry,) = monitor.entries()
    assert entry.key == "20261122-100000-0001/profiles/net"
    assert monitor.details(entry).batch_rows
    assert [each.name for each in monitor.artifacts(entry)] == ["raw_values.json", "report.html"]


@pytest.mark.parametrize(
    ("pid", "state"),
    [(os.getpid(), "running"), (2**22 + 1, "interrupted")],
    ids=["of a process", "of none"],  # Workers of pytest-xdist must agree on the ids.
)
def test_a_profile_without_a_record(monitor: Monitor, pid: int, state: str) -> None:
    """2**22 is the largest id that Linux gives to a process."""
    (monitor.root / NAME / f".scratch-profile-{pid}").mkdir(parents=True)
    found = details(monitor)
    assert (found.entry.state, found.entry.started_at) == (state, "2026-11-22T10:00:00Z")
    assert [alert.level for alert in found.alerts] == ["error"] * (state == "interrupted")


@pytest.mark.parametrize(
    ("line", "said"),
    [(b"{}\n", "damaged line"), (b'{"kind": "inference", "schema_version": 99}\n', "newer")],
)
def test_a_profile_that_cannot_be_read_says_why(monitor: Monitor, line: bytes, said: str) -> None:
    stored(monitor.root, "profile-20261122-100000-0002")
    (stored(monitor.root) / PROFILES_FILE).write_bytes(line)
    good, bad = sorted(monitor.entries(), key=lambda entry: entry.state, reverse=True)
    assert (good.state, bad.state) == ("finished", "damaged")
    assert monitor.details(good).batch_rows
    with pytest.raises(StoreError, match=said):
        monitor.details(bad)


def test_five_hundred_profiles_are_read_once(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tab that redraws itself twice a second may look at names, but read no profile again."""
    made, _ = profiled.profile()
    for number in range(500):
        folder = monitor.root / f"profile-20261122-100000-{number:04x}"
        folder.mkdir()
        (folder / PROFILES_FILE).write_bytes(msgspec.json.encode(made) + b"\n")
    reads: list[Path] = []

    def counted(root: Path) -> Any:
        reads.append(root)
        return read_profiles(root)

    monkeypatch.setattr("compilewatch.extras.monitor.view.read_profiles", counted)
    first = monitor.entries()
    assert (len(first), len(reads)) == (500, 500)
    assert monitor.entries() == first
    monitor.details(first[0])
    assert len(reads) == 500
    (monitor.root / first[7].key / PROFILES_FILE).write_bytes(b"")
    assert len(monitor.entries()) == 499
    assert len(reads) == 501
