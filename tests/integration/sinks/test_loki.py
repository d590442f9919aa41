import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from compilewatch import retry
from compilewatch.errors import ConfigError, SinkError, UnreachableError
from compilewatch.events import LABELS, LINE_ONLY
from compilewatch.sinks import loki as loki_sink
from tests import factories
from tests.doubles.loki import Fault, LokiDouble, loki
from tests.run_folder import RUN, VIEW, line, stamp, with_log
from tests.sharing import free_port


@pytest.fixture
def server() -> Iterator[LokiDouble]:
    with loki() as double:
        yield double


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONGEST_WAIT_SECONDS", 0.01)


def publish(folder: Path, url: str, given: list[bytes], **changes: Any) -> str:
    """Publish a run whose log has these lines."""
    usual = {"loki_url": url, "publish_timeout_seconds": 5.0, "publish_retry_seconds": 5.0}
    sink = loki_sink.LokiSink(factories.settings(**{**usual, **changes}))
    return sink.publish(VIEW, with_log(folder, given))


def lines(count: int, ago: timedelta = timedelta()) -> list[bytes]:
    return [line(stamp(ago, number), f"M{number}") for number in range(count)]


def text(given: list[bytes]) -> list[str]:
    return [one.decode() for one in given]


def test_every_complete_line_arrives_at_its_own_time(tmp_path: Path, server: LokiDouble) -> None:
    given = lines(3_000)
    damaged = [b"", b'{"event":', b"[]", b'{"ts": 1}', b'{"ts": "now"}', b'{"ts": "\xff']
    said = publish(tmp_path, server.url, [*damaged, *given])
    assert sorted(server.lines()) == sorted(text(given))
    assert said == f"Loki at {server.url}: 3000 lines"
    assert [stored.nanoseconds % 10**9 for stored in server.stored()] == list(range(3_000))
    assert 3 <= len(server.requests) < 10
    assert max(server.requests) < 10**6


def test_few_labels_and_the_rest_is_structured_metadata(tmp_path: Path, server: LokiDouble) -> None:
    server.clock = lambda: int(datetime(2026, 1, 3, tzinfo=UTC).timestamp()) * 10**9
    fields: dict[str, Any] = {
        "durations": {"compile": 1.0},
        "causes": ["a"],
        "revision": None,
        "detail": "",
    }
    given = line("2026-01-02T03:04:05.000000007Z", **fields, fullgraph_accepted=True)
    publish(tmp_path, server.url, [given])
    (stored,) = server.stored()
    assert stored.nanoseconds == 1_767_323_045_000_000_007
    assert set(stored.labels) == {"service_name", "hour", *LABELS}
    assert stored.labels["service_name"] == "compilewatch"
    assert stored.labels["hour"] == "2026-01-02T03"
    assert not set(stored.metadata) & {"ts", "revision", *LABELS, *LINE_ONLY}
    expected = {"run": RUN, "model": "BertModel", "graphs": "1", "dynamic": "false"}
    assert stored.metadata.items() >= {**expected, "fullgraph_accepted": "true"}.items()


def test_a_run_of_three_hours_is_taken_twice_and_after_a_newer_one(
    tmp_path: Path, server: LokiDouble
) -> None:
    """Loki takes nothing that is an hour behind the newest line of its stream."""
    long = [line(stamp(timedelta(minutes=m))) for m in (180, 120, 61, 59, 1)]
    newer = [line(stamp(), "newer")]
    publish(tmp_path / "newer", server.url, newer)
    for _ in range(2):
        publish(tmp_path / "long", server.url, long)
    assert server.lines() == text([*long, *newer])


def test_lines_that_are_too_old_or_of_the_future_are_rejected_plainly(
    tmp_path: Path, server: LokiDouble
) -> None:
    given = [line(stamp(timedelta(days=8))), line(stamp())]
    with pytest.raises(SinkError, match=r"^.*rejects lines that old \(its reject_old_samples.*$"):
        publish(tmp_path / "old", server.url, given)
    assert server.lines() == text(given[1:])
    with pytest.raises(SinkError, match="set this machine's clock"):
        publish(tmp_path / "new", server.url, lines(1, timedelta(minutes=-20)))


