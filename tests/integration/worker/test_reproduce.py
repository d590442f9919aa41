"""The script of plain PyTorch finds what compilewatch finds, line by line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from compilewatch.records import ClassBuild, FactoryBuild, Mode, ModelSpec, Request, Target, Tier
from compilewatch.worker.reproduce import model_source, script

CASES_FOLDER = Path(__file__).parents[2] / "cases"
sys.path.insert(0, str(CASES_FOLDER))

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


def _script(folder: Path, name: str, mode: Mode) -> str:
    build = FactoryBuild(
        factory=f"reproducible:{name}", path=str(folder), inputs="reproducible:inputs"
    )
    model = ModelSpec(source="test", name=name, build=build)
    text = script(Request(model=model, target=Target(mode=mode), key="0", tier=Tier.REAL))
    assert "compilewatch" not in text
    return text


def _ran(text: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, list[str]]:
    """The exit status of a script, and what it printed."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
    return ended.value.code, capsys.readouterr().out.splitlines()


def test_in_train_mode_it_goes_back_through_the_loss(
    factories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = _ran(_script(factories, "explicit", Mode.TRAIN), capsys)
    assert status == 0, said[-2:]
    assert "2 graphs, 1 break " in said[-1]


def test_other_counts_than_expected_are_the_exit_status(
    factories: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = _script(factories, "explicit", Mode.EVAL)
    changed = text.replace("expected = words(2, ", "expected = words(3, ")
    assert changed != text
    assert _ran(changed, capsys)[0] == 1


OBJECTS = """
import dataclasses, torch
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    kept: bool
class Net(torch.nn.Module):
    def forward(self, batch):
        torch._dynamo.graph_break()
        return batch.x + 1 if batch.kept else batch.x
def build():
    return Net()
def inputs():
    return {"batch": Batch(torch.ones(3, 4), True)}
"""


def test_inputs_with_attributes_reach_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "takes_objects.py").write_text(OBJECTS)
    build = FactoryBuild(
        factory="takes_objects:build", path=str(tmp_path), inputs="takes_objects:inputs"
    )
    model = ModelSpec(source="test", name="net", build=build)
    text = script(Request(model=model, target=Target(), key="0", tier=Tier.REAL))
    status, said = _ran(text, capsys)
    assert status == 0, said[-2:]
    assert "1 break at takes_objects.py:9 (1)" in said[-1]


def test_a_configuration_that_empties_what_it_reads_is_written_in_full() -> None:
    class Config(transformers.PretrainedConfig):
        """As EncoderDecoderConfig of Transformers 5.5.4."""

        def __init__(self, part: dict[str, Any] | None = None, **kwargs: Any) -> None:
            self.kind = (part or {}).pop("kind", "bert")
            self.part = {"kind": self.kind}
            super().__init__(**kwargs)

    build = ClassBuild(class_name="Linear")
    request = Request(
        model=ModelSpec(source="test", name="m", build=build), target=Target(), key="key"
    )
    lines = model_source(request, torch.nn.Linear(1, 1), Config(part={"kind": "gpt2"}))
    (written,) = (line for line in lines if line.startswith("config = "))
    assert '"kind": "gpt2"' in written.partition('"part"')[2]
