"""The script of plain PyTorch finds what compilewatch finds; of all cases, see `test_target.py`."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from evaluated import request_of

from compilewatch.records import ClassBuild, FactoryBuild, Mode, ModelSpec, Request, Target, Tier
from compilewatch.worker.reproduce import model_source, script
from tests.integration.worker.targets.conftest import RunScript

pytestmark = pytest.mark.torch


def test_in_train_mode_it_goes_back_through_the_loss_and_other_counts_are_its_exit_status(
    run_script: RunScript,
) -> None:
    text = script(request_of("explicit", mode=Mode.TRAIN))
    status, printed = run_script(text)
    assert status == 0, printed[-2:]
    assert "2 graphs, 1 break " in printed[-1]
    changed = text.replace("expected = words(2, ", "expected = words(3, ")
    assert changed != text
    assert run_script(changed)[0] == 1


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
def inputs():
    return {"batch": Batch(torch.ones(3, 4), True)}
"""


def test_inputs_with_attributes_reach_the_model(tmp_path: Path, run_script: RunScript) -> None:
    (tmp_path / "takes_objects.py").write_text(OBJECTS)
    build = FactoryBuild(
        factory="takes_objects:Net", path=str(tmp_path), inputs="takes_objects:inputs"
    )
    model = ModelSpec(source="test", name="net", build=build)
    text = script(Request(model=model, target=Target(), key="0", tier=Tier.REAL))
    assert "compilewatch" not in text
    status, printed = run_script(text)
    assert status == 0, printed[-2:]
    assert "1 break at takes_objects.py:9 (1)" in printed[-1]


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
