"""The client and the commands against the real service, also while it is killed, and others."""

import http.server
import json
import signal
import sqlite3
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from compilewatch.errors import ExecutorError, ExecutorUnavailableError
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import JobStatus
from compilewatch.extras.executor.sandbox.policy import RESULT_FILE, SandboxEnding, SandboxResult
from tests.integration.extras.executor.conftest import PROGRAM, TOKEN, WAITS, Executor, job
from tests.serving import serving
from tests.sharing import free_port
from tests.team import run_here


class _Other(http.server.BaseHTTPRequestHandler):
    """Another service, which answers with its page, and records what it was sent."""

    received: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.received.append(str(self.headers))
        self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n<html>welcome</html>")

    def log_message(self, *_: object) -> None:
        pass


def started(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """A command in a separate process."""
    return subprocess.Popen(
        [str(PROGRAM), "executor", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables},
    )


def test_another_service_gets_neither_code_nor_token_and_one_line_is_said(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print(1)")
    with serving(_Other) as url:
        variables = {"TRAINIUM_ENDPOINT": url, "COMPILEWATCH_EXECUTOR_TOKEN": TOKEN}
        done = run_here(tmp_path, variables, "executor", "submit", str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"compilewatch: {url} is not an executor of compilewatch: set TRAINIUM_ENDPOINT or "
        "--endpoint to the address of `compilewatch executor serve`"
    ]
    (received,) = _Other.received
    assert TOKEN not in received


def test_an_endpoint_without_an_executor_is_said() -> None:
    client = ExecutorClient(f"http://127.0.0.1:{free_port()}", retry_seconds=0.5)
    with client, pytest.raises(ExecutorUnavailableError, match="is it started"):
        client.health()
    for endpoint in ("", "127.0.0.1:8000", "ftp://host", "http://", "http://h?x"):
        with pytest.raises(ExecutorError, match="is not the address of an executor"):
            ExecutorClient(endpoint)


def test_every_job_ends_once_however_often_the_service_ends(own: Executor) -> None:
    """Takes seconds: only a real service that ends shows that no job is lost or done twice."""
    own.start()
    client = own.client()
    keys = [f"job-{number}" for number in range(12)]
    for key in keys:
        source = f"import time; time.sleep(0.1); print('done')  # {key}"
        client.submit(key, job(source))
    time.sleep(0.2)
    assert own.kill(signal.SIGTERM) == 0
    own.start()
    time.sleep(0.2)
    own.kill()
    restart = threading.Timer(0.2, own.start)
    restart.start()
    client.submit("meanwhile", job("print('done')"))  # repeated until the service returns
    restart.join()
    keys.append("meanwhile")
    states = {key: client.wait(key, timeout_seconds=60) for key in keys}
    assert {state.state for state in states.values()} == {JobStatus.DONE}
    for key, state in states.items():
        assert b"".join(client.parts(key)) == b"done\n"
        # An earlier attempt that printed all was ended after the last line of its script.
        for log in (own.state / "jobs" / key).glob("*/stdout.log"):
            if log.read_bytes() == b"done\n" and log.parent.name != str(state.attempt):
                result = log.with_name(RESULT_FILE).read_bytes()
                ending = msgspec.msgpack.decode(result, type=SandboxResult).ending
                assert ending is SandboxEnding.CANCELLED


def refused(done: Any, *lines: str) -> None:
    """Each of its lines contains one of these; the last says why."""
    if isinstance(done, subprocess.Popen):
        output = done.communicate(timeout=60)
        done = subprocess.CompletedProcess(done.args, done.returncode, *output)
    printed = done.stderr.splitlines()
    assert (done.returncode, len(printed)) == (2, len(lines)), done.stderr
    assert all(line in text for line, text in zip(lines, printed, strict=True)), printed


@pytest.mark.matrix
def test_a_service_that_would_be_open_or_broken_does_not_start(
    executor: Executor, tmp_path: Path
) -> None:
    # It waits some seconds for the other one to end.
    token = {"COMPILEWATCH_EXECUTOR_TOKEN": TOKEN}
    second = started("serve", "--port", "0", "--state", str(executor.state), **token)
    state = ("--state", str(tmp_path / "s"))
    everywhere = ("--host", "0.0.0.0")
    # What is refused before the service changes its process is quick in this one.
    for options, secret, message in (
        (everywhere, "", "there is no token"),
        (everywhere, "short", "at least 16"),
        (("--certificate", "x"), TOKEN, "both --certificate and --key"),
        (("--environment", "nothing"), TOKEN, "no environment 'nothing'"),
        (("--token-file", str(tmp_path / "none")), TOKEN, "cannot be read"),
        (("--visible", "/"), TOKEN, "cannot be visible"),
    ):
        variables = {"COMPILEWATCH_EXECUTOR_TOKEN": secret} if secret else {}
        refused(run_here(tmp_path, variables, "executor", "serve", *options, *state), message)
    occupied = started("serve", "--port", str(executor.port), *state, **token)
    refused(occupied, "cannot listen")
    (tmp_path / "newer").mkdir()
    with sqlite3.connect(tmp_path / "newer" / "jobs.sqlite") as base:
        base.execute("PRAGMA user_version=99")
    newer = started("serve", "--port", "0", "--state", str(tmp_path / "newer"), **token)
    refused(newer, "newer compilewatch")
    refused(second, "another executor uses")


def test_the_commands_submit_show_cancel_and_fetch(executor: Executor, tmp_path: Path) -> None:
    """The first command is a process, as for a person; another for each would take seconds."""
    variables = {"TRAINIUM_ENDPOINT": executor.url, "COMPILEWATCH_EXECUTOR_TOKEN": TOKEN}

    def quickly(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_here(tmp_path, variables, "executor", *arguments)

    (package := tmp_path / "package").mkdir()
    (package / "main.py").write_text(
        "import helper, sys\nprint(helper.WORD, sys.argv[1], '\\x1b[31m')\n"
        "open('out/x.txt', 'w').write('x')\n"
    )
    (package / "helper.py").write_text("WORD = 'hello'\n")
    limits = ("--seconds", "20", "--memory-gib", "1")
    call = ("--entry", "main.py", "--argument", "you", "--job", "j", "--wait")
    submitted = started("submit", str(package), *limits, *call, **variables)
    stdout, stderr = submitted.communicate(timeout=60)
    assert submitted.returncode == 0, stderr
    assert stdout.startswith("hello you \ufffd[31m\nj: done")
    assert quickly("logs", "j").stdout == "hello you \ufffd[31m\n"
    assert json.loads(quickly("logs", "j", "--json").stdout)["text"].startswith("hello")
    fetched = quickly("fetch", "j", "--to", str(tmp_path / "to"))
    assert (tmp_path / "to" / "x.txt").read_text() == "x", fetched.stderr

    (tmp_path / "slow.py").write_text(WAITS)
    slow = quickly("submit", str(tmp_path / "slow.py"), "--job", "s", "--seconds", "60")
    assert slow.stdout.startswith("s: ")
    cancelled = quickly("cancel", "s")
    assert cancelled.stdout.startswith("s: cancelled"), cancelled.stderr
    assert quickly("status", "s").returncode == 1
    jobs = json.loads(quickly("status", "--json").stdout)["jobs"]
    assert {"j", "s"} <= {state["key"] for state in jobs}
    assert quickly("status", "none").returncode == 2
    assert "TRAINIUM_ENDPOINT" in run_here(tmp_path, {}, "executor", "status").stderr
