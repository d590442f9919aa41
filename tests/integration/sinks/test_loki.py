import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import retry
from compilewatch.errors import ConfigError, SinkError, UnreachableError
from compilewatch.events import LABELS, LINE_ONLY
from compilewatch.sinks import loki as loki_sink
from compilewatch.sinks.loki import Emitter, LokiSink, stream_of
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
    sink = LokiSink(factories.settings(**{**usual, **changes}))
    return sink.publish(VIEW, with_log(folder, given))


def lines(count: int, ago: timedelta = timedelta()) -> list[bytes]:
    return [line(stamp(ago, number), f"M{number}") for number in range(count)]


def text(given: list[bytes]) -> list[str]:
    return [one.decode() for one in given]


def test_every_line_arrives_complete_at_its_own_time(tmp_path: Path, server: LokiDouble) -> None:
    given = lines(3_000)
    said = publish(tmp_path, server.url, given)
    assert sorted(server.lines()) == sorted(text(given))
    assert said == f"Loki at {server.url}: 3000 lines"
    assert [stored.nanoseconds % 10**9 for stored in server.stored()] == list(range(3_000))
    assert 3 <= len(server.requests) < 10
    assert max(server.requests) < 10**6


def test_few_labels_and_the_rest_is_structured_metadata(tmp_path: Path, server: LokiDouble) -> None:
    ts = "2026-01-02T03:04:05.000000007Z"
    server.clock = lambda: int(datetime(2026, 1, 3, tzinfo=UTC).timestamp()) * 10**9
    fields: dict[str, Any] = {
        "durations": {"compile": 1.0},
        "causes": ["a"],
        "revision": None,
        "detail": "",
    }
    publish(tmp_path, server.url, [line(ts, **fields, fullgraph_accepted=True)])
    (stored,) = server.stored()
    assert stored.nanoseconds == 1_767_323_045_000_000_007
    assert set(stored.labels) == {"service_name", "hour", *LABELS}
    assert stored.labels["service_name"] == "compilewatch"
    assert stored.labels["hour"] == "2026-01-02T03"
    assert stored.metadata["run"] == RUN
    assert stored.metadata["model"] == "BertModel"
    assert (stored.metadata["graphs"], stored.metadata["dynamic"]) == ("1", "false")
    assert stored.metadata["fullgraph_accepted"] == "true"
    assert not set(stored.metadata) & {"ts", "revision", *LABELS, *LINE_ONLY}
    stream = stream_of(msgspec.json.encode({"ts": "1970-01-01T00:00:01Z", "event": "e"}))
    assert stream is not None
    assert stream[1][0] == str(10**9), "a time without a fraction"


def test_what_is_no_complete_event_is_left_out(tmp_path: Path, server: LokiDouble) -> None:
    damaged = [b"", b'{"event":', b"[]", b'{"ts": 1}', b'{"ts": "now"}', b'{"ts": "\xff']
    whole = line(stamp())
    publish(tmp_path, server.url, [whole, *damaged])
    assert server.lines() == text([whole])


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
    with pytest.raises(SinkError, match=r"rejects lines that old \(its reject_old_samples") as e:
        publish(tmp_path / "old", server.url, given)
    assert "\n" not in str(e.value)
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


def test_a_server_that_fails_or_hangs_for_too_long_is_said(
    tmp_path: Path, server: LokiDouble
) -> None:
    server.faults.extend([Fault(status=500, body="ingester is down")] * 1000)
    with pytest.raises(UnreachableError) as e:
        publish(tmp_path, server.url, lines(3), publish_retry_seconds=0.02)
    assert str(e.value) == (
        f"Loki at {server.url} responds 500: ingester is down: 0 lines were sent"
    )
    server.hang()
    once = {"publish_timeout_seconds": 0.1, "publish_retry_seconds": 0.0}
    with pytest.raises(UnreachableError, match=r"did not respond within 0\.1 s: 0 lines were sent"):
        publish(tmp_path, server.url, lines(3), **once)
    assert server.stored() == []
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match="cannot be reached: 0 lines were sent"):
        publish(tmp_path, nobody, lines(1), publish_retry_seconds=0.0)


def test_a_server_without_tls_and_one_that_takes_little_are_said_at_once(
    tmp_path: Path, server: LokiDouble
) -> None:
    with pytest.raises(SinkError, match=r"TLS is not trusted: check loki.url"):
        publish(tmp_path, server.url.replace("http:", "https:"), lines(1))
    with loki(max_body_bytes=100) as small, pytest.raises(SinkError, match="responds 413"):
        publish(tmp_path, small.url, lines(1))


CREDENTIALS = "check loki.username and loki.password"


def test_what_no_retry_helps_is_sent_once(tmp_path: Path, server: LokiDouble) -> None:
    for status, said in (
        (401, f"rejects the credentials (401): {CREDENTIALS}"),
        (403, f"rejects the credentials (403): {CREDENTIALS}"),
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
    shown = [*said, *capfd.readouterr(), caplog.text]
    assert [each for each in shown if "s3cr3t" in each or "Y2xvdWQ6czNjcjN0" in each] == []


def test_an_address_may_be_the_server_s_or_complete_and_another_is_rejected_at_once() -> None:
    for url, pushed_to in (
        ("http://loki:3100/", "http://loki:3100/loki/api/v1/push"),
        ("https://l.grafana.net/loki/api/v1/push", "https://l.grafana.net/loki/api/v1/push"),
        ("https://host/tenant", "https://host/tenant/loki/api/v1/push"),
    ):
        assert Emitter(url).url == pushed_to
    for url, said in (
        ("loki:3100", "loki_url is not an http"),
        ("http://", "loki_url is not an http"),
        ("http://loki:3100/api/prom/push", "push API from before 2019"),
    ):
        with pytest.raises(ConfigError, match=said):
            LokiSink(factories.settings(loki_url=url))
