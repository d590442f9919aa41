"""Subjects for a target, as the worker makes them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from compilewatch.records import FactoryBuild, Mode, ModelSpec, Phase, Request, Target, Tier
from compilewatch.worker import forked
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.subject import ExampleInputs, Subject

CASES_FOLDER = Path(__file__).parents[3] / "cases"
sys.path.insert(0, str(CASES_FOLDER))

from breaks import STATE  # noqa: E402

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
        build: Callable[[], nn.Module],
        tier: Tier = Tier.REAL,
        asked: Tier = Tier.AUTO,
        phases: list[Phase] | None = None,
        keep_artifacts: bool = False,
        **target: Any,
    ) -> Subject:
        torch.manual_seed(0)
        fake_mode = InputAwareFakeMode() if tier is Tier.FAKE else None
        request = Request(
            model=ModelSpec(source="test", name="test", build=FactoryBuild(factory="breaks:x")),
            target=Target(**target),
            key="0",
            tier=asked,
            keep_artifacts=keep_artifacts,
        )

        def built() -> nn.Module:
            with fake_mode if fake_mode is not None else nullcontext():
                return build().train(request.target.mode is Mode.TRAIN)

        module = built()
        with fake_mode if fake_mode is not None else nullcontext():
            inputs = ExampleInputs(strategy="test", args=(torch.ones(3, 4),))
        entered = [] if phases is None else phases
        subject = Subject(
            request=request,
            module=module,
            inputs=inputs,
            fake_mode=fake_mode,
            artifacts=tmp_path,
            enter=entered.append,
        )

        def rebuilt() -> nn.Module:
            STATE.clear()
            return built()

        return replace(subject, rebuilt=rebuilt)

    return make


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
