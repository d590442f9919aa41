"""A regression, from the Pushgateway to a webhook, through the real services and the real rules."""

import json
import os
import queue
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.serving import serving

STACK = Path(__file__).parents[3] / "stack"
PATIENCE_SECONDS = 60.0
GRAFANA = "https://grafana.example.org"
RUNBOOK = "https://docs.example.org/alerts.html"

pytestmark = pytest.mark.services


@pytest.fixture
def webhook() -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """An address, and what was posted to it."""
    received: queue.Queue[dict[str, Any]] = queue.Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            received.put(json.loads(self.rfile.read(length)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            del arguments

    with serving(Receiver) as url:
        yield f"{url}/", received


GROUP = "/metrics/job/compilewatch/source/library/target/dynamo"


def metrics(*regressed: str) -> bytes:
    """What the sink pushes of one target, as far as the alert reads it."""
    lines = [
        "# TYPE compilewatch_regressed_models gauge",
        f'compilewatch_regressed_models{{mode="eval"}} {len(regressed)}',
        "# TYPE compilewatch_regressed_since_timestamp_seconds gauge",
    ]
    for name in regressed:
        labels = f'model="{name}",family="bert",mode="eval",status="graph_break"'
        lines.append(f"compilewatch_regressed_since_timestamp_seconds{{{labels}}} {len(name)}e8")
    return "\n".join([*lines, ""]).encode()


def replaced(text: str, changes: dict[str, str]) -> str:
    for before, after in changes.items():
        assert before in text, f"{before} is no longer there: this test hurries it"
        text = text.replace(before, after)
    return text


def rendered(service: str, **environment: str) -> str:
    return subprocess.run(
        ["sh", STACK / service / "render.sh"],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def alertmanager_config(url: str) -> str:
    """The stack's own, in a hurry."""
    text = rendered("alertmanager", ALERT_WEBHOOK_URL=url)
    return replaced(text, {"group_wait: 30s": "group_wait: 0s", "interval: 5m": "interval: 1s"})


def prometheus_config(folder: Path, gateway: str, alertmanager: str) -> str:
    """The stack's own with its rules, in a hurry."""
    rules = (STACK / "prometheus" / "rules" / "compilewatch.yml").read_text()
    (folder / "rules").mkdir()
    hurried = replaced(rules, {"keep_firing_for: 10m": "keep_firing_for: 1s"})
    (folder / "rules" / "compilewatch.yml").write_text(hurried)
    text = rendered("prometheus", GRAFANA_EXTERNAL_URL=GRAFANA, RUNBOOK_URL=RUNBOOK)
    changes = {
        "pushgateway:9091": gateway.removeprefix("http://"),
        "alertmanager:9093": alertmanager.removeprefix("http://"),
        "/etc/prometheus/rules": str(folder / "rules"),
        "scrape_interval: 2m": "scrape_interval: 300ms",
        "evaluation_interval: 1m": "evaluation_interval: 300ms",
    }
    return replaced(text + (STACK / "prometheus" / "scrape_pushgateway.yml").read_text(), changes)


@pytest.mark.matrix
def test_a_regression_reaches_the_webhook_and_so_does_its_end(
    tmp_path: Path, webhook: tuple[str, queue.Queue[dict[str, Any]]]
) -> None:
    url, received = webhook
    manager_file, prometheus_file = tmp_path / "alertmanager.yml", tmp_path / "prometheus.yml"
    manager_file.write_text(alertmanager_config(url))
    with (
        services.pushgateway(tmp_path) as gateway,
        services.alertmanager(tmp_path, manager_file) as manager,
    ):
        services.send(gateway, "PUT", GROUP, metrics("BertModel", "BlipModel"))
        prometheus_file.write_text(prometheus_config(tmp_path, gateway.url, manager.url))
        with services.prometheus(tmp_path, prometheus_file):
            first = received.get(timeout=PATIENCE_SECONDS)
            services.send(gateway, "PUT", GROUP, metrics())
            last = received.get(timeout=PATIENCE_SECONDS)
            while last["status"] != "resolved":
                last = received.get(timeout=PATIENCE_SECONDS)
    assert (first["status"], last["status"]) == ("firing", "resolved")
    for message in (first, last):
        (alert,) = message["alerts"]
        assert alert["labels"] == {
            "alertname": "CompilewatchRegression",
            "severity": "critical",
            "source": "library",
            "target": "dynamo",
            "mode": "eval",
        }
        # The labels that hold the addresses are not among those above.
        said = alert["annotations"]
        assert said["runbook_url"] == f"{RUNBOOK}#compilewatchregression"
        assert said["dashboard_url"] == (
            f"{GRAFANA}/d/compilewatch-overview?var-source=library&var-target=dynamo"
        )
    said = first["alerts"][0]["annotations"]
    assert said["summary"] == "2 models are worse on dynamo (library, eval)"
    for name in ("BertModel (graph break)", "BlipModel (graph break)"):
        assert name in said["description"]
