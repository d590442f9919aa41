"""Downloads by architecture, from a pulled list: `python -m scripts.popularity LIST > FILE`.

It refreshes `data/popularity.csv`: pull the most downloaded models, compare, then copy the file.
"""

import csv
import io
import sys
from collections import defaultdict
from pathlib import Path

from compilewatch.sources.hub.pulled import read_pulled
from compilewatch.sources.popularity import COLUMNS


def popularity_csv(path: Path) -> str:
    """Downloads added up by model type, the most used first, with the origin in comment lines."""
    pulled = read_pulled(path)
    models: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for model in pulled.model:
        if model.model_type:
            models[model.model_type].append((model.downloads or 0, model.repository))
    count = sum(map(len, models.values()))
    out = io.StringIO()
    out.write(f"# source: {pulled.endpoint}, {count} most-downloaded models with a model type\n")
    out.write(f"# date: {pulled.pulled_at[:10]}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    totals = {name: sum(downloads for downloads, _ in of) for name, of in models.items()}
    for name in sorted(models, key=lambda name: (-totals[name], name)):
        most, top = max(models[name])
        writer.writerow((name, totals[name], len(models[name]), top, most))
    return out.getvalue()


if __name__ == "__main__":
    sys.stdout.write(popularity_csv(Path(sys.argv[1])))
