"""Real models that misbehave, on a warm server: the sweep goes on and says what happened."""

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


EXPECTED = {
    "ok": (Status.PASS, Phase.DONE, 0),
    "break": (Status.GRAPH_BREAK, Phase.DONE, 0),
    "die_after_result": (Status.PASS, Phase.DONE, 0),
    "garbage": (Status.GRAPH_BREAK, Phase.DONE, 0),
    "grandchildren": (Status.PASS, Phase.DONE, 0),
    "reads_value": (Status.GRAPH_BREAK, Phase.DONE, 1),
    "segfault": (Status.CRASHED, Phase.EAGER, 1),
    "abort": (Status.CRASHED, Phase.EAGER, 1),
    "exit": (Status.CRASHED, Phase.CREATE, 0),
    "system_exit": (Status.ERROR, Phase.CREATE, 1),
    "allocate": (Status.OOM, Phase.CREATE, 0),
    "ignore_terminate": (Status.TIMEOUT, Phase.EAGER, 0),
    **{f"hang_{phase}": (Status.TIMEOUT, Phase(phase), 0) for phase in HANGS},
}


def test_each_behaviour_has_its_status_its_phase_and_its_attempts(
    answers: dict[str, Completed],
) -> None:
    results = {behaviour: answers[behaviour].result for behaviour in EXPECTED}
    ends = {name: (r.status, r.phase, len(r.attempts)) for name, r in results.items()}
    assert ends == EXPECTED
    assert len(answers) == len(QUIET) + len(HANGS) + 2


def test_a_result_says_what_was_evaluated_and_how_long_it_took(
    answers: dict[str, Completed],
) -> None:
    result = answers["ok"].result
    assert (result.tier, result.graphs, result.parameters) == (Tier.FAKE, 1, 20)
    assert [entry.shape for entry in result.inputs] == [(2, 4)]
    assert list(result.durations)[:5] == ["setup", "create", "inputs", "eager", "compile"]
    assert result.peak_memory_bytes > 50 * 2**20
    assert result.started_at.startswith("20")


def test_a_model_that_reads_values_is_evaluated_again_with_real_tensors(
    answers: dict[str, Completed],
) -> None:
    result = answers["reads_value"].result
    (first,) = result.attempts
    assert (result.tier, first.tier, first.status) == (Tier.REAL, Tier.FAKE, Status.ERROR)
    assert (first.phase, first.code) == (Phase.EAGER, AttemptCode.FAKE_UNSUPPORTED)
    assert first.reason.startswith("in eager, DataDependentOutputException")
    assert first.durations["eager"] > 0


def test_a_hang_names_where_the_model_was_and_a_crash_is_retried_once(
    answers: dict[str, Completed],
) -> None:
    for phase in HANGS:
        result = answers[f"hang_{phase}"].result
        assert result.durations[phase] > 0.4
        assert "most recent call first" in result.error.tail
        if phase != "compile":  # where a slow machine may still be on its way to the hang
            assert result.error.function == "_hang"
    for behaviour, name in (("segfault", "SIGSEGV"), ("abort", "SIGABRT")):
        result = answers[behaviour].result
        assert result.detail == f"{name} in eager, twice"
        assert [attempt.reason for attempt in result.attempts] == [f"{name} in eager"]
        assert (result.attempts[0].tier, result.tier) == (Tier.FAKE, Tier.REAL)
        assert "Fatal Python error" in result.error.tail


def test_an_exit_and_a_huge_error_keep_their_last_words(answers: dict[str, Completed]) -> None:
    result = answers["exit"].result
    assert result.detail == "exit code 3 in create, without a result"
    assert result.error.tail == "exiting without a result\n"
    assert answers["system_exit"].result.error.code == "system_exit"
    error = answers["huge_error"].result.error
    assert "first words" in error.head
    assert error.tail.rstrip().endswith("last words")
    assert 2 * 8192 <= len(error.head) + len(error.tail) < 100_000


def test_no_process_outlives_its_child_and_the_server_is_idle_after_a_run(
    answers: dict[str, Completed], warm_launcher: LocalLauncher, scratch: Path
) -> None:
    """Other tests of this process may have servers, too."""
    folder = answers["grandchildren"].artifacts
    assert folder is not None
    pids = (folder / "grandchildren").read_text().split()
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    list(warm_launcher.run([chaos_request("ok")], scratch))
    servers = _children(os.getpid(), "compilewatch.worker.process.server")
    assert servers
    assert [child for server in servers for child in _children(server, "")] == []


def _children(pid: int, word: str) -> list[int]:
    pids = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [p for p in pids if word.encode() in Path(f"/proc/{p}/cmdline").read_bytes()]
