"""Steps in separate processes, with real forks."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable

import pytest

from compilewatch.contract.processes import descendants
from compilewatch.records import Phase, TensorSummary
from compilewatch.worker.targets.xla.isolation import (
    Enter,
    StepDiedError,
    StepFailedError,
    StepTimeoutError,
    die_alike,
    isolated,
)

pytestmark = pytest.mark.torch


def ask(
    step: Callable[[Enter], TensorSummary],
    phases: list[Phase] | None = None,
    limit_seconds: float | None = None,
) -> TensorSummary:
    entered = [] if phases is None else phases
    codes = (("named", "by its name"), ("out_of_memory", "RESOURCE_EXHAUSTED"))
    return isolated(step, TensorSummary, entered.append, codes, limit_seconds)


def raising(error: BaseException) -> Callable[[Enter], TensorSummary]:
    def step(enter: Enter) -> TensorSummary:
        raise error

    return step


def test_a_step_returns_its_result_and_announces_phases() -> None:
    here = os.getpid()

    def step(enter: Enter) -> TensorSummary:
        enter(Phase.COMPARE)
        assert os.getpid() != here
        return TensorSummary(name="x" * 200_000, shape=(1, 2))  # longer than a pipe holds

    phases: list[Phase] = []
    found = ask(step, phases)
    assert (len(found.name), found.shape) == (200_000, (1, 2))
    assert phases == [Phase.COMPARE]


def test_what_a_step_raises_comes_back_as_a_record(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StepFailedError, match="ValueError: refused by its name") as failed:
        ask(raising(ValueError("refused by its name")))
    assert failed.value.record.code == "named"
    assert "in step" in failed.value.record.head
    assert "refused by its name" in capfd.readouterr().err


def test_model_code_that_exits_has_failed() -> None:
    with pytest.raises(StepFailedError, match="SystemExit"):
        ask(raising(SystemExit(3)))


@pytest.mark.parametrize(
    "error", [MemoryError("no more"), RuntimeError("RESOURCE_EXHAUSTED: no more")]
)
def test_memory_that_ran_out_is_no_result(error: Exception) -> None:
    with pytest.raises(MemoryError, match="no more"):
        ask(raising(error))


def test_a_step_that_dies_is_reported_by_its_signal() -> None:
    def step(enter: Enter) -> TensorSummary:
        faulthandler.disable()  # pytest's: its traceback would stand among the results
        os.kill(os.getpid(), signal.SIGABRT)
        raise AssertionError("unreachable")

    with pytest.raises(StepDiedError, match="SIGABRT") as died:
        ask(step)
    assert died.value.code == -signal.SIGABRT


def test_a_step_that_leaves_without_a_word_is_reported_by_its_status() -> None:
    def step(enter: Enter) -> TensorSummary:
        os._exit(7)

    with pytest.raises(StepDiedError, match="exit status 7"):
        ask(step)


def test_a_step_with_a_limit_is_ended() -> None:
    def step(enter: Enter) -> TensorSummary:
        time.sleep(600)
        raise AssertionError("unreachable")

    before = set(descendants(os.getpid()))
    with pytest.raises(StepTimeoutError, match="did not end within"):
        ask(step, limit_seconds=0.2)
    assert set(descendants(os.getpid())) <= before


@pytest.mark.parametrize(("code", "expected"), [(-11, -11), (-9, -9), (7, 7), (0, 70)])
def test_dying_alike(code: int, expected: int) -> None:
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        die_alike(StepDiedError(code))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == expected
