"""`torch.profiler` over a few steps: `trace.json` and `op_stats.csv`."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compilewatch.extras.profiles.train.records import OPERATOR_COLUMNS, OPERATORS_FILE, TRACE_FILE

STEP_NAME = "training step"


class OperatorTrace:
    """One recording. Steps and stages are annotated, so that the trace shows them.

    Errors of torch propagate, such as that of a second profiler in the same process.
    """

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        self._record = torch.profiler.record_function
        self._open: list[tuple[str, Any]] = []
        # On the CPU and on the accelerator, if there is one: torch's default activities.
        self._profile = torch.profiler.profile(profile_memory=True, acc_events=True)
        quiet = {"KINETO_LOG_LEVEL": "99"}  # Kineto reads it now; it logs each recording to stderr
        with _environment(quiet):
            self._profile.start()

    def enter(self, name: str) -> None:
        """Begin an annotated part of the trace."""
        annotation = self._record(name)
        annotation.__enter__()
        self._open.append((name, annotation))

    def leave(self, name: str) -> None:
        """End the newest part with this name, and what began inside of it."""
        if any(name == known for known, _ in self._open):
            while self._open:
                known, annotation = self._open.pop()
                annotation.__exit__(None, None, None)
                if known == name:
                    return

    def stop(self) -> None:
        """End the recording."""
        for _, annotation in reversed(self._open):
            annotation.__exit__(None, None, None)
        self._open.clear()
        self._profile.stop()

    def save(self, folder: Path) -> None:
        """Write both files atomically, the trace in the JSON format of Chrome."""
        temporary = folder / f".{TRACE_FILE}.tmp"
        try:
            self._profile.export_chrome_trace(str(temporary))
            temporary.replace(folder / TRACE_FILE)
            table = folder / f".{OPERATORS_FILE}.tmp"
            table.write_text(operators_csv(self._profile.key_averages()), encoding="utf-8")
            table.replace(folder / OPERATORS_FILE)
        finally:
            # On a full disk, Kineto leaves a temporary file of its own, which stays open.
            for left in folder.glob(f".{TRACE_FILE}*"):
                os.truncate(left, 0)
                left.unlink()


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set, and remove them again."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def operators_csv(averages: Any) -> str:
    """The rows of `key_averages()`, most time of their own first. Times are in microseconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(OPERATOR_COLUMNS)
    ordered = sorted(averages, key=lambda e: (-e.self_cpu_time_total, e.key))
    for each in ordered:
        writer.writerow(
            [
                each.key,
                each.count,
                *(each.self_cpu_time_total, each.cpu_time_total),
                *(each.self_device_time_total, each.device_time_total),
                *(each.self_cpu_memory_usage, each.cpu_memory_usage),
            ]
        )
    return text.getvalue()
