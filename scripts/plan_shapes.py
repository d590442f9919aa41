"""Plans the sizes of the most used classes of Transformers, and writes a table in Markdown.

    python -m scripts.plan_shapes --top 100 > table.md

For each class, `compilewatch shapes` says how often it compiles for the batch sizes 1 to 64, and
for 1 to 512 tokens where it has them, as called, with `dynamic=True`, and with the plan that a
script of plain PyTorch has confirmed. What it prints is kept in `--folder`, and not computed again;
with `--stored`, classes that are not there are left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from compilewatch.sources import make_source
from compilewatch.sources.select import select

VARIED = (("batch=1..64", "sequence=1..512"), ("batch=1..64",))
"""The second one is for classes that have no tokens."""

SECONDS = 1200.0


def planned(name: str, folder: Path) -> dict[str, Any] | str:
    """Return the report of a class, or why there is none."""
    file = folder / f"{name}.json"
    if not file.exists():
        file.write_text(json.dumps(_run(name)))
    report: dict[str, Any] | str = json.loads(file.read_text())
    return report


def _run(name: str) -> Any:
    problem = ""
    for vary in VARIED:
        options = [text for each in vary for text in ("--vary", each)]
        command = ["compilewatch", "shapes", name, *options, "--json"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"not within {SECONDS:g} s"
        if result.stdout:
            return json.loads(result.stdout)
        problem = (result.stderr.strip().splitlines() or [f"exit {result.returncode}"])[-1]
        problem = problem.partition("; for more time")[0]
    return problem


def outcome(report: dict[str, Any] | str) -> tuple[str, str, str, str]:
    """Return the compilations as called, with `dynamic=True` and with the plan, and its title."""
    if isinstance(report, str):
        problem = report.rpartition(": ")[2] if report.startswith("compilewatch") else report
        return "", "", "", f"not known: {problem}"
    plan, tried = report["plan"], report["unconfirmed"]
    number, words = "", "none is confirmed" if tried else "none that was tried needs fewer"
    if plan:
        number, words = count_of(plan["series"]), plan["title"]
    return count_of(report["as_called"]), count_of(report["dynamic"]), number, words


def named(name: str, report: dict[str, Any] | str) -> str:
    """Return the name of a class, with the sizes that it was not called beyond."""
    limits = report["limits"] if not isinstance(report, str) else ()
    ends = [f"{limit['name']} to {limit['size']}" for limit in limits if limit["upper"]]
    return f"{name} ({', '.join(ends)})" if ends else name


def count_of(series: dict[str, Any]) -> str:
    """Return the compilations; those of a frame at the limit are followed by eager mode."""
    number = sum(call["compiled"] for call in series["calls"])
    return f"{number}, then eager mode" if series.get("limit") else str(number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--top", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("planned-shapes"))
    parser.add_argument("--stored", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = [spec.name for spec in select(make_source("library").models, top=options.top)]
    if options.stored:
        names = [name for name in names if (options.folder / f"{name}.json").exists()]
    with ThreadPoolExecutor(options.jobs) as pool:
        reports = dict(
            zip(names, pool.map(lambda n: planned(n, options.folder), names), strict=True)
        )
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for name, report in reports.items():
        rows.setdefault(outcome(report), []).append(named(name, report))
    print("| as called | `dynamic=True` | plan | what it does | classes |")
    print("|---|---|---|---|---|")
    for cells, classes in sorted(rows.items(), key=lambda row: -len(row[1])):
        print(f"| {' | '.join(cells)} | {', '.join(classes)} |")
    plans = [
        (len(report["as_called"]["graphs"]), len(report["plan"]["series"]["graphs"]))
        for report in reports.values()
        if not isinstance(report, str) and report["plan"]
    ]
    medians = [statistics.median(each) for each in zip(*plans, strict=True)]
    print(
        f"{len(plans)} of {len(reports)}: median {medians}, as called and planned", file=sys.stderr
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
