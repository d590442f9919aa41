"""What differs between two environments."""

from __future__ import annotations

from compilewatch.records.runs import Environment


def changed(name: str, old: object, new: object) -> list[str]:
    """Return no line if two values are equal, else one: `torch 2.12.0 -> 2.13.0`."""
    if old == new:
        return []
    return [f"{name} {'none' if old is None else old} -> {'none' if new is None else new}"]


def environment_differences(old: Environment, new: Environment) -> list[str]:
    """What differs between two environments, a line each: `torch 2.12.0 -> 2.13.0`."""
    if old.digest == new.digest and old.digest:
        return []
    lines = changed("torch", old.torch, new.torch)
    if old.torch_git != new.torch_git:
        # A nightly build may keep its version.
        lines += changed("torch git", old.torch_git[:10], new.torch_git[:10])
    lines += changed("transformers", old.transformers, new.transformers)
    lines += changed("python", old.python, new.python)
    lines += changed("device", old.device, new.device)
    named = {"torch", "transformers"}
    for package in sorted((old.packages.keys() | new.packages.keys()) - named):
        lines += changed(package, old.packages.get(package), new.packages.get(package))
    return lines
