"""Brings the stack up, runs, checks, and takes it down: see scripts/verify_stack.sh."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import requests

from scripts.verify_stack import checks, grafana
from scripts.verify_stack.services import (
    ROOT,
    SERVICES,
    CheckError,
    Compose,
    Report,
    Stack,
    minio,
    until,
)

PROGRAM = Path(sys.executable).with_name("compilewatch")

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
    stack.run(PROGRAM, *arguments, "--output", stack.outputs, folder=folder, **own)


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
    lines = (newest(stack) / "results.jsonl").read_text().splitlines()
    statuses = Counter(str(json.loads(line)["status"]) for line in lines)
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


def after_a_push(stack: Stack, port: str) -> str:
    url = f"http://127.0.0.1:{stack.ports[port]}"
    before = checks.sent_by_alloy(stack) if "alloy" in stack.services else 0
    for run in stack.outputs.glob("[0-9]*"):
        compilewatch(stack, "publish", run.name, "--to", "loki", loki=url)
    if port != "loki":
        count = before + checks.lines(stack).total()
        until(COLLECTED_SECONDS, partial(checks.alloy_has_sent, stack, count))
    return until(COLLECTED_SECONDS, partial(checks.lines_are_in_loki_once, stack))


def after_a_flush(stack: Stack) -> str:
    """Once Loki has written what it holds in memory."""
    requests.post(stack.url("loki") + "/flush", timeout=60).raise_for_status()
    return until(COLLECTED_SECONDS, partial(checks.lines_are_in_loki_once, stack))


def verify_logs(report: Report, stack: Stack) -> None:
    once, loki, alloy = "each line is in Loki once", ["loki"], ["loki", "alloy"]
    for what, needs, check in (
        ("collected by Alloy", alloy, checks.lines_are_in_loki_once),
        ("after Alloy was killed and started", alloy, partial(after_a_kill, forget=False)),
        ("after Alloy forgot what it had read", alloy, partial(after_a_kill, forget=True)),
        ("after a direct push", loki, partial(after_a_push, port="loki")),
        ("after a direct push", loki, partial(after_a_push, port="loki")),
        ("after a push through Alloy", alloy, partial(after_a_push, port="alloy_push")),
        ("after Loki wrote to its folder", loki, after_a_flush),
    ):
        within = COLLECTED_SECONDS if check is checks.lines_are_in_loki_once else 0.0
        report.check(f"{once}, {what}", check, stack, needs=needs, within=within)
    late, large = checks.late_lines_are_returned, checks.a_large_answer_arrives
    report.check("late lines are returned at once", late, stack, needs=loki)
    report.check("a response above 4 MB", large, stack, needs=loki)


def verify_grafana(report: Report, stack: Stack) -> None:
    """Check the password, that the dashboards are loaded, and the panels of each of them."""
    needs = ["grafana"]
    password, loads = "Grafana's password", "Grafana loads the dashboards"
    if not report.check(password, grafana.only_the_password_logs_in, stack, needs=needs):
        return
    client, folder = grafana.client_of(stack), stack.checkout / "dashboards" / "json"
    loaded = partial(grafana.all_dashboards_are_loaded, client, folder)
    if report.check(loads, loaded, within=COLLECTED_SECONDS):
        for uid, dashboard in client.dashboards().items():
            what = f"the panels of {dashboard['title']}"
            # Without bubblewrap, no paper ran.
            needs = ["bwrap"] if uid == "compilewatch-papers" else []
            report.check(what, grafana.panels_answer, client, uid, dashboard, needs=needs)


def verify_news(report: Report, stack: Stack) -> None:
    """A run that breaks models and its repair, in Grafana and as an alert."""
    for what, check, service in (
        ("the headline number after a fix", checks.a_fix_shows_exactly, "grafana"),
        ("an alert fires with its text, and ends", checks.an_alert_fires_and_ends, "alertmanager"),
    ):
        report.check(what, checks.in_turn, stack, check, needs=[service])


def while_it_is_down(stack: Stack, service: str) -> str:
    stack.kill(service)
    try:
        return grafana.panels_say_that_their_source_is_down(grafana.client_of(stack), service)
    finally:
        stack.up()


def published_to_s3(stack: Stack, folder: Path) -> str:
    with minio(folder) as (environment, objects):
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
            raise CheckError(f"{len(differing)} objects are missing or other: {differing[0][0]}")
        return f"{len(files)} files"


def verify(stack: Stack, folder: Path) -> Report:
    tools = [name for name in ("minio", "bwrap") if shutil.which(name)]
    report = Report(*stack.services, *tools)
    try:
        if report.check("the stack starts", stack.up):
            verify_started(report, stack, folder)
    finally:
        report.check("the stack is taken down", stack.down)
    return report


def verify_started(report: Report, stack: Stack, folder: Path) -> None:
    for service in SERVICES:
        report.check(f"{service} is healthy", checks.version, stack, service, needs=[service])
    report.check("ports", checks.ports_are_the_configured_ones, stack)
    needs = ["pushgateway", "prometheus"]
    rules, alerts = "Prometheus takes the rules", "Prometheus finds Alertmanager"
    report.check(rules, checks.rules_are_loaded, stack, needs=["prometheus"])
    report.check(
        *(alerts, checks.alerts_reach_alertmanager, stack),
        needs=["prometheus", "alertmanager"],
        within=COLLECTED_SECONDS,
    )
    if not report.check("sweeps of four models", sweep, stack, needs=needs):
        return
    shown = partial(checks.metrics_are_in_prometheus, stack, newest(stack))
    report.check("each metric of the run is in Prometheus", shown, within=SCRAPED_SECONDS)
    verify_logs(report, stack)
    report.check("the shipped papers", papers, stack, needs=["bwrap"])
    verify_grafana(report, stack)
    verify_news(report, stack)
    for service in ("loki", "prometheus"):
        what = f"the panels while {service} is down"
        report.check(what, while_it_is_down, stack, service, needs=[service, "grafana"])
    kept = "each file of the run is in S3, published twice"
    report.check(kept, published_to_s3, stack, folder, needs=["minio"])
    report.check("ports, at the end", checks.ports_are_the_configured_ones, stack)


def chosen(arguments: list[str]) -> type[Stack]:
    kinds: dict[str, type[Stack]] = {"docker": Compose, "programs": Stack}
    if not arguments:
        asked = ["docker", "info"]
        engine = (
            shutil.which("docker")
            and not subprocess.run(asked, capture_output=True, check=False).returncode
        )
        return Compose if engine else Stack
    if len(arguments) != 1 or arguments[0] not in kinds:
        print("usage: scripts/verify_stack.sh [docker | programs]", file=sys.stderr)
        sys.exit(2)
    return kinds[arguments[0]]


def main() -> int:
    kind = chosen(sys.argv[1:])
    # The services outlive whoever is ended without having ended them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="verify-stack-") as folder:
        report = verify(kind(Path(folder)), Path(folder))
    words = {
        0: "all verified",
        1: "NOT verified: see above",
        3: "verified, but for what is missing",
    }
    print(f"{words[report.status]} (services: {'docker' if kind is Compose else 'programs'})")
    return report.status


if __name__ == "__main__":
    sys.exit(main())
