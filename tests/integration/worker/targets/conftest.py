"""Subjects for a target, as the worker makes them."""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.backends import registry

from compilewatch.records import Phase
from compilewatch.worker import forked
from compilewatch.worker.subject import Subject

CASES_FOLDER = Path(__file__).parents[3] / "cases"
sys.path.insert(0, str(CASES_FOLDER))

from breaks import STATE  # noqa: E402
from evaluated import subject_of  # noqa: E402

MakeSubject = Callable[..., Subject]


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests observe a target in their own process; `evaluated.py` evaluates in forks."""
    monkeypatch.setattr(forked, "possible", lambda: False)
    STATE.clear()


@pytest.fixture
def make_subject(tmp_path: Path) -> MakeSubject:
    """`make_subject(build, tier=…, mode=…, …)`; `phases` of the result lists those entered."""

    def make(
        build: Callable[[], nn.Module], phases: list[Phase] | None = None, **options: Any
    ) -> Subject:
        entered = [] if phases is None else phases
        subject = subject_of(build, tmp_path, enter=entered.append, **options)

        def rebuilt() -> nn.Module:
            STATE.clear()
            return subject.rebuilt()

        return replace(subject, rebuilt=rebuilt)

    return make


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """`backend(compiler)` registers a compiler of the test's own under a name."""
    monkeypatch.setattr(registry, "_COMPILER_FNS", registry._COMPILER_FNS.copy())

    def register(compiler: Any) -> str:
        torch._dynamo.register_backend(compiler, name="of_this_test")
        return "of_this_test"

    return register


RunScript = Callable[[str], tuple[object, list[str]]]


@pytest.fixture
def run_script(capsys: pytest.CaptureFixture[str]) -> Iterator[RunScript]:
    """`run_script(text)`: the exit status of a script in this very process, and what it printed."""
    convert = logging.getLogger("torch._dynamo.convert_frame")
    trace = torch._logging._internal.trace_log
    handlers, filters, level = list(trace.handlers), list(convert.filters), convert.level

    def forget() -> None:
        trace.handlers[:], convert.filters[:] = handlers, filters
        convert.setLevel(level)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

    def run(text: str) -> tuple[object, list[str]]:
        forget()
        with pytest.raises(SystemExit) as ended:
            exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
        return ended.value.code, capsys.readouterr().out.splitlines()

    yield run
    forget()
