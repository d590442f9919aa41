"""What a fleet would take for a sweep, computed from a recorded run; docs/scale.md states it.

    .venv/bin/python scripts/scale.py outputs/latest           # the tables of docs/scale.md
    .venv/bin/python scripts/scale.py outputs/latest --writer  # how fast this disk takes results

Each simulated request has the time of one that was recorded, drawn with a fixed seed; a core takes
the next request when it is free, after the time it needs to start. Nothing is averaged: the longest
request bounds a wide fleet, and an average hides it.
"""

from __future__ import annotations

import argparse
import heapq
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from compilewatch.records import Plan, Result, Run, Status, spent
from compilewatch.store import Store, StoredRun

QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
FLEETS = ((10_000, 2), (10_000, 64), (10_000, 250), (10_000, 1_000), (10_000, 4_000))
"""(requests, cores)."""


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them do not exceed."""
    return ordered[max(0, -(-int(share * 10_000) * len(ordered) // 10_000) - 1)]


def makespan(
    seconds: Sequence[float], cores: int, start_seconds: float, stored_per_second: float
) -> float:
    """Seconds until the last of these requests is stored, in their order, by list scheduling.

    Every core starts a server first. One writer stores results one after another.
    """
    free = [start_seconds] * min(cores, len(seconds))
    ended = []
    for one in seconds:
        at = heapq.heappop(free)
        heapq.heappush(free, at + one)
        ended.append(at + one)
    stored = 0.0
    for end in sorted(ended):
        stored = max(stored, end) + 1 / stored_per_second
    return stored


def artifact_bytes(result: Result, folder: Path) -> int:
    return sum((folder / name).stat().st_size for name in result.artifacts)


def print_distribution(results: Sequence[Result], folder: Path) -> None:
    print("| | " + " | ".join(f"p{share * 100:g}" for share in QUANTILES) + " |")
    print("|---|" + "---|" * len(QUANTILES))
    times = sorted(spent(result) for result in results)
    memory = sorted(r.peak_memory_bytes / 2**30 for r in results if r.peak_memory_bytes)
    sizes = sorted(artifact_bytes(result, folder) / 2**20 for result in results)
    rows = (("seconds", times), ("peak memory, GiB", memory), ("artifacts, MiB", sizes))
    for name, ordered in rows:
        row = " | ".join(f"{quantile(ordered, share):.1f}" for share in QUANTILES)
        print(f"| {name} | {row} |")
    slowest = times[-len(times) // 100 :]
    share = sum(slowest) / sum(times)
    print(f"\n{len(times)} requests, {sum(times):.0f} core-seconds; the slowest hundredth ", end="")
    print(f"takes {share:.0%} of them. {sum(sizes) / 2**10:.1f} GiB of artifacts.")


def print_fleets(results: Sequence[Result], start_seconds: float, per_second: float) -> None:
    print("\n| requests | cores | makespan | longest first | core-hours | busy |")
    print("|---|---|---|---|---|---|")
    times = [spent(result) for result in results]
    for requests, cores in FLEETS:
        drawn = random.Random(1).choices(times, k=requests)
        wall = makespan(drawn, cores, start_seconds, per_second)
        best = makespan(sorted(drawn, reverse=True), cores, start_seconds, per_second)
        hours = wall * cores / 3600
        busy = sum(drawn) / (wall * cores)
        print(
            f"| {requests:,} | {cores:,} | {wall / 60:.1f} min | {best / 60:.1f} min "
            f"| {hours:.1f} | {busy:.0%} |"
        )


def measure_writer(results: Sequence[Result], run: Run) -> None:
    """Append recorded results one at a time, each synced, as a sweep does."""
    kept = list(results)[:1000]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        store = Store(Path(folder))
        plan = Plan(requests=(), skipped=(), digest="")
        with store.create_run(run, plan) as writer:
            started = time.perf_counter()
            for result in kept:
                writer.append([result])
            wall = time.perf_counter() - started
    print(f"{len(kept) / wall:,.0f} results a second, synced one by one ({len(kept)} of them)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="the folder of a stored run")
    parser.add_argument("--start-seconds", type=float, default=10.0, help="until a core is warm")
    parser.add_argument("--per-second", type=float, default=140.0, help="results one writer stores")
    parser.add_argument("--writer", action="store_true", help="measure the writer instead")
    arguments = parser.parse_args()
    stored = StoredRun(arguments.run.resolve())
    asked = [
        result
        for result in stored.results()
        if result.status is not Status.SKIPPED and result.reused_from is None
    ]
    if arguments.writer:
        measure_writer(asked, stored.run)
        return 0
    print_distribution(asked, stored.path)
    print_fleets(asked, arguments.start_seconds, arguments.per_second)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
