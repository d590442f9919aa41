"""Brings the stack up, runs, checks, and takes it down: see scripts/verify_stack.sh."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from scripts.verify_stack import checks
from scripts.verify_stack.grafana import (
    Grafana,
    all_dashboards_are_loaded,
    only_the_password_logs_in,
    panels_answer,
    panels_say_that_their_source_is_down,
)
from scripts.verify_stack.services import (
    ROOT,
    SERVICES,
    CheckError,
    Compose,
    Programs,
    Report,
    Stack,
    until,
)
from scripts.verify_stack.storage import minio

MODELS = "BertModel,DistilBertModel,LongformerModel,XLMModel"
"""Two that compile, one with two reasons of graph breaks, and one with a single reason."""
SWEEPS = (
    ("--models", "DistilBertModel", "--targets", "inductor", "--baseline", "none"),
    ("--models", MODELS, "--targets", "dynamo,export", "--baseline", "none"),
    ("--models", MODELS, "--targets", "dynamo,export", "--baseline", "auto", "--profile", "1"),
)
"""The options of each run. The last one is compared with the one before, whose results it reuses,
and profiles a model."""
TEAM = {
    "compilewatch.toml": "",  # without it, inputs are those of this checkout
    "pyproject.toml": '[tool.compilewatch]\nthird_party = "report"\n',
    "compilewatch.baseline.json": '{"schema": 1, "breaks": []}\n',
    "inputs/models.toml": """schema_version = 1
[[model]]
name = "team/net"
factory = "net:Net"
python_path = ".."
inputs = "net:inputs"
""",
    "net.py": """import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x

def inputs():
    return {"x": torch.ones(2, 4)}
