"""`papers publish` of many papers: moto's CloudWatch, a real Pushgateway, a double of Loki.

Takes some seconds: only real services show what they hold after a second publication.
"""

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest

from compilewatch.config import load_settings
from compilewatch.errors import SinkError
from compilewatch.extras.papers import publication
from compilewatch.extras.papers.publication import publish_papers
from compilewatch.extras.papers.records import PipelineStage
from compilewatch.extras.papers.store import PaperStore
from compilewatch.sinks.loki import BATCH_LINES
from tests import aws, services
from tests.doubles.loki import loki
from tests.integration.sinks.test_pushgateway import held
from tests.paper_summaries import FULL, summary

COUNT = 110
"""More than two requests to CloudWatch take here, and more lines than one to Loki."""
ACCESS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


def store(folder: Path) -> None:
    """Journals as a run writes them, with times of the last minutes."""
    begun = datetime.now(UTC) - timedelta(minutes=30)
    known = PaperStore(folder)
    for number in range(COUNT):
        for place, stage in enumerate(summary(number, FULL).stages):
            at = begun + timedelta(seconds=number, milliseconds=place)
            stage = msgspec.structs.replace(stage, at=f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z")
            known.folder(stage.paper).append(stage)


def sums(moto: str) -> dict[tuple[str, tuple[str, ...]], tuple[float, float]]:
    """What CloudWatch holds: metric and dimensions -> how many values, and their sum."""
    client = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=moto, **ACCESS)
    totals = {}
    now = datetime.now(UTC)
    for metric in client.list_metrics(Namespace="Trainium/Training")["Metrics"]:
        points = client.get_metric_statistics(
            **metric,
            StartTime=now - timedelta(days=1),
            EndTime=now + timedelta(minutes=5),
            Period=86_400,
            Statistics=["SampleCount", "Sum"],
        )["Datapoints"]
        key = (metric["MetricName"], tuple(sorted(d["Value"] for d in metric["Dimensions"])))
        count = sum(point["SampleCount"] for point in points)
        totals[key] = (count, sum(point["Sum"] for point in points))
    return totals


@pytest.mark.timeout(600)
@pytest.mark.services
def test_many_papers_are_published_once_though_a_service_fails_between_two_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.no_configuration(tmp_path, monkeypatch)
    for name, value in ACCESS.items():
        monkeypatch.setenv(name.upper(), value)
    store(tmp_path)
    real, calls = publication.put, list[int]()

    def put(settings: Any, data: Any) -> None:
        calls.append(len(data))
        if len(calls) == 3:
            raise SinkError("CloudWatch: throttled")
        real(settings, data)

    monkeypatch.setattr(publication, "put", put)
    monkeypatch.setattr(publication, "EXECUTIONS", 40)
    with services.pushgateway(tmp_path) as gateway, aws.moto() as moto, loki() as double:
        flags = {
            "output_dir": str(tmp_path),
            "pushgateway_url": gateway.url,
            "loki_url": double.url,
            "cloudwatch_enabled": True,
            "cloudwatch_region": "us-east-1",
            "cloudwatch_endpoint_url": moto,
            "publish_retry_seconds": 0.0,
        }
        settings = load_settings(flags, folder=tmp_path, environ={})
        failures = publish_papers(tmp_path, settings).failures
        assert [name for name, _ in failures] == ["cloudwatch"]
        assert publish_papers(tmp_path, settings).failures == ()
        assert len(calls) == 4  # the third twice
        requests = len(double.requests)
        groups, metrics, events = first = (held(gateway), sums(moto), double.stored())
        text = gateway.get("/metrics")
        assert publish_papers(tmp_path, settings).failures == ()
        assert (held(gateway), sums(moto), double.stored()) == first
        assert (len(calls), len(double.requests)) == (4, requests)
    assert len(events) == COUNT * len(PipelineStage) > BATCH_LINES
    # Each metric is one of a model and one of prepared replies.
    origins = {dimension for _, dimensions in metrics for dimension in dimensions}
    assert len(metrics) == 2 * len(FULL)
    assert {"model", "scripted"} < origins
    for name in FULL:
        counts = [count for (metric, _), (count, _) in metrics.items() if metric == name]
        assert sum(counts) == COUNT
    states = {dict(labels).get("state"): value for (name, labels), value in groups.items()
              if name == "compilewatch_papers"}  # fmt: skip
    assert states == {"passed": COUNT / 2}
    promtool = services.program("promtool", package="prometheus")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    lines = [line for line in checked.stderr.decode().splitlines() if "compilewatch_paper" in line]
    assert lines == []
