"""Plans the sizes of the most used classes of Transformers, and writes a table in Markdown.

    python -m scripts.plan_shapes --top 100 > table.md

For each class, `compilewatch shapes` says how often it compiles for the batch sizes 1 to 64, and
for 1 to 512 tokens where it has them, as called, with `dynamic=True`, and with the plan that a
script of plain PyTorch has confirmed. What it prints is kept in `--folder`, and not computed again.
"""

import argparse
import json
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from compilewatch.sources.select import select
from compilewatch.sources.transformers import LibrarySource

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
            return problem or f"not within {SECONDS:g} s"
        if result.stdout:
            return json.loads(result.stdout)
        problem = (
            problem or (result.stderr.strip().splitlines() or [f"exit {result.returncode}"])[-1]
        )
    return problem


def row(name: str, report: dict[str, Any] | str) -> str:
    """Return a line of the table."""
    if isinstance(report, str):
        return f"| {name} | | | | | not known: {report.partition(': ')[2] or report} |"
    ends = report["as_called"]["calls"], report["limits"]
    called, plan = ends[0][0]["sizes"], report["plan"]
    upper = {limit["name"]: limit["size"] for limit in ends[1] if limit["upper"]}
    usual = {"batch": 64, "sequence": 512}
    sizes = ", ".join(f"{each} to {upper.get(each, usual[each])}" for each in called)
    if plan:
        words, number = plan["title"], count_of(plan["series"])
    else:
        unconfirmed = ", ".join(report["unconfirmed"])
        words, number = f"none confirmed ({unconfirmed})" if unconfirmed else "", ""
    counts = count_of(report["as_called"]), count_of(report["dynamic"])
    return f"| `{name}` | {sizes} | {counts[0]} | {counts[1]} | {number} | {words} |"


def count_of(series: dict[str, Any]) -> str:
    """Return the compilations; those of a frame at the limit are followed by eager mode."""
    number = sum(call["compiled"] for call in series["calls"])
    return f"{number}, then eager mode" if series.get("limit") else str(number)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--top", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("planned-shapes"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    names = [spec.name for spec in select(LibrarySource().models, top=options.top)]
    print("| class | sizes | as called | `dynamic=True` | plan | what it does |")
    print("|---|---|---|---|---|---|")
    saved, confirmed = [], 0
    with ThreadPoolExecutor(options.jobs) as pool:
        reports = pool.map(lambda name: planned(name, options.folder), names)
        for name, report in zip(names, reports, strict=True):
            print(row(name, report), flush=True)
            if not isinstance(report, str) and report["plan"]:
                confirmed += 1
                series = report["as_called"], report["plan"]["series"]
                saved.append(len(series[0]["graphs"]) - len(series[1]["graphs"]))
    middle = statistics.median(saved) if saved else 0
    print(
        f"{confirmed} plans confirmed; the median one saves {middle:g} compilations",
        file=sys.stderr,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
