"""Jobs survive the service: it is killed again and again, and each job ends exactly once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from pathlib import Path

from compilewatch.executor.protocol import FailureCode, JobRequest, State
from compilewatch.sandbox.policy import Limits
from tests.integration.executor.conftest import PROGRAM, TOKEN, Executor

SHORT = "import time; time.sleep(0.1); print('done')"


def request(source: str, title: str = "") -> JobRequest:
    return JobRequest(files={"main.py": source}, title=title, limits=Limits(deadline_seconds=20.0))


def test_every_job_ends_once_however_often_the_service_is_killed(own: Executor) -> None:
    """Takes about 15 seconds: 24 jobs and 5 kills; `make bench` has 200 jobs and 10 kills."""
    own.start()
    client = own.client()
    keys = [f"job-{number}" for number in range(24)]
    for key in keys:
        client.submit(key, request(SHORT, key))
    for number in range(5):
        time.sleep(0.3 + 0.13 * number)
        own.kill()
        own.start()
    states = {key: client.wait(key, timeout_seconds=60) for key in keys}
    assert {state.state for state in states.values()} <= {State.DONE, State.LOST}
    done = [state for state in states.values() if state.state is State.DONE]
    assert len(done) > 12
    for state in done:
        assert client.log(state.key).data == b"done\n"
    # Only the last attempt of a job can have come to its end.
    for key, state in states.items():
        finished = [
            path
            for path in (own.state / "jobs" / key).glob("*/stdout.log")
            if path.read_bytes() == b"done\n" and path.parent.name != str(state.attempt)
        ]
        assert finished == []


def test_a_stopped_service_lets_its_jobs_wait_and_the_next_goes_on(own: Executor) -> None:
    own.start()
    client = own.client()
    source = "import time; print('began', flush=True); time.sleep(1.5)"
    client.submit("goes-on", request(source))
    while not client.log("goes-on").data:
        time.sleep(0.05)
    assert own.kill(signal.SIGTERM) == 0
    own.start()
    state = client.wait("goes-on")
    assert (state.state, state.attempt) == (State.DONE, 2)


def test_a_job_that_each_service_dies_with_is_lost_after_three(own: Executor) -> None:
    client = own.client()
    for attempt in range(3):
        own.start()
        if attempt == 0:
            client.submit("doomed", request("import time; time.sleep(60)"))
        while client.status("doomed").state is not State.RUNNING:
            time.sleep(0.02)
        own.kill()
    own.start()
    state = client.status("doomed")
    assert (state.state, state.failure) == (State.LOST, FailureCode.INTERRUPTED)


def test_what_was_cancelled_before_a_kill_stays_cancelled(own: Executor) -> None:
    own.start()
    client = own.client()
    client.submit("unwanted", request("import time; time.sleep(60)"))
    while client.status("unwanted").state is not State.RUNNING:
        time.sleep(0.02)
    client.cancel("unwanted")
    own.kill()
    own.start()
    assert client.wait("unwanted").state is State.CANCELLED


def serve(*options: str, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    if token is not None:
        variables["COMPILEWATCH_EXECUTOR_TOKEN"] = token
    return subprocess.run(
        [str(PROGRAM), "executor", "serve", *options],
        capture_output=True,
        text=True,
        env=variables,
        timeout=30,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_service_that_would_be_open_or_broken_does_not_start(
    own: Executor, tmp_path: Path
) -> None:
    state = ["--state", str(tmp_path / "s")]
    refused(serve("--host", "0.0.0.0", *state, token=None), "there is no token")
    refused(serve("--host", "0.0.0.0", *state, token="short"), "at least 16")
    refused(serve("--certificate", "x", *state), "both --certificate and --key")
    refused(serve("--environment", "nothing", *state), "no environment 'nothing'")
    refused(serve("--token-file", str(tmp_path / "none"), *state), "cannot be read")
    refused(serve("--visible", "/", *state), "cannot be visible")
    own.start()
    refused(serve("--port", str(own.port), *state), "cannot listen")
    refused(serve("--port", "0", "--state", str(own.state)), "another executor uses")
    (tmp_path / "newer").mkdir()
    with sqlite3.connect(tmp_path / "newer" / "jobs.sqlite") as base:
        base.execute("PRAGMA user_version=99")
    refused(serve("--port", "0", "--state", str(tmp_path / "newer")), "newer compilewatch")
