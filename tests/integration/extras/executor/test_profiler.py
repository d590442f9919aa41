"""Neuron profiles of jobs, taken by a double of neuron-profile that is called as the real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.executor.protocol import JobRequest
from compilewatch.extras.executor.sandbox.policy import SandboxLimits
from tests.integration.extras.executor.conftest import Executor

DOUBLE = """#!/bin/sh
# neuron-profile inspect -o FOLDER COMMAND...
[ "$1 $2" = "inspect -o" ] || exit 9
mkdir -p "$3/i-1_pid_2" && echo trace >"$3/i-1_pid_2/ntrace.pb" && echo device >"$3/x.ntff"
shift 3
exec "$@"
"""


def test_the_profile_of_a_job_is_collected_where_profiles_go(tmp_path: Path) -> None:
    tools = Path("/usr/local/lib")  # a folder that jobs can read anyway
    program = tools / f"compilewatch-test-{tmp_path.name}" / "neuron-profile"
    program.parent.mkdir()
    program.write_text(DOUBLE)
    program.chmod(0o755)
    profiles = tmp_path / "profiles"
    made = Executor(
        tmp_path,
        NEURON_PROFILER_ENABLED="true",
        PROFILER_OUTPUT_DIR=str(profiles),
        PATH=f"{program.parent}:/usr/bin:/bin",
    )
    try:
        made.start()
        assert made.health()["profiler_enabled"] is True
        client = made.client()
        limits = SandboxLimits(deadline_seconds=20.0)
        files = {"main.py": "print('trained')"}
        client.submit("profiled", JobRequest(files=files, limits=limits, profile=True))
        client.submit("plain", JobRequest(files=files, limits=limits))
        state = client.wait("profiled")
        assert state.state == "done", state
        assert client.log("profiled").data == b"trained\n"
        names = [artifact.name for artifact in client.artifacts("profiled")]
        assert names == ["profile/i-1_pid_2/ntrace.pb", "profile/x.ntff"]
        found = {p.relative_to(profiles).as_posix() for p in profiles.rglob("*") if p.is_file()}
        assert found == {f"profiled/{name}" for name in names}
        assert client.wait("plain").result is not None
        assert client.artifacts("plain") == ()
    finally:
        made.end()
        program.unlink()
        program.parent.rmdir()


def test_a_profiler_that_is_not_installed_is_said(tmp_path: Path) -> None:
    result = Executor(tmp_path, NEURON_PROFILER_ENABLED="1", PATH="/usr/bin:/bin")
    with pytest.raises(AssertionError, match="neuron-profile is not installed"):
        result.start()
    result.end()
