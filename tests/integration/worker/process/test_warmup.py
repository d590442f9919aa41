"""What a worker server is after its warm-up: each test pays for an import of torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compilewatch import environments
from compilewatch.environments import Interpreter, describe, interpreter, worker_variables
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import Status, Target
from tests.integration.launchers.conftest import chaos_request

pytestmark = pytest.mark.torch

WARM_UP = """
import os
from compilewatch.worker.process import warmup
warmup.warm_up(["dynamo", "export", "inductor"])
import torch
print(len(os.listdir("/proc/self/task")), torch.cuda.is_available(), torch.version.cuda)
"""


def test_the_cuda_build_without_a_device_keeps_one_thread() -> None:
    """Only the real wheel has the guard that reports eight devices where there is none."""
    build = describe("default").torch
    if "+cu" not in build:
        pytest.skip(f"torch {build} is no CUDA build, the only one whose warm-up can start threads")
    done = subprocess.run(
        [sys.executable, "-c", WARM_UP],
        env=worker_variables(interpreter("default")),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    threads, available, cuda = done.stdout.split()
    assert (threads, available) == ("1", "False"), done.stderr
    assert cuda != "None"
    assert "warm-up:" not in done.stderr


THREADED = """
import runpy, sys, threading, time
if sys.argv[2] == "compilewatch.worker.process.server":
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_process_for_each_request_answers_as_a_fork_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only real torch shows that a child finds all that the server imports for its forks."""
    script = tmp_path / "threaded.py"
    script.write_text(THREADED)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -P "{script}" "$@"\n')
    python.chmod(0o755)
    variables = interpreter("default").variables
    threaded = Interpreter(executable=str(python), variables=variables)
    monkeypatch.setitem(environments.INTERPRETERS, "threaded", threaded)
    target = Target(environment="threaded")
    asked = [chaos_request(behaviour, target=target) for behaviour in ("ok", "break")]
    with LocalLauncher(2, ("threaded",)) as launcher:
        results = {a.result.request.model.name: a.result for a in launcher.run(asked, tmp_path)}
        assert launcher.server("threaded").threads == 2
    assert results["ok"].status is Status.PASS
    assert results["ok"].attempts == ()
    assert (results["break"].status, results["break"].graph_breaks) == (Status.GRAPH_BREAK, 1)
