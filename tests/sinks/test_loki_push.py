"""Pushing while a sweep runs. What is slow or dead is held by events, never by clocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.analysis.view import RunView
from compilewatch.config import Settings
from compilewatch.errors import UsageError
from compilewatch.launchers.fake import FakeLauncher, passing
from compilewatch.publishing import load_sinks, publish
from compilewatch.records import Request, Result
from compilewatch.sinks import loki_client, loki_push
from compilewatch.sinks.loki_push import LogPusher
from compilewatch.viewing import view
from tests.doubles.loki import Fault, LokiDouble, loki
from tests.sinks.run_folder import line, stamp
from tests.sweeping import MODELS, run_sweep, store


@pytest.fixture
def server() -> Iterator[LokiDouble]:
    with loki() as double:
        yield double


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loki_client, "LONGEST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(loki_push, "LINGER_SECONDS", 0.01)


def lines(count: int) -> list[bytes]:
    return [line(stamp(nanoseconds=number), f"M{number}") for number in range(count)]


def text(given: list[bytes]) -> list[str]:
    return sorted(one.decode() for one in given)


def log_of(seen: RunView, tmp_path: Path) -> list[str]:
    path = tmp_path / "outputs" / seen.run.id / "logs" / f"{seen.run.id}.jsonl"
    return sorted(path.read_text().splitlines())


# --- the pusher ---


def test_every_accepted_line_arrives(server: LokiDouble) -> None:
    given = lines(10_000)
    pusher = LogPusher(server.url, drain_seconds=60)
    for start in range(0, len(given), 7):
        pusher.offer(given[start : start + 7])
    pusher.close()
    assert sorted(server.lines()) == text(given)
    assert pusher.lost is None


def test_lines_arrive_before_the_end(server: LokiDouble) -> None:
    arrived = threading.Event()
    real = server.push

    def push(body: bytes) -> list[str]:
        arrived.set()
        return real(body)

    server.push = push  # type: ignore[method-assign]
    pusher = LogPusher(server.url, drain_seconds=60)
    pusher.offer(lines(1))
    assert arrived.wait(30)
    pusher.close()


def test_nothing_offered_is_nothing_sent(server: LokiDouble) -> None:
    pusher = LogPusher(server.url, drain_seconds=60)
    pusher.offer([])
    pusher.close()
    pusher.close()
    assert pusher.lost is None
    assert server.requests == []


def test_a_hung_server_blocks_nobody_and_drops_are_counted(server: LokiDouble) -> None:
    server.hang()
    pusher = LogPusher(server.url, drain_seconds=0.0, capacity=10)
    pusher.offer(lines(1))
    server.held.acquire()  # the thread is in a request that is never answered
    pusher.offer(lines(25))
    pusher.close()
    assert pusher.lost is not None
    assert pusher.lost.startswith("26 of 26 log lines were not pushed: 15 had no room in the queue")
    assert server.stored() == []


def test_what_waited_for_a_hung_server_arrives_when_it_is_back(server: LokiDouble) -> None:
    given = lines(300)
    server.hang()
    pusher = LogPusher(server.url, drain_seconds=60)
    pusher.offer(given)
    server.held.acquire()
    server.recover()
    pusher.close()
    assert pusher.lost is None
    assert sorted(server.lines()) == text(given)


@pytest.mark.parametrize("fault", [Fault(status=429), Fault(status=500), Fault(store=True)])
def test_passing_faults_lose_and_double_nothing(server: LokiDouble, fault: Fault) -> None:
    given = lines(2000)
    server.faults.extend([fault] * 4)
    pusher = LogPusher(server.url, drain_seconds=60)
    pusher.offer(given)
    pusher.close()
    assert pusher.lost is None
    assert sorted(server.lines()) == text(given)


def test_a_server_that_starts_again_gets_everything(server: LokiDouble) -> None:
    first, second = lines(10), [line(stamp(nanoseconds=n), "later") for n in range(10)]
    arrived = threading.Event()
    real = server.push

    def push(body: bytes) -> list[str]:
        arrived.set()
        return real(body)

    server.push = push  # type: ignore[method-assign]
    pusher = LogPusher(server.url, drain_seconds=60)
    pusher.offer(first)
    assert arrived.wait(30)
    server.stop()
    pusher.offer(second)
    server.start()
    pusher.close()
    assert pusher.lost is None
    assert sorted(server.lines()) == text([*first, *second])


def test_refused_credentials_are_said_without_them() -> None:
    with loki(auth="user:right") as server:
        pusher = LogPusher(server.url, ("user", "wrong"), drain_seconds=60)
        pusher.offer(lines(3))
        pusher.close()
        assert pusher.lost == (
            f"3 of 3 log lines were not pushed: Loki at {server.url} refuses the credentials "
            "(401): check loki_username and loki_password"
        )


def test_offered_after_the_end_is_dropped(server: LokiDouble) -> None:
    pusher = LogPusher(server.url, drain_seconds=60)
    pusher.close()
    pusher.offer(lines(1))
    assert pusher.lost is not None
    assert server.requests == []


# --- of a sweep ---


def push_settings(server: LokiDouble, **changes: object) -> dict[str, object]:
    return {"loki_url": server.url, "loki_push": True, **changes}


def test_a_sweep_that_pushes_and_publishes_stores_each_line_once(
    tmp_path: Path, server: LokiDouble
) -> None:
    seen = run_sweep(tmp_path, settings=push_settings(server))
    assert seen.notes == ()
    assert sorted(server.lines()) == log_of(seen, tmp_path)
    assert {s.event["event"] for s in server.stored()} >= {"run_started", "run_finished"}


def test_results_are_in_loki_while_the_sweep_runs(tmp_path: Path, server: LokiDouble) -> None:
    arrived = threading.Event()
    real = server.push

    def push(body: bytes) -> list[str]:
        arrived.set()
        return real(body)

    server.push = push  # type: ignore[method-assign]
    seen: list[bool] = []

    def answer(request: Request) -> Result:
        seen.append(arrived.wait(30))
        return passing(request)

    run_sweep(tmp_path, FakeLauncher(answers=answer), settings=push_settings(server))
    assert seen
    assert all(seen)


def test_a_hung_server_costs_a_sweep_a_note(tmp_path: Path, server: LokiDouble) -> None:
    server.hang()
    changes = {"publish_timeout_seconds": 0.05, "publish_retry_seconds": 0.0}
    seen = run_sweep(tmp_path, settings=push_settings(server, **changes))
    assert len(seen.results) == len(MODELS)
    assert "log lines were not pushed" in seen.notes[-1]
    assert f"compilewatch publish {seen.run.id} --to loki" in seen.notes[-1]
    assert any('"sink":"loki_push"' in each for each in log_of(seen, tmp_path))
    server.recover()
    settings = Settings(loki_url=server.url)
    again = view(store(tmp_path), store(tmp_path).open(seen.run.id))
    published = publish(store(tmp_path), again, load_sinks(["loki"], settings))
    assert published.failures == ()
    assert sorted(server.lines()) == log_of(seen, tmp_path)


def test_what_was_not_pushed_but_published_needs_no_note(
    tmp_path: Path, server: LokiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogPusher, "_work", lambda self: None)  # sends nothing at all
    seen = run_sweep(tmp_path, settings=push_settings(server))
    assert seen.notes == ()
    assert sorted(server.lines()) == log_of(seen, tmp_path)


def test_pushing_without_an_address_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="loki has no address: set loki_url"):
        run_sweep(tmp_path, settings={"loki_push": True})
    assert not (tmp_path / "outputs").exists()


DRAINING = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from tests.sweeping import run_sweep

    run_sweep(Path(sys.argv[1]), settings={"loki_url": sys.argv[2], "loki_push": True})
    """
)


def test_a_sweep_that_is_killed_while_it_drains_can_be_published(
    tmp_path: Path, server: LokiDouble
) -> None:
    server.hang()
    command = [sys.executable, "-c", DRAINING, str(tmp_path), server.url]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    while not store(tmp_path).spool.waiting("loki"):  # the run is done, and being published
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.recover()
    stored = store(tmp_path).open("latest")
    assert stored.run.state == "finished"
    seen = view(store(tmp_path), stored)
    published = publish(store(tmp_path), seen, load_sinks(["loki"], Settings(loki_url=server.url)))
    assert published.failures == ()
    assert sorted(server.lines()) == log_of(seen, tmp_path)
