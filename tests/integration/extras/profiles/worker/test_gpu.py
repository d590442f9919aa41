"""A CUDA device in profiles, with torch's own code over a double of NVML; no test has a GPU."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.check import read_training
from compilewatch.extras.profiles.records import Memory
from compilewatch.extras.profiles.worker import measuring
from compilewatch.profiling import Profiler
from tests.doubles import pynvml

pytestmark = pytest.mark.torch

HOST = Memory(rss_peak_bytes=10**9, call_peak_bytes=7)


class Device:
    """The functions of torch.cuda that need a device: work that ends after the call."""

    def __init__(self) -> None:
        self.busy_until = 0.0
        self.allocated = self.peak = 1000

    def launch(self, seconds: float, allocates: int = 0) -> None:
        self.busy_until = time.perf_counter() + seconds
        self.peak = max(self.peak, self.allocated + allocates)

    def synchronize(self) -> None:
        time.sleep(max(0.0, self.busy_until - time.perf_counter()))

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    functions: dict[str, Callable[..., Any]] = {
        "synchronize": made.synchronize,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": made.reset_peak_memory_stats,
        "memory_allocated": lambda: made.allocated,
        "max_memory_allocated": lambda: made.peak,
        "current_device": lambda: 0,
        "is_initialized": lambda: True,
        "is_available": lambda: True,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(measuring, "SAMPLE_SECONDS", 0.02)
    monkeypatch.setattr(measuring, "WATCHED_SECONDS", 0.06)
    return made


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`torch.cuda` as it is where nvidia-ml-py is installed."""
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    monkeypatch.setattr(torch.cuda, "_HAS_PYNVML", True)
    monkeypatch.setattr(torch.cuda, "pynvml", pynvml, raising=False)
    monkeypatch.setattr(pynvml, "_initialized", 0)
    monkeypatch.setattr(pynvml, "samples", [80])
    monkeypatch.setattr(pynvml, "not_supported", False)
    return pynvml


@pytest.mark.parametrize(
    ("samples", "share", "note"),
    [
        ([80], 0.8, ""),
        # The question whether NVML works is the first sample: from before the first call.
        ([0, 90], 0.9, ""),
        ([], None, "NVML: NVMLError_NotSupported: Not Supported"),
        (None, None, "the utilisation of the GPU needs the package nvidia-ml-py"),
    ],
)
def test_memory_is_that_of_the_device_and_a_note_says_why_the_rest_is_unknown(
    device: Device, request: Any, samples: list[int] | None, share: float | None, note: str
) -> None:
    if samples is not None:
        nvml = request.getfixturevalue("nvml")
        nvml.samples[:] = samples
        nvml.not_supported = not samples
    memory = Memory(
        rss_peak_bytes=10**9,
        call_peak_bytes=400,
        device_peak_bytes=1400,
        device_used_bytes=pynvml.USED_BYTES if share else None,
    )
    call = measuring.finished(lambda: device.launch(0.01, 400))
    assert measuring.used(call, HOST) == (memory, share, note)
    began = time.perf_counter()
    call()
    assert time.perf_counter() - began >= 0.01  # it ends when the device has finished


def test_this_machine_has_no_gpu_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"no CUDA (device|build)"):
        measuring.device_of("cuda")


def test_the_steps_of_a_training_have_the_utilisation(
    device: Device, nvml: ModuleType, tmp_path: Path
) -> None:
    with Profiler(tmp_path, trace_steps=0, warm_up=0) as profiler:
        for _ in range(3):
            with profiler.stage("forward"):
                device.launch(0.01)
            profiler.step()
    assert profiler.problems == []
    assert profiler.folder is not None
    found = read_training(profiler.folder)
    assert [step.device_utilization for step in found.steps] == [0.8, None, None]
    assert all(step.stages["forward"] >= 0.01 for step in found.steps)  # type: ignore[index]
    assert found.metrics.device_utilization == 0.8
