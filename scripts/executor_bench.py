"""The benchmarks of the executor: kills of the service, hostile jobs, and a sandbox's cost."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.extras.executor import sandbox
from compilewatch.extras.executor.protocol import JobRequest, JobStatus
from compilewatch.extras.executor.sandbox.policy import SandboxLimits, SandboxResult
from tests.integration.extras.executor.conftest import Executor

JOBS, KILLS, STARTS = 200, 10, 30


def executor_kills(output: Path) -> dict[str, Any]:
    """200 jobs, the service killed 10 times: each ends, and none runs to its end twice."""
    run = Executor(output / "executor", "--jobs", "2")
    run.state.parent.mkdir(parents=True, exist_ok=True)
    run.start()
    begun = time.monotonic()
    try:
        client = run.client()
        for number in range(JOBS):
            source = f"import time; time.sleep(0.1); print({number})"
            limits = SandboxLimits(deadline_seconds=60.0)
            client.submit(f"job-{number}", JobRequest(files={"main.py": source}, limits=limits))
        for number in range(KILLS):
            time.sleep(1.0 + 0.17 * number)
            run.kill()
            run.start()
        states = [client.wait(f"job-{number}") for number in range(JOBS)]
        twice = sum(
            1
            for number, state in enumerate(states)
            for log in (run.state / "jobs" / state.key).glob("*/stdout.log")
            if log.parent.name != str(state.attempt) and log.read_text() == f"{number}\n"
        )
    finally:
        run.end()
    ended = sum(1 for state in states if state.ended)
    return {
        "jobs": JOBS,
        "kills": KILLS,
        "ended": ended,
        "done": sum(1 for state in states if state.state is JobStatus.DONE),
        "lost": sum(1 for state in states if state.state is JobStatus.LOST),
        "attempts": sum(state.attempt for state in states),
        "completed_twice": twice,
        "wall_seconds": round(time.monotonic() - begun, 1),
        "within": ended == JOBS and twice == 0,
    }


HOSTILE = """
import os
for _ in range(60):
    if os.fork() == 0:
        break
while True:
    print("x" * 10000)
"""


def executor_health(output: Path) -> dict[str, Any]:
    """`GET /health` while two hostile jobs use all that they may for six seconds: 1 s."""
    made = Executor(output / "health", "--jobs", "2")
    made.state.parent.mkdir(parents=True, exist_ok=True)
    made.start()
    seconds = []
    try:
        client = made.client()
        limits = SandboxLimits(deadline_seconds=6.0)
        for key in ("a", "b"):
            files = {"main.py": HOSTILE}
            client.submit(key, JobRequest(files=files, title=key, limits=limits))
        while not all(client.status(key).ended for key in ("a", "b")):
            begun = time.monotonic()
            made.health()
            seconds.append(time.monotonic() - begun)
    finally:
        made.end()
    return {
        "calls": len(seconds),
        "median_ms": round(statistics.median(seconds) * 1000, 1),
        "slowest_ms": round(max(seconds) * 1000, 1),
        "within": max(seconds) < 1.0,
    }


def sandbox_cost(_: Path) -> dict[str, Any]:
    """What a sandbox adds to `python -c pass`: median of 30, within a second."""
    sandbox.check()
    results: list[SandboxResult] = []
    wall = []
    for _number in range(STARTS):
        begun = time.monotonic()
        results.append(sandbox.run(["python", "-I", "-S", "-c", "pass"]))
        wall.append(time.monotonic() - begun)
    return {
        "median_ms": round(statistics.median(wall) * 1000),
        "fastest_ms": round(min(wall) * 1000),
        "inside_median_ms": round(
            statistics.median(result.duration_seconds for result in results) * 1000
        ),
        "memory_guard": msgspec.to_builtins(results[0].memory_guard),
        "within": statistics.median(wall) < 1.0,
    }
