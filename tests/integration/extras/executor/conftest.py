"""A real executor: `compilewatch executor serve` in a separate process, which can be killed."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compilewatch.extras.executor.client import ExecutorClient
from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from tests.confinement import need_sandbox
from tests.sharing import free_port

PROGRAM = Path(sys.executable).with_name("compilewatch")
TOKEN = "a-token-of-the-tests-0123456789"
READY_SECONDS = 20.0
WAITS = "import time; time.sleep(60)"


def job(source: str, **fields: Any) -> JobRequest:
    """A job of one script."""
    fields.setdefault("limits", SandboxLimits(deadline_seconds=60.0))
    return JobRequest(files={"main.py": source}, **fields)


class Executor:
    """One service, on one port and one folder, over several processes."""

    def __init__(self, folder: Path, *options: str, **variables: str) -> None:
        self.state = folder / "state"
        self.log = folder / "serve.log"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [str(PROGRAM), "executor", "serve", "--port", str(self.port), *options]
        secrets = {"COMPILEWATCH_EXECUTOR_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": "planted-secret"}
        self._variables = {**os.environ, **secrets, **variables}
        self._clients: list[ExecutorClient] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [*self._command, "--state", str(self.state)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._variables)
        until = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.health()
            except OSError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.05)
            else:
                return

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
            return dict(json.loads(response.read()))

    def client(self, token: str = TOKEN, **options: Any) -> ExecutorClient:
        client = ExecutorClient(self.url, token, **{"retry_seconds": 20.0, **options})
        self._clients.append(client)
        return client

    def end(self) -> None:
        """Close the clients, and stop the service if it runs."""
        for client in self._clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.kill(signal.SIGTERM)


@pytest.fixture(scope="session", autouse=True)
def _often() -> Iterator[None]:
    """Clients ask often for the state of a job: jobs of tests are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compilewatch.extras.executor.client.POLL_SECONDS", (0.02, 0.1))
        yield


@pytest.fixture(scope="session", autouse=True)
def _confining() -> None:
    """Without bubblewrap these tests say how to get it; a sandbox that does not hold fails them."""
    need_sandbox()


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    """A service that several tests share."""
    service = Executor(tmp_path_factory.mktemp("executor"), "--jobs", "2", "--max-seconds", "60")
    service.start()
    yield service
    service.end()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Executor]:
    """A service of one test, which it starts itself."""
    service = Executor(tmp_path, "--jobs", "2")
    yield service
    service.end()
