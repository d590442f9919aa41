"""`papers publish` of many papers: moto's CloudWatch, a real Pushgateway, a double of Loki.

Takes some seconds: only real services show what they hold after a second publication.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import httpx2
import msgspec
import pytest

from compilewatch.config import Settings, load_settings
from compilewatch.errors import SinkError
from compilewatch.extras.papers import publication
from compilewatch.extras.papers.publication import EXECUTIONS, publish_papers
from compilewatch.extras.papers.records import PipelineStage
from compilewatch.extras.papers.store import JOURNAL, PaperStore
from compilewatch.sinks.loki import BATCH_LINES
from tests import aws, services
from tests.doubles.loki import LokiDouble, loki
from tests.integration.sinks.test_pushgateway import held
from tests.paper_summaries import FULL, summary
from tests.services import Service

COUNT = 160
"""More than one request to CloudWatch takes (`EXECUTIONS`), and more lines than one to Loki."""
ACCESS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with services.pushgateway(tmp_path_factory.mktemp("pushgateway")) as started:
        yield started


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with aws.moto() as address:
        yield address


@pytest.fixture
def moto(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    aws.no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    # Its data belong to the process.
    httpx2.post(f"{endpoint}/moto-api/reset").raise_for_status()
    return endpoint


def store(folder: Path, count: int) -> None:
    """Journals as a run writes them, with times of the last minutes."""
    begun = datetime.now(UTC) - timedelta(minutes=30)
    known = PaperStore(folder)
    for number in range(count):
        at = begun + timedelta(seconds=number)
        lines = [
            msgspec.structs.replace(
                stage, at=f"{at + timedelta(milliseconds=place):%Y-%m-%dT%H:%M:%S.%f}000Z"
            )
            for place, stage in enumerate(summary(number, FULL).stages)
        ]
        path = known.folder(lines[0].paper).path
        path.mkdir(parents=True)
        (path / JOURNAL).write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))


def settings_of(folder: Path, gateway: Service, double: LokiDouble, moto: str) -> Settings:
    return load_settings(
        {
            "output_dir": str(folder),
            "pushgateway_url": gateway.url,
            "loki_url": double.url,
            "cloudwatch_enabled": True,
            "cloudwatch_region": "us-east-1",
            "cloudwatch_endpoint_url": moto,
            "publish_retry_seconds": 0.0,
        },
        folder=folder,
        environ={},
    )


def sums(moto: str) -> dict[tuple[str, tuple[str, ...]], tuple[float, float]]:
    """What CloudWatch holds: metric and dimensions -> how many values, and their sum."""
    client = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=moto, **ACCESS)
    totals = {}
    now = datetime.now(UTC)
    for metric in client.list_metrics(Namespace="Trainium/Training")["Metrics"]:
        points = client.get_metric_statistics(
            Namespace="Trainium/Training",
            MetricName=metric["MetricName"],
            Dimensions=metric["Dimensions"],
            StartTime=now - timedelta(days=1),
            EndTime=now + timedelta(minutes=5),
            Period=86_400,
            Statistics=["SampleCount", "Sum"],
        )["Datapoints"]
        key = (metric["MetricName"], tuple(sorted(d["Value"] for d in metric["Dimensions"])))
        count = sum(point["SampleCount"] for point in points)
        totals[key] = (count, sum(point["Sum"] for point in points))
    return totals


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.services
def test_many_papers_are_published_and_publishing_again_changes_nothing(
    tmp_path: Path, gateway: Service, moto: str
) -> None:
    store(tmp_path, COUNT)
    with loki() as double:
        settings = settings_of(tmp_path, gateway, double, moto)
        published = publish_papers(tmp_path, settings)
        assert published.failures == ()
        first = (held(gateway), sums(moto), double.stored())
        requests = len(double.requests)
        text = gateway.get("/metrics")
        assert publish_papers(tmp_path, settings).failures == ()
        assert (held(gateway), sums(moto), double.stored()) == first
        assert len(double.requests) == requests
    groups, metrics, events = first
    assert COUNT > EXECUTIONS
    assert len(events) > BATCH_LINES
    assert len(metrics) <= 40
    assert {name for name, _ in metrics} == set(FULL)
    counts = Counter(name for name, _ in metrics)
    assert set(counts.values()) == {2}  # of a model and of prepared replies
    for name in FULL:
        of_name = [found for (metric, _), found in metrics.items() if metric == name]
        assert sum(count for count, _ in of_name) == COUNT
    assert len(events) == COUNT * len(PipelineStage)
    found = {dict(labels).get("state"): value for (name, labels), value in groups.items()
             if name == "compilewatch_papers"}  # fmt: skip
    assert found == {"passed": COUNT / 2}
    promtool = services.program("promtool", package="prometheus")
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, check=False
    )
    lines = [line for line in checked.stderr.decode().splitlines() if "compilewatch_paper" in line]
    assert lines == []


@pytest.mark.timeout(600)
@pytest.mark.services
def test_a_service_that_fails_between_two_requests_gets_nothing_twice(
    tmp_path: Path, gateway: Service, moto: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that few papers need several requests.
    monkeypatch.setattr(publication, "EXECUTIONS", 20)
    store(tmp_path, 50)
    real, calls = publication.put, list[int]()

    def put(settings: Any, data: Any) -> None:
        calls.append(len(data))
        if len(calls) == 3:
            raise SinkError("CloudWatch: throttled")
        real(settings, data)

    with loki() as double:
        settings = settings_of(tmp_path, gateway, double, moto)
        monkeypatch.setattr(publication, "put", put)
        published = publish_papers(tmp_path, settings)
        assert [name for name, _ in published.failures] == ["cloudwatch"]
        assert publish_papers(tmp_path, settings).failures == ()
    assert len(calls) == 4  # the third twice
    metrics = sums(moto)
    for name in FULL:
        counts = [count for (metric, _), (count, _) in metrics.items() if metric == name]
        assert sum(counts) == 50
