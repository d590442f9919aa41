"""What a build of the pipeline found, for its page and its mails; see scripts/stages/summary.sh.

    python -m scripts.build_summary BUILD OUTPUT

BUILD is the folder in which the stages of a build store files for each other, OUTPUT the folder
of stored runs. The addresses are the variables BUILD_URL and GRAFANA_URL; without
one, its link is left out.
"""

import html
import json
import os
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from compilewatch.analysis.summary import planned, summarise
from compilewatch.api.publish import view
from compilewatch.records import ChangeKind, Run, RunView
from compilewatch.report.wording import plural
from compilewatch.store import Store

NAMED = 5
"""As many models are named; of more, the number is given."""

AROUND = timedelta(hours=1)
"""What a dashboard shows before and after a run."""


def sentence(shown: RunView) -> str:
    """`24 of 25 without graph breaks, 1 regression: BertModel`."""
    summary = summarise(shown)
    parts = [f"{summary.passed:,} of {summary.planned_verdicts:,} without graph breaks"]
    for kind, noun, several in (
        (ChangeKind.REGRESSION, "regression", "regressions"),
        (ChangeKind.FIXED, "fix", "fixes"),
        (ChangeKind.FORECAST_CHANGED, "other forecast", "other forecasts"),
        (ChangeKind.MORE_COMPILATIONS, "compiles more often", "compile more often"),
    ):
        changes = [change for change in shown.changes if change.kind is kind]
        if changes:
            names = sorted({change.model for change in changes})
            further = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
            named = ", ".join(names[:NAMED]) + further
            parts.append(f"{plural(len(changes), noun, several)}: {named}")
    if shown.run.missing_shards:
        parts.append(f"shards are missing: {', '.join(shown.run.missing_shards)}")
    elif summary.missing:
        parts.append(f"{summary.missing:,} without a result")
    return ", ".join(parts)


def trainium_problem(views: Iterable[RunView], build: Path) -> str:
    """Why a build that asked for Trainium has no complete results of it; else nothing.

    `views` are those of the runs after the main one.
    """
    if os.environ.get("TRAINIUM") != "true":
        return ""
    for shown in views:
        lacking = planned(shown) - len(shown.results)
        return f"{lacking:,} of {planned(shown):,} results are missing" if lacking else ""
    lines = last_line(build / "trainium.problem")
    return f"no results: {lines or 'the log of the stage Neuron says why'}"


def last_line(path: Path) -> str:
    """The last line of a file that is not empty; nothing if there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")


def dashboard(run: Run, grafana: str) -> str:
    """The address of the Overview at the time of a run."""
    begun = datetime.fromisoformat(run.started_at)
    ended = datetime.fromisoformat(run.finished_at or run.started_at)
    since, until = (round(when.timestamp() * 1000) for when in (begun - AROUND, ended + AROUND))
    return f"{grafana.rstrip('/')}/d/compilewatch-overview?from={since}&to={until}"


def build_summary(build: Path, output: Path) -> dict[str, str]:
    """The summary of the runs that the file `runs` of a build names, the main one first.

    `text` has a line each for what was found and where to read on; `html` has links instead;
    `trainium` is what is wrong with the results of Trainium, empty if nothing is.
    """
    store = Store(output)
    ids = (build / "runs").read_text(encoding="utf-8").split()
    views = [view(store, store.open(name)) for name in ids]
    lines = [sentence(views[0])]
    trainium = trainium_problem(views[1:], build)
    if trainium:
        lines.append(f"Trainium: {trainium}")
    elif len(views) > 1:
        lines.append(f"Trainium: {sentence(views[1])}")
    if problem := last_line(build / "publish.problem"):
        lines.append(f"Publish: {problem.removeprefix('compilewatch: ')}")
    links = {}
    if address := os.environ.get("BUILD_URL"):
        links["report"] = f"{address.rstrip('/')}/Report/"
    if grafana := os.environ.get("GRAFANA_URL"):
        links["dashboards"] = dashboard(views[0].run, grafana)
    marked = [f'<a href="{html.escape(where)}">{name}</a>' for name, where in links.items()]
    return {
        "text": "\n".join([*lines, *(f"{name}: {where}" for name, where in links.items())]),
        "html": " · ".join([*map(html.escape, lines), *marked]),
        "trainium": trainium,
    }


if __name__ == "__main__":
    print(json.dumps(build_summary(*map(Path, sys.argv[1:])), ensure_ascii=False))
