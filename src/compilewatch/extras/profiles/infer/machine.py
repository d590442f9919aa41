"""The machine that measures, as part of what a profile is about."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from compilewatch.extras.profiles.infer.records import Machine

BUSY = 0.5
"""Above this load for each core, times may be those of other programs."""


def this_machine(device: str = "cpu") -> Machine:
    """Describe this machine."""
    import psutil

    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return Machine(
        cpu=_cpu(),
        cores=len(allowed(0)) if allowed else os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        system=f"{platform.system()} {platform.machine()}",
        device=device,
    )


def load() -> float | None:
    """The mean number of programs that wanted to run during the last minute."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def busy_note(machine: Machine, seen: float | None) -> str | None:
    """A sentence on a machine that is too busy for times that mean something."""
    if seen is None or seen <= BUSY * machine.cores:
        return None
    return (
        f"the machine was busy: a load of {seen:.1f} on {machine.cores} cores; "
        "times include waiting, so trust ratios, which are from rounds in turns"
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
