"""The script of plain PyTorch finds what compilewatch finds, line by line."""

from __future__ import annotations

import importlib
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from compilewatch.records import ClassBuild, FactoryBuild, Mode, ModelSpec, Request, Target, Tier
from compilewatch.worker.reproduce import STATE, model_source, script, value_source

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


def _read_again(value: object) -> Any:
    """The value that the source of another one makes in a script."""
    names = {"torch": torch, "importlib": importlib, "OrderedDict": OrderedDict}
    exec(STATE, names)
    return eval(value_source(value), names)


def test_a_filled_cache_is_written_with_its_state() -> None:
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)

    made = _read_again({"past_key_values": cache})["past_key_values"]

    assert type(made) is type(cache)
    assert made.layers[0].keys.shape == (1, 2, 3, 4)
    assert made.get_seq_length() == 3
    assert made.layer_class_to_replicate is cache.layer_class_to_replicate


def test_a_session_is_written_with_its_state() -> None:
    session = transformers.Sam2VideoInferenceSession(
        video_height=8, video_width=8, dtype=torch.bfloat16
    )
    session.obj_id_to_idx(7)

    made = _read_again(session)

    assert (made.video_height, made.dtype, made.obj_ids) == (8, torch.bfloat16, [7])
    assert made.obj_id_to_idx(7) == 0
    assert type(made.cache) is type(session.cache)


def test_a_configuration_that_empties_what_it_reads_is_written_whole() -> None:
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


def test_an_object_of_another_package_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="cannot write a PosixPath as source"):
        value_source([Path("x")])
