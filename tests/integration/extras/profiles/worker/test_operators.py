"""`op_stats.csv` of an inference profile against `key_averages()` and against another clock."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import profile

from compilewatch.extras.profiles.infer.records import OpStat
from compilewatch.extras.profiles.infer.report import op_stats
from compilewatch.extras.profiles.worker import measuring

pytestmark = pytest.mark.torch

CALLS = 3
IDLE_SECONDS = 0.02
ATTEMPTS = 5
"""Another program may run between two calls, where no operator is: one calm recording is enough."""


def call() -> None:
    """Operators, then Python code that waits."""
    values = torch.ones(256, 256)
    for _ in range(4):
        values = torch.relu(values @ values)
    time.sleep(IDLE_SECONDS)


def rows_of(operators: tuple[OpStat, ...]) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(op_stats(operators).decode().splitlines())}


def test_the_file_is_what_torch_sums_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts exactly and times to the microsecond, of the same recording."""
    made: list[Any] = []

    def recording(**arguments: Any) -> Any:
        made.append(profile(**arguments))
        return made[-1]

    monkeypatch.setattr(measuring, "profile", recording)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    rows = rows_of(measuring.traced(lambda: model(torch.ones(8, 64)), CALLS, tmp_path)[0])
    averages = {event.key: event for event in made[0].key_averages()}
    assert rows.keys() == averages.keys()
    assert int(rows["aten::addmm"]["calls"]) == 2 * CALLS
    for name, event in averages.items():
        assert int(rows[name]["calls"]) == event.count
        for column in ("self_cpu_time", "cpu_time"):
            total = getattr(event, f"{column}_total")
            field = f"{column}_us" if column.startswith("self") else f"{column}_total_us"
            assert float(rows[name][field]) == pytest.approx(total, abs=1)


def test_self_times_sum_to_the_wall_time_with_python_that_waits(tmp_path: Path) -> None:
    """Where no operator runs, the time is the annotation's own: nothing of a call is lost."""
    shares = []
    for _ in range(ATTEMPTS):
        operators, wall_seconds = measuring.traced(call, CALLS, tmp_path)
        own = {each.name: each.self_cpu_seconds for each in operators}
        assert own[measuring.CALL] >= CALLS * IDLE_SECONDS
        assert sum(own.values()) <= wall_seconds
        shares.append(sum(own.values()) / wall_seconds)
    assert max(shares) >= 0.99
