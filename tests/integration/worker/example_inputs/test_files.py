"""Saved inputs: TOML and safetensors, there and back; what is wrong with them in one line."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch.errors import InputsError
from compilewatch.worker.example_inputs import summarize
from compilewatch.worker.example_inputs.files import inputs_to_toml, load_inputs_file, to_fake
from compilewatch.worker.subject import ExampleInputs
from tests.integration.worker.example_inputs.conftest import TEXT, Make, tiny

pytestmark = pytest.mark.torch

EDGES = torch.tensor([[0, 1], [1, 0]])
INPUTS = ExampleInputs(
    strategy="text",
    args=(torch.ones(2, 3),),
    kwargs={
        "input_ids": torch.tensor([[1, 5, 9], [2, 6, 7]]),
        "mask": torch.tensor([[True, False, True]]),
        "pixels": torch.randn(2, 3, 4, 4),
        "half": torch.randn(2, 2).to(torch.bfloat16),
        "empty": torch.zeros(2, 0),
        "images": [torch.randn(3, 2), torch.arange(4)],
        "steps": 2,
        "use_cache": False,
        "sizes": (4, (5, 6)),
        "batch": {"image": torch.ones(1, 2), "more": [torch.ones(3), {"deep": torch.arange(2)}]},
        "pair": (torch.ones(2), None),
        "graph": SimpleNamespace(x=torch.ones(4, 3), edge_index=EDGES),
    },
    dynamic_shapes={"input_ids": {0: "batch", 1: "sequence"}},
)

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(text: str) -> Path:
        path = tmp_path / "inputs.toml"
        path.write_text(text)
        return path

    return to


def test_toml_keeps_names_shapes_dtypes_whole_numbers_and_containers(write: Write) -> None:
    found = load_inputs_file(write(inputs_to_toml(INPUTS)))
    assert summarize(found) == summarize(INPUTS)
    assert torch.equal(found.args[0], torch.ones(2, 3))
    for name in ("input_ids", "mask"):
        assert torch.equal(found.kwargs[name], INPUTS.kwargs[name])
    assert found.kwargs["use_cache"] is False
    assert found.kwargs["sizes"] == (4, (5, 6))
    assert (found.dynamic_shapes, found.strategy) == (INPUTS.dynamic_shapes, "file")
    batch, pair = found.kwargs["batch"], found.kwargs["pair"]
    assert isinstance(batch["more"], list)
    assert torch.equal(batch["more"][1]["deep"], torch.arange(2))
    assert isinstance(pair, tuple)
    assert pair[1] is None
    assert torch.equal(found.kwargs["graph"].edge_index, EDGES)


def test_random_values_of_a_file_are_the_same_each_time(write: Write) -> None:
    path = write('[inputs.x]\nshape = [4]\n[inputs.n]\nshape = [4]\nfill = "randint"\nhigh = 900\n')
    first, second = (load_inputs_file(path).kwargs for _ in range(2))
    assert torch.equal(first["x"], second["x"])
    assert torch.equal(first["n"], second["n"])
    assert first["n"].dtype is torch.int64


def test_safetensors_come_as_keyword_arguments(tmp_path: Path) -> None:
    ids = torch.tensor([[3, 4], [5, 6]])
    save_file({"input_ids": ids}, tmp_path / "saved.safetensors")
    found = load_inputs_file(tmp_path / "saved.safetensors")
    assert torch.equal(found.kwargs["input_ids"], ids)


def test_under_a_fake_mode_all_tensors_are_fake_and_cannot_be_written(write: Write) -> None:
    mode = FakeTensorMode()
    inputs = to_fake(load_inputs_file(write(inputs_to_toml(INPUTS))), mode)
    values = [inputs.args[0], inputs.kwargs["input_ids"], *inputs.kwargs["images"]]
    values += [inputs.kwargs["batch"]["more"][1]["deep"], inputs.kwargs["graph"].x]
    assert all(isinstance(v, FakeTensor) and v.fake_mode is mode for v in values)
    with pytest.raises(InputsError, match="input_ids: a fake tensor has no values"):
        inputs_to_toml(inputs)


def test_a_file_wins_over_rules(write: Write, make: Make) -> None:
    path = write("[inputs.input_ids]\nvalues = [[4, 5], [6, 7]]\n")
    inputs = make(tiny("LlamaForCausalLM", **TEXT), inputs_file=str(path))
    assert {n: v.tolist() for n, v in inputs.kwargs.items()} == {"input_ids": [[4, 5], [6, 7]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs = [", "not an inputs file"),
        ("schema = 99", "schema 99 is unknown"),
        ("[inputs]\nx = 3", "not an inputs file"),
        ("[unknown]\nx = 3", "not an inputs file"),
        ("[inputs.x]\nshape = [2]\nfill = 'noise'", "x: unknown fill 'noise'"),
        ("[inputs.x]\nshape = [2]\ndtype = 'int5'", "x: unknown dtype 'int5'"),
        ("[inputs.x]\nshape = ['batch']", "x: 'batch' is not a size"),
        ("[inputs.x]\nshape = [-2]", "x: '-2' is not a size"),
        ("[inputs.x]\nshape = 2", "x: shape must be a list"),
        ("[inputs.x]\nvalues = [[1], [2, 3]]", "x: values are not a tensor"),
        ("[inputs.x]\nshape = [2]\nfil = 'ones'", "x: unknown fil"),
        ("[inputs.x]", "x: needs one of"),
        ("[inputs.x]\nshape = [2]\nfill = 'randint'\nlow = 9\nhigh = 3", "x: cannot be filled"),
        ("[inputs.x]\nitems = 3", "x: items must be a list"),
        ("[inputs.x]\ntuple = 3", "x: tuple must be a list"),
        ("[inputs.x]\nentries = 3", "x: entries must be a table"),
        ("[inputs.x.entries.y]\nshape = 2", "x.y: shape must be a list"),
        ("[dynamic_shapes.x]\nfirst = 'batch'", "not an inputs file"),
    ],
)
def test_malformed_toml_is_one_line_that_names_the_file(
    write: Write, text: str, message: str
) -> None:
    path = write(text)
    with pytest.raises(InputsError) as caught:
        load_inputs_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors at all")
    for name, message in {
        "missing.toml": "cannot be read: No such file",
        "missing.safetensors": "missing.safetensors",
        "broken.safetensors": "not a safetensors file",
        "inputs.pt": "are read from .toml or .safetensors",
    }.items():
        with pytest.raises(InputsError, match=message) as caught:
            load_inputs_file(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_what_is_unknown_is_a_comment_to_fill_in(write: Write) -> None:
    text = inputs_to_toml(INPUTS, ("left",))
    assert load_inputs_file(write(text)).kwargs.keys() == INPUTS.kwargs.keys()
    head, _, skeleton = text.partition("left cannot be inferred")
    filled = head + "\n" + "\n".join(line.removeprefix("# ") for line in skeleton.splitlines()[1:])
    assert load_inputs_file(write(filled)).kwargs["left"].shape == (2, 8)