""",
}
"""A repository with settings of the gate, whose model has a graph break that its baseline lacks."""
SHIPPED_PAPERS = ROOT / "inputs" / "papers" / "library"
SCRAPED_SECONDS = 200.0
"""Alloy, or Prometheus, scrapes the Pushgateway every two minutes."""
COLLECTED_SECONDS = 60.0


def compilewatch(stack: Stack, *arguments: str, folder: Path = ROOT, **addresses: str) -> None:
    """Run a verb in a folder, on the stack's outputs; addresses are those to publish to."""
    own = {f"COMPILEWATCH_{name.upper()}_URL": url for name, url in addresses.items()}
    # The runs select different models on purpose.
    own["COMPILEWATCH_PUSHGATEWAY_REPLACE"] = "true"
    command = [str(Path(sys.executable).with_name("compilewatch")), *arguments]
    done = subprocess.run(
        [*command, "--output", str(stack.outputs)],
        cwd=folder,
        env=stack.environment | own,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise CheckError(f"compilewatch {arguments[0]} ended with {done.returncode}: {said[-1]}")


def newest(stack: Stack) -> Path:
    return (stack.outputs / "latest").resolve()


def sweep(stack: Stack) -> str:
    """Sweep, and publish to the Pushgateway."""
    began = time.monotonic()
    url = stack.url("pushgateway")
    team = stack.outputs.with_name("team")
    (team / "inputs").mkdir(parents=True)
    for name, text in TEAM.items():
        (team / name).write_text(text)
    compilewatch(stack, "sweep", "--source", "manifest", folder=team, pushgateway=url)
    for options in SWEEPS:
        compilewatch(stack, "sweep", *options, "--depth", "reduced", pushgateway=url)
    statuses = checks.statuses_of(newest(stack))
    found = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return f"{found}; {len(SWEEPS) + 1} runs in {time.monotonic() - began:.0f} s"


def papers(stack: Stack) -> str:
    """Run the shipped papers on prepared replies, and publish to the Pushgateway."""
    began = time.monotonic()
    selection = ("--random", "--max-papers", "100", "--folder", str(SHIPPED_PAPERS))
    compilewatch(stack, "papers", "run", *selection, "--provider", "scripted")
    compilewatch(stack, "papers", "publish", pushgateway=stack.url("pushgateway"))
    until(SCRAPED_SECONDS, partial(checks.papers_are_in_prometheus, stack))
    count = len(list((stack.outputs / "papers").glob("*/paper-retrieval")))
    return f"{count} papers in {time.monotonic() - began:.0f} s"


def after_a_kill(stack: Stack, *, forget: bool) -> str:
    stack.kill("alloy", forget=forget)
    stack.up()
    if forget:
        count = checks.lines(stack).total()
        until(COLLECTED_SECONDS, partial(checks.alloy_has_sent, stack, count))
    return until(COLLECTED_SECONDS, partial(checks.lines_are_in_loki_once, stack))


def after_a_push(stack: Stack, url: str) -> str:
    before = checks.sent_by_alloy(stack) if "alloy" in stack.services else 0
    for run in stack.outputs.glob("[0-9]*"):
        compilewatch(stack, "publish", run.name, "--to", "loki", loki=url)
    if url != stack.url("loki"):
        count = before + checks.lines(stack).total()
        until(COLLECTED_SECONDS, partial(checks.alloy_has_sent, stack, count))
    return until(COLLECTED_SECONDS, partial(checks.lines_are_in_loki_once, stack))


def after_a_flush(stack: Stack) -> str:
    checks.loki_writes_to_its_folder(stack)
    return until(COLLECTED_SECONDS, partial(checks.lines_are_in_loki_once, stack))


def verify_logs(report: Report, stack: Stack) -> None:
    once = "each line is in Loki once"
    if "loki" not in stack.services:
        report.not_verified(once, "loki is not installed")
        return
    in_loki, alloy = checks.lines_are_in_loki_once, "alloy" in stack.services
    if alloy:
        report.check(f"{once}, collected by Alloy", in_loki, stack, within=COLLECTED_SECONDS)
        for forget, what in ((False, "was killed and started"), (True, "forgot what it had read")):
            report.check(f"{once}, after Alloy {what}", partial(after_a_kill, forget=forget), stack)
    else:
        report.not_verified(f"{once}, collected by Alloy", "alloy is not installed")
    for _ in range(2):
        report.check(f"{once}, after a direct push", after_a_push, stack, stack.url("loki"))
    if alloy:
        url = f"http://127.0.0.1:{stack.ports['alloy_push']}"
        report.check(f"{once}, after a push through Alloy", after_a_push, stack, url)
    report.check(f"{once}, after Loki wrote to its folder", after_a_flush, stack)
    report.check("late lines are returned at once", checks.late_lines_are_returned, stack)
    report.check("a response above 4 MB", checks.a_large_answer_arrives, stack)


def verify_grafana(report: Report, stack: Stack, *, without: frozenset[str]) -> None:
    """Check the panels of each dashboard, but for those `without` data, by their uid."""
    if "grafana" not in stack.services:
        report.not_verified("Grafana's password and dashboards", "grafana is not installed")
        return
    report.check("Grafana's password", only_the_password_logs_in, stack)
    grafana, folder = Grafana(stack), stack.checkout / "dashboards" / "json"
    loads = "Grafana loads the dashboards"
    if report.check(loads, all_dashboards_are_loaded, grafana, folder, within=COLLECTED_SECONDS):
        for uid, dashboard in grafana.dashboards().items():
            what = f"the panels of {dashboard['title']}"
            if uid in without:
                report.not_verified(what, "it has no data, see above")
            else:
                report.check(what, panels_answer, grafana, uid, dashboard)


def verify_news(report: Report, stack: Stack) -> None:
    """A run that breaks models and its repair, in Grafana and as an alert."""
    headline, alert = "the headline number after a fix", "an alert fires with its text, and ends"
    if "grafana" in stack.services:
        shown = partial(checks.a_fix_shows_exactly, stack, Grafana(stack))
        report.check(headline, checks.in_turn, stack, shown)
    else:
        report.not_verified(headline, "grafana is not installed")
    if "alertmanager" in stack.services:
        fired = partial(checks.an_alert_fires_and_ends, stack)
        report.check(alert, checks.in_turn, stack, fired)
    else:
        report.not_verified(alert, "alertmanager is not installed")


def verify_outages(report: Report, stack: Stack) -> None:
    """What panels show while their source is down."""
    for service in ("loki", "prometheus"):
        what = f"the panels while {service} is down"
        if not {service, "grafana"} <= set(stack.services):
            report.not_verified(what, f"{service} or grafana is not installed")
            continue
        stack.kill(service)
        try:
            report.check(what, panels_say_that_their_source_is_down, Grafana(stack), service)
        finally:
            stack.up()


def verify_storage(report: Report, stack: Stack, folder: Path) -> None:
    kept = "each file of the run is in S3"
    if shutil.which("minio") is None:
        report.not_verified(kept, "minio is not installed")
        return

    def published() -> str:
        with minio(folder) as (environment, objects, version):
            stack.environment |= environment
            for _ in range(2):
                compilewatch(stack, "publish", "--to", "s3")
            run = newest(stack)
            files = {
                f"kept/{run.name}/{path.relative_to(run)}": path.stat().st_size
                for path in run.rglob("*")
                if path.is_file()
            }
            if differing := sorted(files.items() ^ objects().items()):
                what = f"{len(differing)} objects are missing or other: {differing[0][0]}"
                raise CheckError(what)
            return f"{len(files)} files, in MinIO {version}"

    report.check(f"{kept}, published twice", published)


def verify(report: Report, stack: Stack, folder: Path) -> None:
    if not report.check("the stack starts", stack.up):
        return
    for service in SERVICES:
        if service in stack.services:
            report.check(f"{service} is healthy", checks.version, stack, service)
        else:
            report.not_verified(service, "it is not installed")
    report.check("ports", checks.ports_are_the_configured_ones, stack)
    if not {"pushgateway", "prometheus"} <= set(stack.services):
        report.not_verified("a run", "it takes at least pushgateway and prometheus")
        return
    report.check("Prometheus takes the rules", checks.rules_are_loaded, stack)
    if "alertmanager" in stack.services:
        found = "Prometheus finds Alertmanager"
        report.check(found, checks.alerts_reach_alertmanager, stack, within=COLLECTED_SECONDS)
    if not report.check("sweeps of four models", sweep, stack):
        return
    shown, in_prometheus = (
        "each metric of the run is in Prometheus",
        checks.metrics_are_in_prometheus,
    )
    report.check(shown, in_prometheus, stack, newest(stack), within=SCRAPED_SECONDS)
    verify_logs(report, stack)
    without: frozenset[str] = frozenset()
    if shutil.which("bwrap") is None:
        report.not_verified("papers", "bubblewrap, which confines their code, is not installed")
        without = frozenset({"compilewatch-papers"})
    else:
        report.check("the shipped papers", papers, stack)
    verify_grafana(report, stack, without=without)
    verify_news(report, stack)
    verify_outages(report, stack)
    verify_storage(report, stack, folder)
    report.check("ports, at the end", checks.ports_are_the_configured_ones, stack)


def chosen(arguments: list[str]) -> type[Stack]:
    kinds: dict[str, type[Stack]] = {"docker": Compose, "programs": Programs}
    if not arguments:
        asked = ["docker", "info"]
        engine = (
            shutil.which("docker")
            and not subprocess.run(asked, capture_output=True, check=False).returncode
        )
        return Compose if engine else Programs
    if len(arguments) != 1 or arguments[0] not in kinds:
        print("usage: scripts/verify_stack.sh [docker | programs]", file=sys.stderr)
        sys.exit(2)
    return kinds[arguments[0]]


def main() -> int:
    kind, report = chosen(sys.argv[1:]), Report()
    # The services outlive whoever is ended without having ended them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="verify-stack-") as folder:
        stack = kind(Path(folder))
        try:
            verify(report, stack, Path(folder))
        finally:
            report.check("the stack is taken down", stack.down)
    words = {
        0: "all verified",
        1: "NOT verified: see above",
        3: "verified, but for what is missing",
    }
    print(f"{words[report.status]} (services: {kind.__name__.lower()})")
    return report.status


if __name__ == "__main__":
    sys.exit(main())
