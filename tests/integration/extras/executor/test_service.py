"""The service's calls, over real HTTP, and the instance of a service that nobody uses."""

import http.client
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from compilewatch.errors import ExecutorError, TrainiumError
from compilewatch.extras.executor.protocol import (
    MAX_BODY_BYTES,
    JobResult,
    JobState,
    JobStatus,
)
from compilewatch.extras.executor.service import LOG_BYTES
from compilewatch.extras.executor.trainium import InstanceReport, hold, running
from tests.integration.extras.executor.conftest import TOKEN, WAITS, Executor, job


def raw(
    executor: Executor, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    """A call whose path no client tidies up; a body that is no text is sent in chunks."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", **headers}
    with closing(http.client.HTTPConnection("127.0.0.1", executor.port, timeout=60)) as connection:
        connection.request(method, path, body, headers, encode_chunked=isinstance(body, Iterator))
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"{}")


def post(executor: Executor, path: str, **fields: Any) -> dict[str, Any]:
    """The response to a call of the founding system."""
    status, response = raw(executor, "POST", path, json.dumps(fields).encode())
    assert status == 200, response
    return response


def ran(executor: Executor, key: str, source: str, **fields: Any) -> tuple[JobState, JobResult]:
    """A job that has ended."""
    executor.client().submit(key, job(source, **fields))
    state = executor.client().wait(key)
    assert state.result is not None
    return state, state.result


def test_a_job_runs_and_returns_its_log_metrics_and_files(executor: Executor) -> None:
    source = """
import json, os, sys
print("METRICS:", json.dumps({"step": 1, "training_loss": 0.5, "broken": float("nan")}))
print("METRICS: [1, 2]")
print("to stderr", file=sys.stderr)
with open("out/model.txt", "w") as file:
    file.write(" ".join(sys.argv[1:] + sorted(os.environ)))
"""
    client = executor.client()
    state, result = ran(executor, "a-job", source, arguments=("one",), paper_id="p")
    assert (state.state, result.succeeded, state.paper_id) == (JobStatus.DONE, True, "p")
    assert result.metrics == ({"step": 1.0, "training_loss": 0.5},)
    assert list(client.parts("a-job", stream="stderr")) == [b"to stderr\n"]
    (artifact,) = state.artifacts
    content = client.artifact("a-job", artifact)
    assert content.startswith(b"one ")
    assert b"AWS" not in content
    assert b"TOKEN" not in content


SIZE = 3 * 2**20
PRINTED = """
import sys
for _ in range(3 * 1024):
    print("x" * 1023)
print('METRICS: {"training_loss": 0.125}')
sys.stderr.write("e" * (2**20 + 5) + "\\nthe last line\\n")
"""


def test_three_megabytes_of_output_arrive_and_the_last_line_counts(executor: Executor) -> None:
    client = executor.client()
    _, result = ran(executor, "chatty", PRINTED)
    stdout, stderr = (b"".join(client.parts("chatty", stream=n)) for n in ("stdout", "stderr"))
    assert len(next(client.parts("chatty"))) == LOG_BYTES  # one response is not the log
    assert stdout.startswith(b"x" * 1023 + b"\n")
    assert len(stdout) > SIZE
    assert stderr == b"e" * (2**20 + 5) + b"\nthe last line\n"
    assert result.metrics == ({"training_loss": 0.125},)
    answer = post(executor, "/execute", paper_id="chatty", code=PRINTED, timeout=30)
    assert answer["success"]
    assert len(answer["stdout"]) > SIZE
    assert answer["detailed_metrics"] == {"training_loss": 0.125}


def test_a_log_can_be_followed_and_a_job_that_fails_says_how(executor: Executor) -> None:
    source = "import time\nfor n in range(3):\n    print(n)\n    time.sleep(0.3)\n"
    client = executor.client()
    client.submit("followed", job(f"{source}raise SystemExit(3)"))
    parts = list(client.parts("followed", follow=True))
    assert b"".join(parts) == b"0\n1\n2\n"
    assert len(parts) > 1
    exited = client.wait("followed")
    aborted, result = ran(executor, "aborts", "import os; os.abort()")
    assert exited.result is not None
    assert (exited.state, exited.result.exit_code) == (JobStatus.FAILED, 3)
    assert (aborted.state, result.signal) == (JobStatus.FAILED, signal.SIGABRT)


def test_fifty_equal_submissions_are_one_job(executor: Executor) -> None:
    wanted = job("print('once')", title="fifty")

    def submit(_: int) -> JobState:
        return executor.client().submit("fifty", wanted)

    with ThreadPoolExecutor(10) as pool:
        states = list(pool.map(submit, range(50)))
    assert len({state.submitted_at for state in states}) == 1
    state = executor.client().wait("fifty")
    assert (state.state, state.attempt) == (JobStatus.DONE, 1)
    assert [job.key for job in executor.client().jobs()].count("fifty") == 1
    with pytest.raises(ExecutorError) as caught:
        executor.client().submit("fifty", job("print('another')"))
    assert caught.value.status == 409


def test_a_call_without_the_token_is_rejected(executor: Executor) -> None:
    for token in ("", "Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xfc"):
        for method, path in (("GET", "/jobs"), ("PUT", "/jobs/a"), ("POST", "/execute")):
            status, problem = raw(executor, method, path, b"{}", Authorization=token)
            assert status == 401
            assert "token" in problem["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/jobs/../x", b"{}", 422),
        ("DELETE", "/jobs/%00", None, 422),
        ("PUT", "/jobs/" + "x" * 200, b"{}", 422),
        ("PUT", "/jobs/good", b"not json", 422),
        ("PUT", "/jobs/good", b'{"files": {}}', 422),
        ("PUT", "/jobs/good", b'{"files": {"../x": ""}, "entry": "../x"}', 422),
        ("PUT", "/jobs/good", b'{"files": {"main.py": "", "main.py/x": ""}}', 422),
        ("PUT", "/jobs/good", b'{"files": {"other.py": ""}}', 422),
        ("PUT", "/jobs/good", b'{"files": {"main.py": ""}, "unknown": 1}', 422),
        ("PUT", "/jobs/good", b'{"files": {"main.py": ""}, "limits": {"processes": 9999}}', 422),
        ("PUT", "/jobs/good", b'{"files":{"main.py":""},"limits":{"deadline_seconds":61}}', 422),
        ("PUT", "/jobs/good", b'{"files": {"main.py": "\xff"}}', 422),
        ("GET", "/jobs/good", None, 404),
        ("GET", "/jobs/good/log?offset=-1", None, 422),
        ("GET", "/jobs/a-job/artifacts/..%2f..%2fjobs.sqlite", None, 404),
        ("GET", "/elsewhere", None, 404),
        ("POST", "/execute", b'{"paper_id": "", "code": ""}', 422),
    ],
)
def test_a_bad_call_is_rejected_with_its_status(
    method: str, path: str, body: bytes | None, status: int, executor: Executor
) -> None:
    response, problem = raw(executor, method, path, body)
    assert response == status
    assert problem["message"]


def test_a_large_body_is_rejected_before_it_is_read(executor: Executor) -> None:
    large = {"Content-Length": str(MAX_BODY_BYTES + 1)}
    assert raw(executor, "PUT", "/jobs/large", **large)[0] == 413
    parts = iter([b"x" * 2**16] * (MAX_BODY_BYTES // 2**16 + 8))
    with suppress(BrokenPipeError, ConnectionResetError):  # it may close while we still send
        chunked = {"Transfer-Encoding": "chunked"}
        assert raw(executor, "PUT", "/jobs/large", parts, **chunked)[0] == 413
    assert executor.health()["status"] == "ok"
    # A page in a browser cannot submit.
    status, problem = raw(executor, "POST", "/execute", b"{}", **{"Content-Type": "text/plain"})
    assert status == 415
    assert "application/json" in problem["message"]


def test_jobs_are_cancelled_and_a_drained_service_takes_none(executor: Executor) -> None:
    client = executor.client()
    keys = [f"slow-{number}" for number in range(3)]
    for key in keys:
        client.submit(key, job(WAITS, title=key))
    while executor.health()["running"] < 2:
        time.sleep(0.05)
    with pytest.raises(ExecutorError) as caught:
        client.drain()
    assert caught.value.status == 409
    waiting = client.cancel(keys[2])
    assert (waiting.state, waiting.attempt) == (JobStatus.CANCELLED, 0)
    for key in keys[:2]:
        client.cancel(key)
    assert {client.wait(key).state for key in keys} == {JobStatus.CANCELLED}
    assert client.drain()["draining"]
    with pytest.raises(ExecutorError) as caught:
        client.submit("too-late", job("pass"))
    assert caught.value.status == 503
    assert not client.undrain()["draining"]


def test_the_founding_calls_respond_as_they_did(executor: Executor) -> None:
    code = "print('Epoch 2/2 done, Loss: 0.25')\nprint('Test Accuracy: 91.5%')\n"
    script = {"paper_id": "2401.1", "code": code, "timeout": 20}
    answer = post(executor, "/execute", **script)
    assert (answer["success"], answer["return_code"]) == (True, 0)
    assert answer["stdout"].endswith("91.5%\n")
    assert answer["detailed_metrics"] == {"training_loss": 0.25, "test_accuracy": 91.5}
    assert answer["profiler"]["profiler_enabled"] is False

    batch = [script, {"paper_id": "2401.2", "code": "while True: pass"}]
    answer = post(executor, "/execute_batch", batch=batch, timeout=1)
    assert (answer["batch_size"], answer["successful"], answer["failed"]) == (2, 1, 1)
    late = answer["results"]["2401.2"]
    assert (late["timeout"], late["error_type"], late["return_code"]) == (True, "timeout", -1)


# --- Neuron profiles, which the runtime takes by itself; here the job does as it does ---

PROFILED = """
import os
from pathlib import Path

if os.environ.get("NEURON_RT_INSPECT_ENABLE"):
    folder = Path(os.environ["NEURON_RT_INSPECT_OUTPUT_DIR"], "i-1_pid_2")
    folder.mkdir(parents=True)
    (folder / "ntrace.pb").write_text("trace")
print("trained")
"""


def test_the_profile_of_a_job_is_collected_where_profiles_go(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    variables = {"NEURON_PROFILER_ENABLED": "true", "PROFILER_OUTPUT_DIR": str(profiles)}
    service = Executor(tmp_path, **variables)
    service.start()
    try:
        assert service.health()["profiler_enabled"] is True
        client = service.client()
        client.submit("profiled", job(PROFILED, profile=True))
        client.submit("plain", job(PROFILED))
        profiled = client.wait("profiled")
        assert profiled.state == "done"
        (artifact,) = profiled.artifacts
        assert artifact.name == "profile/i-1_pid_2/ntrace.pb"
        assert (profiles / "profiled" / artifact.name).read_text() == "trace"
        assert client.wait("plain").result is not None
        assert client.status("plain").artifacts == ()
    finally:
        service.end()


# --- the instance of an executor is stopped by who started it, and never under anybody's job ---


def instance(*, ours: bool = True, fails: bool = False) -> Mock:
    up = InstanceReport(action="started" if ours else "joined", started_by_run=ours)
    down = TrainiumError("not today") if fails else [InstanceReport(action="stopped")] * 2
    return Mock(**{"up.return_value": up, "down.side_effect": down})


def calls(of: Mock) -> list[str]:
    return [name for name, *_ in of.method_calls]


def test_it_is_stopped_once_the_jobs_of_others_have_ended_or_left_to_its_own_timer(
    executor: Executor,
) -> None:
    client, lines, other = executor.client(), list[str](), instance(ours=False)
    with running(other, client, print):
        assert calls(other) == ["up"]
    with pytest.raises(TrainiumError), running(instance(fails=True), client, print):
        pass
    assert not client.health()["draining"], "one that is not stopped takes jobs again"
    client.submit("of-another", job(WAITS))
    own = instance()
    with running(own, client, lines.append, wait_seconds=0.0, poll_seconds=0.1):
        pass
    assert calls(own) == ["up"]
    assert "keeps running" in lines[-1]

    def say(line: str) -> None:
        assert "is stopped later, because" in line
        client.cancel("of-another")

    with running(own, client, say, poll_seconds=0.1):
        pass
    assert calls(own) == ["up", "up", "down"]
    assert client.undrain(), "it takes no job while it is stopped"
    executor.end()
    assert "fails" in (hold(executor.client(retry_seconds=0.2)) or ""), "it is not idle"
