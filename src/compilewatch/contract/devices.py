"""The devices that requests may name: `cpu`, `cuda`, or `cuda:NAME` for a row of `devices.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from compilewatch.contract.targets import CPU, TARGETS
from compilewatch.errors import UsageError, did_you_mean
from compilewatch.records import DeclaredDevice, Dtype, Target

CUDA = "cuda"


@cache
def devices() -> tuple[DeclaredDevice, ...]:
    """Return the rows of `devices.toml`; the first one is what `cuda` without a name means."""
    text = Path(__file__).with_name("devices.toml").read_text(encoding="utf-8")
    return tuple(
        DeclaredDevice(
            name=row["name"],
            product=row["product"],
            capability=(row["capability"][0], row["capability"][1]),
            memory_bytes=row["memory_gib"] * 2**30,
            multiprocessors=row["multiprocessors"],
            bfloat16=row["bfloat16"],
        )
        for row in tomllib.loads(text)["device"]
    )


def declared(name: str) -> DeclaredDevice | None:
    """Return the device that a request names; None for `cpu`. Raises UsageError if unknown."""
    if name == CPU:
        return None
    kind, colon, product = name.partition(":")
    if kind == CUDA and not colon:
        return devices()[0]
    rows = {row.name.lower(): row for row in devices()}
    if kind != CUDA or product.lower() not in rows:
        known = [CPU, CUDA, *(f"{CUDA}:{row.name}" for row in devices())]
        hint = did_you_mean(name, known)
        raise UsageError(f"no device {name!r}{hint}; known: {', '.join(known)}")
    return rows[product.lower()]


def canonical(name: str) -> str:
    """Return the one spelling of a device: `CUDA:h100` is `cuda:H100`, the default is `cuda`."""
    row = declared(name.lower())
    if row is None:
        return CPU
    return CUDA if row == devices()[0] else f"{CUDA}:{row.name}"


def check_device(target: Target) -> None:
    """Raise UsageError if a target cannot be evaluated for its device, or the device has no dtype.

    A target captures for a declared device if its catalogue row says so.
    """
    row = declared(target.device)
    if row is None:
        return
    if not TARGETS[target.name].captures_for_devices:
        able = ", ".join(name for name, entry in TARGETS.items() if entry.captures_for_devices)
        raise UsageError(
            f"{target.name} is not evaluated for {target.device}; targets that are: {able}"
        )
    if target.dtype is Dtype.BFLOAT16 and not row.bfloat16:
        raise UsageError(f"{row.product} has no bfloat16: choose --dtype float16 or float32")
