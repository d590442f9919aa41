"""Jobs survive the service: it is killed again and again, and each job ends exactly once."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from compilewatch.extras.executor.protocol import FailureCode, JobRequest, JobStatus
from compilewatch.extras.executor.sandbox.policy import (
    RESULT_FILE,
    SandboxEnding,
    SandboxLimits,
    SandboxResult,
)
from tests.integration.extras.executor.conftest import PROGRAM, TOKEN, Executor
from tests.team import run_here

SHORT = "import time; time.sleep(0.1); print('done')"


def request(source: str, title: str = "") -> JobRequest:
    return JobRequest(
        files={"main.py": source}, title=title, limits=SandboxLimits(deadline_seconds=20.0)
    )


def cancelled(file: Path) -> bool:
    """Whether a sandbox was ended: maybe after the last line of its script, but before its end."""
    result = msgspec.msgpack.decode(file.read_bytes(), type=SandboxResult)
    return result.ending is SandboxEnding.CANCELLED


def test_every_job_ends_once_however_often_the_service_is_killed(own: Executor) -> None:
    """Takes seconds: 12 jobs and 3 kills; `make bench` has 200 jobs and 10 kills."""
    own.start()
    client = own.client()
    keys = [f"job-{number}" for number in range(12)]
    for key in keys:
        client.submit(key, request(SHORT, key))
    for number in range(3):
        time.sleep(0.2 + 0.13 * number)
        own.kill()
        own.start()
    states = {key: client.wait(key, timeout_seconds=60) for key in keys}
    assert [s for s in states.values() if s.state not in (JobStatus.DONE, JobStatus.LOST)] == []
    done = [state for state in states.values() if state.state is JobStatus.DONE]
    assert len(done) > 6
    for state in done:
        assert client.log(state.key).data == b"done\n"
    # Only the last attempt of a job can have come to its end.
    for key, state in states.items():
        finished = [
            path
            for path in (own.state / "jobs" / key).glob("*/stdout.log")
            if path.read_bytes() == b"done\n" and path.parent.name != str(state.attempt)
        ]
        assert [path for path in finished if not cancelled(path.with_name(RESULT_FILE))] == []


@pytest.mark.matrix
def test_a_stopped_service_lets_its_jobs_wait_and_the_next_goes_on(own: Executor) -> None:
    own.start()
    client = own.client()
    source = "import time; print('began', flush=True); time.sleep(1)"
    client.submit("goes-on", request(source))
    while not client.log("goes-on").data:
        time.sleep(0.05)
    assert own.kill(signal.SIGTERM) == 0
    own.start()
    state = client.wait("goes-on")
    assert (state.state, state.attempt) == (JobStatus.DONE, 2)


@pytest.mark.matrix
def test_a_job_that_each_service_dies_with_is_lost_after_three(own: Executor) -> None:
    client = own.client()
    for attempt in range(3):
        own.start()
        if attempt == 0:
            client.submit("doomed", request("import time; time.sleep(60)"))
        while client.status("doomed").state is not JobStatus.RUNNING:
            time.sleep(0.02)
        own.kill()
    own.start()
    state = client.status("doomed")
    assert (state.state, state.failure) == (JobStatus.LOST, FailureCode.INTERRUPTED)


def test_what_was_cancelled_before_a_kill_stays_cancelled(own: Executor) -> None:
    own.start()
    client = own.client()
    client.submit("unwanted", request("import time; time.sleep(60)"))
    while client.status("unwanted").state is not JobStatus.RUNNING:
        time.sleep(0.02)
    client.cancel("unwanted")
    own.kill()
    own.start()
    assert client.wait("unwanted").state is JobStatus.CANCELLED


def serve(folder: Path, *options: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    """For what is refused before the service changes its process: in this one, which is quick."""
    variables = {"COMPILEWATCH_EXECUTOR_TOKEN": token} if token else {}
    return run_here(folder, variables, "executor", "serve", *options)


def serve_alone(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROGRAM), "executor", "serve", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": "/nonexistent",
            "COMPILEWATCH_EXECUTOR_TOKEN": TOKEN,
        },
    )


def ended(serving: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    reason = serving.communicate(timeout=30)
    return subprocess.CompletedProcess(serving.args, serving.returncode, *reason)


def refused(done: subprocess.CompletedProcess[str], message: str, *before: str) -> None:
    """One line says why, after lines that start with `before`."""
    assert done.returncode == 2, done.stderr
    *earlier, line = done.stderr.splitlines()
    assert message in line
    assert len(earlier) == len(before)
    assert all(map(str.startswith, earlier, before))


@pytest.mark.matrix
def test_a_service_that_would_be_open_or_broken_does_not_start(
    own: Executor, tmp_path: Path
) -> None:
    state = ["--state", str(tmp_path / "s")]
    own.start()
    # It waits some seconds for the other one to end.
    second = serve_alone("--port", "0", "--state", str(own.state))
    everywhere = ("--host", "0.0.0.0", *state)
    refused(serve(tmp_path, *everywhere, token=""), "there is no token")
    refused(serve(tmp_path, *everywhere, token="short"), "at least 16")
    refused(serve(tmp_path, "--certificate", "x", *state), "both --certificate and --key")
    refused(serve(tmp_path, "--environment", "nothing", *state), "no environment 'nothing'")
    refused(serve(tmp_path, "--token-file", str(tmp_path / "none"), *state), "cannot be read")
    refused(serve(tmp_path, "--visible", "/", *state), "cannot be visible")
    refused(ended(serve_alone("--port", str(own.port), *state)), "cannot listen")
    (tmp_path / "newer").mkdir()
    with sqlite3.connect(tmp_path / "newer" / "jobs.sqlite") as base:
        base.execute("PRAGMA user_version=99")
    newer = ("--port", "0", "--state", str(tmp_path / "newer"))
    refused(ended(serve_alone(*newer)), "newer compilewatch")
    refused(ended(second), "another executor uses", "Another executor uses")
