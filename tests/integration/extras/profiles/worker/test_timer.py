"""Times and peak memory of real calls."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from compilewatch.extras.profiles.worker import measuring

pytestmark = pytest.mark.torch

LARGE = 100_000_000
"""Numbers of four bytes: 381 MiB."""


def filled(count: int) -> None:
    torch.ones(count)


def test_a_large_tensor_shows_as_a_peak_of_its_own() -> None:
    found = measuring.peak_memory(lambda: filled(LARGE))
    assert found.call_peak_bytes == pytest.approx(4 * LARGE, rel=0.05)
    assert found.rss_peak_bytes is not None
    assert found.rss_peak_bytes > 4 * LARGE


def test_a_small_call_after_a_large_one_has_its_own_peak() -> None:
    measuring.peak_memory(lambda: filled(LARGE))
    found = measuring.peak_memory(lambda: filled(LARGE // 100))
    assert found.call_peak_bytes is not None
    assert found.call_peak_bytes < LARGE


def test_a_round_has_as_many_samples_as_calls() -> None:
    calls: list[int] = []
    found = measuring.measure(lambda: calls.append(1), 5, 60.0)
    assert len(found.wall_seconds) == len(found.cpu_seconds) == len(calls) == 5


def test_a_round_ends_when_its_time_is_over() -> None:
    calls: list[int] = []

    def slow() -> None:
        calls.append(1)
        time.sleep(0.02)

    assert len(measuring.measure(slow, 1000, 0.05).wall_seconds) == len(calls) < 10


def test_waiting_is_wall_time_and_not_cpu_time() -> None:
    found = measuring.measure(lambda: time.sleep(0.05), 2, 60.0)
    assert min(found.wall_seconds) >= 0.05
    assert max(found.cpu_seconds) < 0.05


def test_the_garbage_collector_is_as_before_after_a_round() -> None:
    seen: list[bool] = []
    measuring.measure(lambda: seen.append(gc.isenabled()), 1, 1.0)
    assert seen == [False]
    assert gc.isenabled()
