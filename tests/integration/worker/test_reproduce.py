"""The script of plain PyTorch finds what compilewatch finds, line by line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from compilewatch.records import FactoryBuild, Mode, ModelSpec, Request, Target, Tier
from compilewatch.worker.reproduce import script

CASES_FOLDER = Path(__file__).parents[2] / "cases"
sys.path.insert(0, str(CASES_FOLDER))

from breaks import CASES, Case  # noqa: E402

FACTORIES = """
import breaks, torch
globals().update({case.name: case.build for case in breaks.CASES})
def inputs():
    return (torch.ones(3, 4),)
"""


@pytest.fixture
def factories(tmp_path: Path) -> Path:
    (tmp_path / "reproducible.py").write_text(FACTORIES)
    return tmp_path


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The script listens in this very process."""
    convert = logging.getLogger("torch._dynamo.convert_frame")
    trace = torch._logging._internal.trace_log
    handlers, filters, level = list(trace.handlers), list(convert.filters), convert.level
    yield
    trace.handlers[:], convert.filters[:] = handlers, filters
    convert.setLevel(level)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def _ran(folder: Path, name: str, mode: Mode, capsys: pytest.CaptureFixture[str]) -> list[str]:
    build = FactoryBuild(
        factory=f"reproducible:{name}", path=str(folder), inputs="reproducible:inputs"
    )
    model = ModelSpec(source="test", name=name, build=build)
    text = script(Request(model=model, target=Target(mode=mode), key="0", tier=Tier.REAL))
    assert "compilewatch" not in text
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
    said = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0, said[-2:]
    return said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_script_counts_as_compilewatch_counts(
    case: Case, factories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _ran(factories, case.name, Mode.EVAL, capsys)
    breaks = sum(known.occurrences for known in case.breaks)
    counted = f"{case.graphs} graph{'s' * (case.graphs != 1)}, {breaks} break{'s' * (breaks != 1)}"
    assert said[-1].startswith(f"got:      {counted}")
    assert said[-1].endswith("accepted" if case.fullgraph else "rejected")


def test_in_train_mode_it_goes_back_through_the_loss(
    factories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "2 graphs, 1 break " in _ran(factories, "explicit", Mode.TRAIN, capsys)[-1]
