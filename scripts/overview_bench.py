"""The benchmark `overview_queries`: every query of the Overview over 90 days, as Grafana sends it.

1,000 models x 6 targets x 2 modes, one run a day for 90 days, backfilled into a real Prometheus.
Series that are read over time (totals, and the models that the timeline shows) have a sample every
two minutes, as a scrape leaves them; the others have one a day, and are queried at the end of the
time only. A scrape would leave 6 billion samples in all.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.records import Change, ChangeKind, Status
from compilewatch.sinks.prometheus import all_definitions, groups
from dashboards.frame import OVERVIEW
from tests import recorded, services
from tests.reading import Query, around, filled, queries
from tests.services import Service

DAYS = 90
DAY = 24 * 3600
SCRAPE = 120
"""Seconds, as stack/ scrapes."""

BLOCK_HOURS = 486
"""The longest block below Prometheus' own limit of 31 days: 2 h times a power of 3."""

POINTS = 1000
"""The number of points of a panel on a wide screen, its width in pixels, unless it sets its own."""

ROUNDS = 5
LIMIT_SECONDS = 1.0
"""The matrix of all models and all targets returns 12,000 series."""

SHOWN = 20
"""Models of the timeline, the variable `failing`."""

NAME = re.compile(r"compilewatch_\w+")
LABEL_VALUES = re.compile(r"label_values\(.*, (\w+)\)")
LABELS = {definition.name: definition.labels for definition in all_definitions()}


ASKED = [query for query in (*queries("prometheus"), *around()) if query.uid == OVERVIEW]
"""Every query of the Overview, those of its variables and annotations included."""


def over_time(query: Query) -> bool:
    """Whether it reads more than the newest sample of a series."""
    marked = query.where.startswith("annotation")
    return marked or not query.instant or "$__range" in query.expr


def shown(models: int) -> list[str]:
    """Names of the models that are drawn over time."""
    return sorted({one.request.model.name for one in recorded.run(models).results})[:SHOWN]


