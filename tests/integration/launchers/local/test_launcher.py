"""Real models that misbehave, on a warm server: the sweep goes on and says what happened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compilewatch.launchers import Completed
from compilewatch.launchers.local.launcher import LocalLauncher
from compilewatch.records import AttemptCode, Phase, Status, Tier
from tests.integration.launchers.conftest import chaos_request, hurried

pytestmark = pytest.mark.torch

HANGS = ("create", "inputs", "eager", "compile")
QUIET = (
    *("ok", "break", "reads_value", "segfault", "abort", "exit", "system_exit", "garbage"),
    *("huge_error", "grandchildren", "die_after_result"),
)


@pytest.fixture(scope="module")
def answers(
    warm_launcher: LocalLauncher, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Completed]:
    """One sweep of all of them together, by behaviour."""
    asked = [chaos_request(behaviour) for behaviour in QUIET]
    asked += [chaos_request(f"hang_{phase}", deadlines=hurried(phase, 0.4)) for phase in HANGS]
    asked += [chaos_request("ignore_terminate", deadlines=hurried("eager", 0.4))]
    asked += [chaos_request("allocate", memory_limit_bytes=700 * 2**20)]
    scratch = tmp_path_factory.mktemp("scratch")
    return {a.result.request.model.name: a for a in warm_launcher.run(asked, scratch)}


def test_a_capture_as_a_single_graph_passes(answers: dict[str, Completed]) -> None:
    result = answers["ok"].result
    assert (result.status, result.phase, result.tier) == (Status.PASS, Phase.DONE, Tier.FAKE)
    assert result.graphs == 1
    assert result.parameters == 20
    assert [entry.shape for entry in result.inputs] == [(2, 4)]
    assert list(result.durations)[:5] == ["setup", "create", "inputs", "eager", "compile"]
    assert result.peak_memory_bytes is not None
    assert result.peak_memory_bytes > 50 * 2**20
    assert result.attempts == ()
    assert result.started_at.startswith("20")


def test_a_model_that_reads_values_is_evaluated_again_with_real_tensors(
    answers: dict[str, Completed],
) -> None:
    result = answers["reads_value"].result
    assert (result.status, result.tier) == (Status.GRAPH_BREAK, Tier.REAL)
    (first,) = result.attempts
    assert (first.tier, first.status, first.phase) == (Tier.FAKE, Status.ERROR, Phase.EAGER)
    assert first.code is AttemptCode.FAKE_UNSUPPORTED
    assert first.reason.startswith("in eager, DataDependentOutputException")
    assert first.durations["eager"] > 0


@pytest.mark.parametrize("phase", HANGS)
def test_a_hang_is_a_timeout_of_its_phase(answers: dict[str, Completed], phase: str) -> None:
    result = answers[f"hang_{phase}"].result
    assert (result.status, result.phase) == (Status.TIMEOUT, Phase(phase))
    assert result.attempts == ()
    assert result.durations[phase] > 0.4
    assert result.error is not None
    assert "most recent call first" in result.error.tail
    if phase != "compile":  # where a slow machine may still be on its way to the hang
        assert result.error.function == "_hang"


def test_a_model_that_ignores_sigterm_is_ended(answers: dict[str, Completed]) -> None:
    result = answers["ignore_terminate"].result
    assert (result.status, result.phase) == (Status.TIMEOUT, Phase.EAGER)


@pytest.mark.parametrize(("behaviour", "name"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT")])
def test_a_crash_is_retried_once_and_named(
    answers: dict[str, Completed], behaviour: str, name: str
) -> None:
    result = answers[behaviour].result
    assert (result.status, result.phase) == (Status.CRASHED, Phase.EAGER)
    assert result.detail == f"{name} in eager, twice"
    assert [attempt.reason for attempt in result.attempts] == [f"{name} in eager"]
    assert (result.attempts[0].tier, result.tier) == (Tier.FAKE, Tier.REAL)
    assert result.error is not None
    assert "Fatal Python error" in result.error.tail


def test_an_exit_is_a_crash_with_code_and_last_words(answers: dict[str, Completed]) -> None:
    result = answers["exit"].result
    assert (result.status, result.attempts) == (Status.CRASHED, ())
    assert result.detail == "exit code 3 in create, without a result"
    assert result.error is not None
    assert result.error.tail == "exiting without a result\n"


def test_sys_exit_is_an_error_of_the_model(answers: dict[str, Completed]) -> None:
    result = answers["system_exit"].result
    assert (result.status, result.phase) == (Status.ERROR, Phase.CREATE)
    assert result.error is not None
    assert result.error.code == "system_exit"


def test_memory_without_end_is_oom(answers: dict[str, Completed]) -> None:
    result = answers["allocate"].result
    assert (result.status, result.phase) == (Status.OOM, Phase.CREATE)


def test_a_huge_error_keeps_its_first_and_last_words(answers: dict[str, Completed]) -> None:
    error = answers["huge_error"].result.error
    assert error is not None
    assert "first words" in error.head
    assert error.tail.rstrip().endswith("last words")
    assert 2 * 8192 <= len(error.head) + len(error.tail) < 100_000


def test_a_result_written_before_a_crash_and_beside_garbage_stands(
    answers: dict[str, Completed],
) -> None:
    for behaviour, status in (("die_after_result", Status.PASS), ("garbage", Status.GRAPH_BREAK)):
        result = answers[behaviour].result
        assert (result.status, result.phase, result.attempts) == (status, Phase.DONE, ())
    assert answers["break"].result.graph_breaks == 1
    assert len(answers) == len(QUIET) + len(HANGS) + 2


def test_no_process_outlives_its_child(answers: dict[str, Completed]) -> None:
    completed = answers["grandchildren"]
    assert completed.result.status is Status.PASS
    assert completed.artifacts is not None
    pids = [int(pid) for pid in (completed.artifacts / "grandchildren").read_text().split()]
    assert len(pids) == 2
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_after_a_run_the_server_is_idle(warm_launcher: LocalLauncher, scratch: Path) -> None:
    """No child of any request is left; other tests of this process may have servers, too."""
    list(warm_launcher.run([chaos_request("ok")], scratch))
    servers = _children(os.getpid(), "compilewatch.worker.process.server")
    assert servers
    assert [child for server in servers for child in _children(server, "")] == []


def _children(pid: int, word: str) -> list[int]:
    pids = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [p for p in pids if word.encode() in Path(f"/proc/{p}/cmdline").read_bytes()]
