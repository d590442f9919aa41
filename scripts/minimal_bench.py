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
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from compilewatch.environments import Environments
from compilewatch.errors import InputsError
from compilewatch.extras.fixes.minimal_reproducer import order
from compilewatch.extras.fixes.records import MinimalOrder, MinimalReproducer
from compilewatch.records import GraphBreak, Request, Result
from compilewatch.store import StoredRun

Place = tuple[str, str, int]

LINES_LIMIT = 40
SHARE_LIMIT = 0.8
MOST_FREQUENT = 10
SECONDS = 8.0


def places_of(results: Iterable[Result]) -> dict[Place, list[tuple[Result, GraphBreak]]]:
    """The results that have each distinct graph break."""
    found: dict[Place, list[tuple[Result, GraphBreak]]] = {}
    for result in results:
        for each in result.breaks:
            found.setdefault((each.code, each.file, each.line), []).append((result, each))
    return found


def sampled(
    places: dict[Place, list[tuple[Result, GraphBreak]]], size: int | None, seed: int
) -> list[Place]:
    """All places, or the most frequent ones and a random choice of the others."""
    ordered = sorted(places, key=lambda place: (-len(places[place]), place))
    if size is None or size >= len(ordered):
        return ordered
    rest = sorted(ordered[MOST_FREQUENT:])
    chosen = random.Random(seed).sample(rest, size - MOST_FREQUENT)
    return [*ordered[:MOST_FREQUENT], *chosen]


def orders(
    places: dict[Place, list[tuple[Result, GraphBreak]]], wanted: list[Place], seconds: float
) -> list[MinimalOrder]:
    """One order a model, the fewest models that have all wanted places (greedily)."""
    having: dict[str, dict[Place, GraphBreak]] = {}
    requests: dict[str, Request] = {}
    for place in wanted:
        for result, each in places[place]:
            requests[result.request.key] = result.request
            having.setdefault(result.request.key, {})[place] = each
    left, made = set(wanted), []
    while left:
        key = max(having, key=lambda k: (len(left & having[k].keys()), k))
        covered = [having[key][place] for place in wanted if place in left & having[key].keys()]
        left -= having.pop(key).keys()
        made.append(MinimalOrder(request=requests[key], breaks=tuple(covered), seconds=seconds))
    return made


def measured(wanted: Iterable[MinimalOrder], save: Path | None) -> list[MinimalReproducer]:
    """The outcomes of all orders. A model that cannot be built fails for all of its places."""
    environments = Environments()
    found: list[MinimalReproducer] = []
    for number, each in enumerate(wanted, 1):
        try:
            made = order(environments, each).reproducers
        except (InputsError, subprocess.TimeoutExpired) as error:
            failure = f"no worker: {error}"
            made = tuple(MinimalReproducer(broken=b, failure=failure) for b in each.breaks)
        found += made
        for one in made:
            place = f"{one.broken.code} {one.broken.file}:{one.broken.line}"
            said = f"{one.lines} lines" if one.succeeded else one.failure or "another reason"
            print(f"{number} {each.request.model.name} {place}: {said}", file=sys.stderr)
            if save is not None:
                _keep(save, one)
    return found


def _keep(folder: Path, script: MinimalReproducer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    broken = script.broken
    name = f"{broken.code}-{Path(broken.file).stem}-{broken.line}"
    told = script.failure or ("" if script.succeeded else "the reason differs")
    head = f"# {script.form}; {script.seconds} s, {script.checks} checks; {told}\n"
    (folder / f"{name}.py").write_text(head + script.source)


def summary(rows: list[MinimalReproducer], total: int, wall: float) -> dict[str, Any]:
    """Shares and causes of failure; the limits are those of docs/benchmarks.md."""
    same_code = [m for m in rows if m.fresh is not None and m.fresh.code == m.broken.code]
    short = [m for m in same_code if m.lines <= LINES_LIMIT]
    reason = [m for m in short if m.succeeded]
    failures = Counter(re.sub(r"\d+", "N", m.failure)[:120] for m in rows if m not in same_code)
    return {
        "places": total,
        "measured": len(rows),
        "same_code_within_40_lines": len(short),
        "same_reason_within_40_lines": len(reason),
        "share": round(len(short) / len(rows), 3) if rows else None,
        "share_limit": SHARE_LIMIT,
        "median_lines": statistics.median([m.lines for m in same_code]) if same_code else None,
        "median_seconds": statistics.median([m.seconds for m in rows]) if rows else None,
        "failures": dict(failures),
        "wall_seconds": round(wall, 1),
        "within": bool(rows) and len(short) / len(rows) >= SHARE_LIMIT,
    }


def measure(run: Path, sample: int | None, seed: int, save: Path | None) -> dict[str, Any]:
    """Reproduce the places of a run."""
    places = places_of(StoredRun(run).results())
    started = time.monotonic()
    chosen = sampled(places, sample, seed)
    found = measured(orders(places, chosen, SECONDS), save)
    return summary(found, len(places), time.monotonic() - started)


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
