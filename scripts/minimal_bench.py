"""Measures minimal reproducers over the distinct graph breaks of a stored run.

    .venv/bin/python scripts/minimal_bench.py RUN [--sample N] [--seed S] [--save FOLDER]

A place is a distinct (code, file, line). Each is reproduced from one model that has it; a model is
built once for all of its places. With `--sample`, the most frequent places and a random choice of
the others are measured. One JSON line summarizes; `--save` keeps each file and what became of it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

from compilewatch.environments import Environments
from compilewatch.errors import InputsError
from compilewatch.extras.fixes.minimal_reproducer import order
from compilewatch.extras.fixes.records import MinimalOrder, MinimalReproducer
from compilewatch.records import GraphBreak, Request
from compilewatch.store import StoredRun

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.timing import Figures

Place = tuple[str, str, int]

LINES_LIMIT = 40
SHARE_LIMIT = 0.8
MOST_FREQUENT = 10
SECONDS = 8.0


def orders(run: Path, sample: int | None, seed: int) -> tuple[list[MinimalOrder], int]:
    """One order a model, the fewest models that have all chosen places (greedily); all places."""
    having: defaultdict[str, dict[Place, GraphBreak]] = defaultdict(dict)
    requests: dict[str, Request] = {}
    times: Counter[Place] = Counter()
    for result in StoredRun(run).results():
        requests[result.request.key] = result.request
        for graph_break in result.breaks:
            place = (graph_break.code, graph_break.file, graph_break.line)
            times[place] += 1
            having[result.request.key][place] = graph_break
    chosen = sorted(times, key=lambda place: (-times[place], place))
    if sample is not None and sample < len(chosen):
        rest = sorted(chosen[MOST_FREQUENT:])
        picked = random.Random(seed).sample(rest, sample - MOST_FREQUENT)
        chosen = [*chosen[:MOST_FREQUENT], *picked]
    left, made = set(chosen), []
    while left:
        key = max(having, key=lambda k: (len(left & having[k].keys()), k))
        breaks = having.pop(key)
        covered = tuple(breaks[place] for place in chosen if place in left & breaks.keys())
        left -= breaks.keys()
        made.append(MinimalOrder(request=requests[key], breaks=covered, seconds=SECONDS))
    return made, len(times)


def measured(wanted: list[MinimalOrder], save: Path | None) -> list[MinimalReproducer]:
    """The outcomes of all orders. A model that cannot be built fails for all of its places."""
    environments = Environments()
    outcomes: list[MinimalReproducer] = []
    for number, one in enumerate(wanted, 1):
        try:
            scripts = order(environments, one).reproducers
        except (InputsError, subprocess.TimeoutExpired) as error:
            failure = f"no worker: {error}"
            scripts = tuple(MinimalReproducer(broken=b, failure=failure) for b in one.breaks)
        outcomes += scripts
        for script in scripts:
            broken = script.broken
            outcome = f"{script.lines} lines"
            if not script.succeeded:
                outcome = script.failure or "another reason"
            place = f"{broken.code} {broken.file}:{broken.line}"
            print(f"{number} {one.request.model.name} {place}: {outcome}", file=sys.stderr)
            if save is not None:
                save.mkdir(parents=True, exist_ok=True)
                name = f"{broken.code}-{Path(broken.file).stem}-{broken.line}.py"
                head = f"# {script.form}; {script.seconds} s, {script.checks} checks; {outcome}\n"
                (save / name).write_text(head + script.source)
    return outcomes


def measure(run: Path, sample: int | None, seed: int, save: Path | None = None) -> Figures:
    """Reproduce the places of a run: shares, and causes of failure."""
    started = time.monotonic()
    wanted, places = orders(run, sample, seed)
    rows = measured(wanted, save)
    same_code = [m for m in rows if m.code == m.broken.code]
    short = [m for m in same_code if m.lines <= LINES_LIMIT]
    failures = Counter(re.sub(r"\d+", "N", m.failure)[:120] for m in rows if m not in same_code)
    return {
        "places": places,
        "measured": len(rows),
        "same_code_within_40_lines": len(short),
        "same_reason_within_40_lines": sum(m.succeeded for m in short),
        "share": round(len(short) / len(rows), 3) if rows else None,
        "share_limit": SHARE_LIMIT,
        "median_lines": statistics.median([m.lines for m in same_code]) if same_code else None,
        "median_seconds": statistics.median([m.seconds for m in rows]) if rows else None,
        "failures": dict(failures),
        "wall_seconds": round(time.monotonic() - started, 1),
        "within": bool(rows) and len(short) / len(rows) >= SHARE_LIMIT,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    figures = measure(given.run.resolve(), given.sample, given.seed, given.save)
    print(json.dumps({"benchmark": "minimal_reproducers", **figures}))
    return 0 if figures["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