def test_rejected_lines_do_not_keep_others_back(
    tmp_path: Path, server: LokiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loki_sink, "BATCH_LINES", 2)
    server.faults.append(Fault(status=400, body="entry is not to its taste\nand more"))
    with pytest.raises(SinkError) as e:
        publish(tmp_path, server.url, lines(6))
    assert str(e.value) == (
        f"Loki at {server.url} responds 400: entry is not to its taste "
        "(4 lines were sent, of 2 some or all rejected)"
    )
    assert len(server.stored()) == 4


def test_passing_faults_lose_and_repeat_nothing(tmp_path: Path, server: LokiDouble) -> None:
    given = lines(2500)
    late = Fault(status=429, headers={"Retry-After": "1"})
    server.faults.extend([late, Fault(status=500), Fault(), Fault(status=502, store=True)])
    publish(tmp_path, server.url, given)
    assert sorted(server.lines()) == sorted(text(given))
    assert len(server.requests) > 6


def test_a_server_that_fails_for_too_long_is_said(tmp_path: Path, server: LokiDouble) -> None:
    def unreachable(said: str, url: str = server.url, **changes: float) -> None:
        with pytest.raises(UnreachableError, match=f"{said}: 0 lines were sent"):
            publish(tmp_path, url, lines(3), **{"publish_retry_seconds": 0.0, **changes})

    server.faults.extend([Fault(status=500, body="ingester is down")] * 1000)
    unreachable("responds 500: ingester is down", publish_retry_seconds=0.02)
    assert server.stored() == []
    unreachable("cannot be reached", f"http://127.0.0.1:{free_port()}")


def test_what_no_retry_helps_is_sent_once(tmp_path: Path, server: LokiDouble) -> None:
    credentials = "check loki.username and loki.password"
    for status, said in (
        (401, f"rejects the credentials (401): {credentials}"),
        (403, f"rejects the credentials (403): {credentials}"),
        (404, "has no push API at /loki/api/v1/push (404): check loki.url"),
        (302, "has no push API at /loki/api/v1/push (302): check loki.url"),
        (200, "has no push API at /loki/api/v1/push (200): check loki.url"),
    ):
        headers = {"Location": "http://127.0.0.1:9/"} if status == 302 else {}
        server.faults.append(Fault(status=status, headers=headers))
        server.requests.clear()
        with pytest.raises(SinkError) as e:
            publish(tmp_path, server.url, lines(2500))
        assert str(e.value) == f"Loki at {server.url} {said}"
        assert len(server.requests) == 1
    with pytest.raises(SinkError, match=r"TLS is not trusted: check loki.url"):
        publish(tmp_path, server.url.replace("http:", "https:"), lines(1))


@pytest.mark.parametrize("in_url", [True, False])
def test_credentials_are_used_and_never_shown(
    tmp_path: Path, in_url: bool, capfd: pytest.CaptureFixture[str], caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    with loki(auth="cloud:s3cr3t") as server:
        url, given = server.url, {"loki_username": "cloud", "loki_password": "s3cr3t"}
        if in_url:
            url, given = url.replace("//", "//cloud:s3cr3t@"), {}
        said = [publish(tmp_path, url, lines(1), **given)]
        assert len(server.stored()) == 1
        server.faults.append(Fault(status=400, body="you said {authorization} with s3cr3t"))
        server.faults.append(Fault(status=403))
        server.faults.append(Fault(status=500, body="{authorization}"))
        for _ in range(3):
            with pytest.raises(SinkError) as e:
                publish(tmp_path, url, lines(1), **given, publish_retry_seconds=0.0)
            said.append(str(e.value))
    assert "you said Basic *** with ***" in said[1]
    shown = "\n".join([*said, *capfd.readouterr(), caplog.text])
    assert not [secret for secret in ("s3cr3t", "Y2xvdWQ6czNjcjN0") if secret in shown]


@pytest.mark.parametrize(
    ("url", "pushed_to"),
    [
        ("http://loki:3100/", "http://loki:3100/loki/api/v1/push"),
        ("https://l.grafana.net/loki/api/v1/push", "https://l.grafana.net/loki/api/v1/push"),
        ("https://host/tenant", "https://host/tenant/loki/api/v1/push"),
        ("loki:3100", None),
        ("http://", None),
    ],
)
def test_an_address_is_the_servers_or_complete(url: str, pushed_to: str | None) -> None:
    if pushed_to:
        assert loki_sink.Emitter(url).url == pushed_to
        return
    with pytest.raises(ConfigError, match="loki_url is not an http"):
        loki_sink.LokiSink(factories.settings(loki_url=url))
