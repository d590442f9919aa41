"""What a target is called where there is a label for it: metrics and log events."""

from __future__ import annotations

from compilewatch.records import Target


def target_label_value(target: Target) -> str:
    """`dynamo`, `dynamo:inductor`, `dynamo@nightly`: what else than the mode tells series apart.

    The backend is named where it is not the target's own, the environment where it is not
    the target's home.
    """
    value = target.name
    if target.backend:
        value += f":{target.backend}"
    return value if target.at_home else f"{value}@{target.environment}"


def mode_label_value(target: Target) -> str:
    """`eval`, `train`, `eval/dynamic` or `train/dynamic`."""
    return f"{target.mode.value}/dynamic" if target.dynamic else target.mode.value
