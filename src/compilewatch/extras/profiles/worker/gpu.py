"""A CUDA device under a model: waiting for it, its memory, and how busy it is.

Kernels run after the call that starts them has returned, so a call is over when the device has
finished. Utilisation is NVML's, by `torch.cuda.utilization`, which needs the package nvidia-ml-py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import fmean

import msgspec
import torch

from compilewatch.errors import UsageError
from compilewatch.extras.profiles.infer.messages import Used
from compilewatch.extras.profiles.infer.records import Memory

CUDA = "cuda"

SAMPLE_SECONDS = 1.0
"""NVML reports the share of its newest sample period, which is up to a second long."""

WATCHED_SECONDS = 3.0


def device_of(name: str) -> torch.device:
    """Return the device of a profile. Raises UsageError if there is no such device here."""
    if name != CUDA:
        return torch.device(name)
    if torch.version.cuda is None:
        raise UsageError(
            f"torch {torch.__version__} is no CUDA build: compilewatch env create cuda"
        )
    if not torch.cuda.is_available():
        raise UsageError("this machine has no CUDA device: leave out --device cuda")
    return torch.device(CUDA, 0)


def finished(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that ends when the work that it gave to the device has ended."""

    def wait() -> object:
        result = call()
        torch.cuda.synchronize()
        return result

    return wait


def used(call: Callable[[], object], host: Memory) -> Used:
    """Return the memory that one call takes on the device, and how busy calls keep it.

    `call` must end when the device has finished; `host` is what it takes on the host.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = int(torch.cuda.memory_allocated())
    call()
    peak = int(torch.cuda.max_memory_allocated())
    memory = msgspec.structs.replace(host, call_peak_bytes=peak - before, device_peak_bytes=peak)
    try:
        shares, in_use = _watched(call)
    except ImportError:
        note = "the utilisation of the GPU needs the package nvidia-ml-py"
        return Used(memory=memory, device_note=note)
    except Exception as error:  # noqa: BLE001  (NVML's errors, which only that package defines)
        return Used(memory=memory, device_note=f"NVML: {type(error).__name__}: {error}")
    return Used(
        memory=msgspec.structs.replace(memory, device_used_bytes=in_use),
        device_utilization=fmean(shares) / 100,
    )


def _watched(call: Callable[[], object]) -> tuple[list[int], int]:
    """Call for some seconds, and return NVML's shares in per cent and the memory in use.

    The first sample period is left out, because a part of it was before the first call.
    """
    torch.cuda.utilization()  # raises now if NVML is missing, not after three seconds
    began = time.perf_counter()
    shares: list[int] = []
    while (now := time.perf_counter() - began) < WATCHED_SECONDS or not shares:
        call()
        if now > SAMPLE_SECONDS:
            shares.append(int(torch.cuda.utilization()))
    return shares, int(torch.cuda.device_memory_used())
