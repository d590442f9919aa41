"""The client against the real service and against others."""

from __future__ import annotations

import http.server
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from compilewatch.errors import ExecutorError, ExecutorUnavailableError
from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from tests.integration.extras.executor.conftest import PROGRAM, TOKEN, Executor
from tests.serving import serving
from tests.sharing import free_port
from tests.team import run_here

REQUEST = JobRequest(files={"main.py": "print(1)"}, limits=SandboxLimits(deadline_seconds=20.0))


class _Other(http.server.BaseHTTPRequestHandler):
    """Another service, which answers everything with its page, and records what it was sent."""

    received: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.received.append(str(self.headers))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>welcome</html>")

    do_PUT = do_GET  # noqa: N815  (the name that the base class looks for)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other() -> Iterator[tuple[str, list[str]]]:
    _Other.received = []
    with serving(_Other) as url:
        yield url, _Other.received


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), "executor", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **variables},
        timeout=60,
    )


def test_another_service_gets_neither_code_nor_token_and_one_line_is_said(
    other: tuple[str, list[str]], tmp_path: Path
) -> None:
    url, received = other
    (tmp_path / "main.py").write_text("print(1)")
    done = run("submit", str(tmp_path), TRAINIUM_ENDPOINT=url, COMPILEWATCH_EXECUTOR_TOKEN=TOKEN)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"compilewatch: {url} is not an executor of compilewatch: set TRAINIUM_ENDPOINT or "
        "--endpoint to the address of `compilewatch executor serve`"
    ]
    assert len(received) == 1
    assert TOKEN not in received[0]


def test_nobody_at_the_endpoint_is_said_after_the_retries() -> None:
    client = ExecutorClient(f"http://127.0.0.1:{free_port()}", retry_seconds=0.5)
    with client, pytest.raises(ExecutorUnavailableError, match="is it started"):
        client.health()


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:8000", "ftp://host", "http://", "http://h?x"])
def test_what_is_no_address_is_said(endpoint: str) -> None:
    with pytest.raises(ExecutorError, match="is not the address of an executor"):
        ExecutorClient(endpoint)


def test_a_client_goes_on_when_the_service_returns(own: Executor) -> None:
    """Takes two seconds: the service is down for a while."""
    client = own.client()
    own.start()
    client.health()
    own.kill()
    restart = threading.Timer(0.2, own.start)
    restart.start()
    assert client.submit("after", REQUEST).key == "after"
    restart.join()
    assert client.wait("after").state == "done"


def test_a_wrong_token_is_not_tried_again(executor: Executor) -> None:
    client = executor.client("wrong-token-0123456789")
    with pytest.raises(
        ExecutorError, match="token is missing or wrong: set COMPILEWATCH"
    ) as caught:
        client.submit("a", REQUEST)
    assert caught.value.code == "unauthorized"


def test_the_commands_submit_show_cancel_and_fetch(executor: Executor, tmp_path: Path) -> None:
    """The first command is a process, as for a person; another for each would take seconds."""
    variables = {"TRAINIUM_ENDPOINT": executor.url, "COMPILEWATCH_EXECUTOR_TOKEN": TOKEN}

    def quickly(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_here(tmp_path, variables, "executor", *arguments)

    package = tmp_path / "package"
    package.mkdir()
    (package / "main.py").write_text(
        "import helper, sys\nprint(helper.WORD, sys.argv[1], '\\x1b[31m')\n"
        "open('out/x.txt', 'w').write('x')\n"
    )
    (package / "helper.py").write_text("WORD = 'hello'\n")
    common = ("--entry", "main.py", "--seconds", "20", "--memory-gib", "1")
    done = run(
        "submit", str(package), *common, "--argument", "you", "--job", "j", "--wait", **variables
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello you \ufffd[31m\nj: done")
    again = quickly("logs", "j")
    assert again.stdout == "hello you \ufffd[31m\n"
    assert json.loads(quickly("logs", "j", "--json").stdout)["text"].startswith("hello")
    fetched = quickly("fetch", "j", "--to", str(tmp_path / "to"))
    assert (tmp_path / "to" / "x.txt").read_text() == "x", fetched.stderr

    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    slow = quickly("submit", str(tmp_path / "slow.py"), "--job", "s", "--seconds", "60")
    assert slow.stdout.startswith("s: ")
    cancelled = quickly("cancel", "s")
    assert cancelled.stdout.startswith("s: cancelled"), cancelled.stderr
    assert quickly("status", "s").returncode == 1
    listed = json.loads(quickly("status", "--json").stdout)
    assert {"j", "s"} <= {job["key"] for job in listed["jobs"]}
    assert quickly("status", "none").returncode == 2
    assert "TRAINIUM_ENDPOINT" in run("status").stderr