def series(models: int) -> Iterator[tuple[str, str, float, bool]]:
    """Metric, the series as written in OpenMetrics, its value, and whether it is scraped."""
    drawn = {name for query in ASKED if over_time(query) for name in NAME.findall(query.expr)}
    # Every 29th result has one of the statuses that a recorded run has none of.
    rare = (Status.MISMATCH, Status.TIMEOUT, Status.OOM, Status.CRASHED, Status.SKIPPED)
    answers = tuple(
        msgspec.structs.replace(result, status=rare[index // 29 % len(rare)], breaks=())
        if index % 29 == 0
        else result
        for index, result in enumerate(recorded.run(models).results)
    )
    names = shown(models)
    changes = tuple(
        Change(
            kind=(ChangeKind.REGRESSION, ChangeKind.FIXED)[index % 2],
            model=result.request.model.name,
            target=result.request.target,
            family=result.request.model.family,
            before=None,
            after=result.status,
            reason="",
        )
        for index, result in enumerate(answers[:: len(answers) // 60])
    )
    view = dataclasses.replace(recorded.run(1, changes=changes), results=answers)
    for samples in groups(view).values():
        for metric, values, value in samples:
            labels = dict(zip(LABELS[metric], values, strict=True))
            scraped = metric in drawn and labels.get("model", names[0]) in names
            pairs = ",".join(f'{k}="{v}"' for k, v in {"job": "compilewatch", **labels}.items())
            yield metric, f"{metric}{{{pairs}}}", value, scraped


def write(path: Path, rows: list[tuple[str, str, float, bool]], start: int, end: int) -> int:
    """Samples from `start` up to `end` (seconds) as OpenMetrics; how many."""
    every_day = [at for at in range(start, end) if at % DAY == 0]
    every_scrape = list(range(-(-start // SCRAPE) * SCRAPE, end, SCRAPE))
    written = 0
    with path.open("w") as file:
        for metric, name, value, scraped in rows:
            times = every_scrape if scraped else every_day
            if metric.endswith("_timestamp_seconds"):
                file.writelines(f"{name} {at // DAY * DAY} {at}\n" for at in times)
            else:
                # It changes from day to day a little, as measurements do.
                file.writelines(f"{name} {value + at // DAY % 3:g} {at}\n" for at in times)
            written += len(times)
        file.write("# EOF\n")
    return written


def backfill(folder: Path, models: int, end: int) -> tuple[int, int]:
    """Blocks for the 90 days up to and including `end`; how many series and samples."""
    promtool = services.program("promtool", package="prometheus")
    rows = list(series(models))
    tsdb, text = folder / "tsdb", folder / "samples.txt"
    block, at, samples = BLOCK_HOURS * 3600, end - DAYS * DAY, 0
    while at <= end:
        until = min((at // block + 1) * block, end + 1)
        samples += write(text, rows, at, until)
        subprocess.run(
            [
                *(promtool, "tsdb", "create-blocks-from", "--quiet"),
                *(f"--max-block-duration={BLOCK_HOURS}h", "openmetrics", str(text), str(tsdb)),
            ],
            check=True,
        )
        at = until
    text.unlink()
    return len(rows), samples


def step(query: Query) -> int:
    """The step of a query over these days, in seconds, in whole scrapes."""
    exact: float = DAYS * DAY / query.panel.get("maxDataPoints", POINTS)
    return math.ceil(exact / SCRAPE) * SCRAPE


def address(query: Query, end: int, choice: dict[str, str]) -> str:
    """The address that Grafana requests from Prometheus."""
    expr = query.expr.replace("$__range", f"{DAYS}d").replace("$__interval", f"{step(query)}s")
    expr = expr.replace("$__rate_interval", f"{max(step(query) + 120, 480)}s")
    arguments: dict[str, Any] = {"query": filled(expr, **choice)}
    window = {"start": end - DAYS * DAY, "end": end}
    if label := LABEL_VALUES.fullmatch(query.raw):
        arguments = {"match[]": arguments["query"]}
        return f"/api/v1/label/{label[1]}/values?{urllib.parse.urlencode(arguments | window)}"
    if query.where.startswith("annotation"):
        return f"/api/v1/query_range?{urllib.parse.urlencode(arguments | window | {'step': 1800})}"
    if query.instant:
        return f"/api/v1/query?{urllib.parse.urlencode(arguments | {'time': end})}"
    arguments |= window | {"step": step(query)}
    return f"/api/v1/query_range?{urllib.parse.urlencode(arguments)}"


def measured(prometheus: Service, path: str) -> tuple[float, int]:
    """Median seconds of a response, and its number of series or values."""
    walls = []
    for _ in range(ROUNDS):
        started = time.monotonic()
        answer = prometheus.get(path)
        walls.append(time.monotonic() - started)
    data = json.loads(answer)["data"]
    return statistics.median(walls), len(data if isinstance(data, list) else data["result"])


def overview_queries(output: Path, models: int = 1000) -> dict[str, Any]:
    """Each Overview query over 90 days: a median of at most a second."""
    started = time.monotonic()
    end = int(time.time()) // DAY * DAY
    count, samples = backfill(output, models, end)
    prepared = time.monotonic() - started
    config = output / "prometheus.yml"
    config.write_text("{}\n")
    choice = {"failing": "|".join(shown(models))}
    with services.prometheus(output, config, "--storage.tsdb.retention.time=200d") as prometheus:
        found = {f"{q.where} {q.ref}": measured(prometheus, address(q, end, choice)) for q in ASKED}
    medians = {name: round(wall, 4) for name, (wall, _) in found.items()}
    return {
        "median_seconds": medians,
        "worst_seconds": max(medians.values()),
        "worst": max(medians, key=lambda name: medians[name]),
        "limit_seconds": LIMIT_SECONDS,
        "empty": [name for name, (_, answers) in found.items() if not answers],
        "series": count,
        "samples": samples,
        "backfill_seconds": round(prepared, 1),
        "within": max(medians.values()) <= LIMIT_SECONDS,
    }
