"""Against a real Pushgateway that a real Prometheus scrapes."""

import http.server
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compilewatch import retry
from compilewatch.config import Settings
from compilewatch.errors import SelectionError, SinkError, UnreachableError
from compilewatch.records import RunView, Target
from compilewatch.sinks.prometheus import exposition
from compilewatch.sinks.pushgateway import PushgatewaySink, push_health
from compilewatch.store import RunFolder, Spool, Spooled
from tests import example_run, factories, services
from tests.services import Service
from tests.serving import serving
from tests.sharing import free_port

Labels = frozenset[tuple[str, str]]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with services.pushgateway(tmp_path_factory.mktemp("pushgateway")) as started:
        yield started


def settings(url: str, **given: Any) -> Settings:
    return factories.settings(**{"pushgateway_url": url, "publish_retry_seconds": 0.0, **given})


def push(view: RunView, url: str, **given: Any) -> str:
    return PushgatewaySink(settings(url, **given)).publish(view, RunFolder(Path("/nonexistent")))


def held(gateway: Service) -> dict[tuple[str, Labels], float]:
    """Everything the gateway exposes but its own metrics."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(gateway.get("/metrics").decode())
        for sample in family.samples
        if sample.labels.get("job", "").startswith("compilewatch")
        and not sample.name.startswith("push_")
    }


def given(labels: dict[str, str]) -> Labels:
    """Labels without the empty ones: the gateway adds an `instance` without a value."""
    return frozenset((name, value) for name, value in labels.items() if value)


def models(gateway: Service, target: str) -> set[str]:
    return {
        dict(labels)["model"]
        for (name, labels) in held(gateway)
        if name == "compilewatch_model_status" and ("target", target) in labels
    }


@pytest.mark.services
def test_what_is_pushed_is_what_the_file_has(gateway: Service) -> None:
    view = example_run.view(*example_run.row())
    said = push(view, gateway.url)
    expected = {
        (sample.name, given({**sample.labels, "job": "compilewatch"})): sample.value
        for family in text_string_to_metric_families(exposition(view).decode())
        for sample in family.samples
    }
    pushed = {(name, given(dict(labels))): value for (name, labels), value in held(gateway).items()}
    assert pushed == expected
    assert said.startswith("pushgateway: ")
    once = held(gateway)
    push(view, gateway.url)
    assert held(gateway) == once


@pytest.mark.services
def test_a_retired_model_disappears_and_other_targets_stay(gateway: Service) -> None:
    export = Target(name="export")
    push(
        factories.view(
            factories.result("A"), factories.result("B"), factories.result("A", target=export)
        ),
        gateway.url,
    )
    push(factories.view(factories.result("B")), gateway.url)
    assert models(gateway, "dynamo") == {"B"}
    assert models(gateway, "export") == {"A"}


@pytest.mark.services
def test_a_try_with_one_model_does_not_replace_the_others(tmp_path: Path) -> None:
    everyday, one = {"selection": {"top": 25}}, {"selection": {"names": ["A"]}}
    both = map(factories.result, ("A", "B"))
    fleet = factories.view(*both, source="hub", settings=everyday, planned=2)
    tried = factories.view(factories.result("A"), source="hub", settings=one)
    with services.pushgateway(tmp_path) as gateway:
        push(fleet, gateway.url)
        before = held(gateway)
        with pytest.raises(SelectionError, match="the models of the selection top 25") as said:
            push(tried, gateway.url)
        assert "\n" not in str(said.value)
        assert "--replace" in str(said.value)
        assert held(gateway) == before
        # Another source has models of its own, and the same selection may be published again.
        push(factories.view(factories.result("A"), source="manifest", settings=one), gateway.url)
        push(fleet, gateway.url)
        push(tried, gateway.url, pushgateway_replace=True)
        (selection,) = (
            dict(labels)["selection"]
            for (metric, labels) in held(gateway)
            if metric == "compilewatch_planned_requests" and ("source", "hub") in labels
        )
        assert selection.startswith("1 by name (")


@pytest.mark.services
def test_how_publishing_went_is_a_group_of_its_own(
    gateway: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compilewatch.store.outputs.now", lambda: "2026-01-02T03:04:05Z")
    spool = Spool(tmp_path)
    spool.delivered("pushgateway", "accepted")
    for run in ("first", "second"):
        spool.put("loki", Spooled(run=run, since=""))
    push_health(settings(gateway.url, loki_url="http://loki"), spool, ["loki"])
    found = {
        (name, dict(labels)["sink"]): value
        for (name, labels), value in held(gateway).items()
        if ("job", "compilewatch_publisher") in labels
    }
    assert found == {
        ("compilewatch_spooled_publications", "pushgateway"): 0,
        ("compilewatch_spooled_publications", "loki"): 2,
        ("compilewatch_failed_publications", "pushgateway"): 0,
        ("compilewatch_failed_publications", "loki"): 1,
        ("compilewatch_last_publication_timestamp_seconds", "pushgateway"): 1767323045,
    }


@pytest.mark.services
def test_the_gateways_own_error_is_reported(tmp_path: Path) -> None:
    """It refuses a metric that another group has with another type."""
    with services.pushgateway(tmp_path) as own:
        body = b"# TYPE compilewatch_verdicts counter\ncompilewatch_verdicts 1\n"
        services.send(own, "POST", "/metrics/job/other", body)
        with pytest.raises(SinkError, match=r"responds 400 Bad Request: .*compilewatch_verdicts"):
            push(factories.view(factories.result()), own.url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("pushgateway:9091", "is not an address: write http://host:9091"),
        ("http://", "is not an address"),
        ("http://me:secret@host:9091", "use pushgateway.username"),
        (f"http://127.0.0.1:{free_port()}", r"no Pushgateway responds at http://127.* .*refused"),
    ],
    ids=["no scheme", "no host", "password", "refused"],  # each process draws a port of its own
)
def test_an_address_at_which_nothing_is_is_said_in_one_line(url: str, message: str) -> None:
    with pytest.raises((SinkError, UnreachableError), match=message) as refused:
        push(factories.view(factories.result()), url)
    assert "secret" not in str(refused.value)


@contextmanager
def answering(*statuses: int) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers PUT with these statuses in turn, the last for ever, and what it got.

    It holds nothing: a GET is answered without a metric. A status of 0 is no answer at all.
    """
    got: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            puts = sum(method == "PUT" for method, *_ in got)
            self.answer(statuses[min(puts, len(statuses) - 1)])

        def do_GET(self) -> None:
            self.answer(200)

        def answer(self, status: int) -> None:
            path = urllib.parse.unquote(self.path)
            got.append((self.command, path, self.headers.get("Authorization")))
            if status:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(b"why\nnot" if status >= 400 else b"")

        def log_message(self, *_: object) -> None: ...

    with serving(Handler) as url:
        yield url, got


def test_what_may_pass_is_tried_again_and_an_error_of_ours_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry, "LONGEST_WAIT_SECONDS", 0.01)
    patient = {"publish_retry_seconds": 30.0}
    with answering(0, 429, 500, 503, 200) as (url, got):
        push(factories.view(factories.result()), url, **patient)
    assert [method for method, *_ in got].count("PUT") == 6  # two groups and four failed attempts
    with answering(400) as (url, got), pytest.raises(SinkError, match="400 Bad Request: why not"):
        push(factories.view(factories.result()), url, **patient)
    assert [method for method, *_ in got].count("PUT") == 1


def test_user_and_password_are_sent_and_never_printed() -> None:
    given = {"pushgateway_username": "me", "pushgateway_password": "secret"}
    with (
        answering(200, 401) as (url, got),
        pytest.raises(SinkError, match=r"set pushgateway.username") as refused,
    ):
        push(factories.view(factories.result()), url, **given)
    group = "/metrics/job/compilewatch/source/library"
    assert [path for method, path, _ in got if method == "PUT"] == [f"{group}/target/dynamo", group]
    assert {credentials for *_, credentials in got} == {"Basic bWU6c2VjcmV0"}
    assert "secret" not in str(refused.value)
