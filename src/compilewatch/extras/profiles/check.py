"""Checks the profiles in a folder, of training and of inference."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compilewatch.errors import StoreError, UsageError
from compilewatch.extras.profiles.infer.files import check_inference, is_inference
from compilewatch.extras.profiles.train import analysis
from compilewatch.extras.profiles.train.records import ProfileFinding, TrainingProfile
from compilewatch.extras.profiles.train.store import is_training, read_training
from compilewatch.files import write_atomically

REPORT_FILE = "check_report.md"

FOUND, BROKEN = 1, 2
"""Exit statuses of a check besides 0."""


@dataclass(frozen=True, kw_only=True)
class CheckedProfile:
    """One checked profile. `broken` says why it cannot be used, None if it can."""

    path: Path
    kind: str
    state: str
    findings: tuple[ProfileFinding, ...] = ()
    broken: str | None = None
    training: TrainingProfile | None = None

    @property
    def exit_status(self) -> int:
        if self.broken is not None:
            return BROKEN
        return FOUND if self.findings else 0


def check_profiles(root: Path) -> tuple[CheckedProfile, ...]:
    """Check every profile in and below a folder. Raises UsageError if there is none."""
    if not root.is_dir():
        raise UsageError(f"there is no folder {root}")
    found = tuple(_checked(root))
    if not found:
        raise UsageError(f"{root} contains no profile: no config.json and no baseline_metrics.json")
    return found


def check_outputs(root: Path) -> tuple[CheckedProfile, ...]:
    """Check the profiles in a folder of outputs, not the runs. Raises UsageError without any."""
    folders = [root / "profiles", *sorted(root.glob("profile-*"))]
    found = tuple(each for folder in folders if folder.is_dir() for each in _checked(folder))
    if not found:
        raise UsageError(f"{root} contains no profile: `compilewatch profile train` makes one")
    return found


def _checked(root: Path) -> Iterator[CheckedProfile]:
    for folder, names, _ in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith("."))
        path = Path(folder)
        if is_training(path):
            names.clear()
            yield check_training(path)
        elif is_inference(path):
            names[:] = [name for name in names if name not in ("plots", "profiler_traces")]
            yield _inference(path)


def check_training(path: Path) -> CheckedProfile:
    """Check one training profile."""
    try:
        profile = read_training(path)
    except StoreError as error:
        return CheckedProfile(path=path, kind="training", state="broken", broken=str(error))
    return CheckedProfile(
        path=path,
        kind="training",
        state=profile.state,
        findings=analysis.findings(profile),
        training=profile,
    )


def _inference(path: Path) -> CheckedProfile:
    try:
        found = check_inference(path)
    except StoreError as error:
        return CheckedProfile(path=path, kind="inference", state="broken", broken=str(error))
    incomplete = any(each.code == "incomplete" for each in found)
    state = "incomplete" if incomplete else "finished"
    return CheckedProfile(path=path, kind="inference", state=state, findings=found)


def write_report(checked: CheckedProfile) -> Path:
    """Write `check_report.md` into the folder of a profile and return its path."""
    path = checked.path / REPORT_FILE
    write_atomically(path, "\n".join([*_report(checked), ""]).encode(), durable=False)
    return path


def _report(checked: CheckedProfile) -> Iterator[str]:
    yield f"# Check of {checked.path.name}\n"
    yield f"A profile of {checked.kind}, {checked.state}.\n"
    if checked.broken is not None:
        yield f"It cannot be used: {checked.broken}\n"
    yield "## Findings\n"
    if not checked.findings and checked.broken is None:
        yield "None.\n"
    for each in checked.findings:
        yield f"- `{each.code}`: {each.found}. To do: {each.advice}."
    if checked.training is None:
        return
    yield "\n## What dominates\n"
    yield "\n".join(analysis.explanation(checked.training))
    yield "\n## Stages\n"
    yield "| stage | median ms | share |"
    yield "|---|---|---|"
    times = analysis.times_of(checked.training)
    for stage, spread in times.stages.items():
        yield f"| {stage} | {spread.median * 1e3:.3f} | {times.shares.get(stage, 0.0):.1%} |"
    yield "\n## Operators\n"
    yield "| operator | calls | own CPU time, ms | CPU time, ms |"
    yield "|---|---|---|---|"
    for row in analysis.top_operators(checked.training):
        own, total = row.self_cpu_time_us / 1e3, row.cpu_time_total_us / 1e3
        yield f"| `{row.name}` | {row.calls} | {own:.3f} | {total:.3f} |"
