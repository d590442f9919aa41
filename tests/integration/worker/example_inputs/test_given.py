"""Inputs that a person, a file or an override gives, and what they may hold."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
import transformers as tf
from safetensors.torch import save_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from compilewatch.errors import ConfigError, InputsError
from compilewatch.records import FactoryBuild
from compilewatch.worker.example_inputs import SETTINGS, AppliedSettings, files, summarize
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from compilewatch.worker.model.overrides import overrides_of
from compilewatch.worker.subject import ExampleInputs
from tests import factories
from tests.integration.worker.example_inputs.conftest import TEXT, Make, forward, tiny

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
    found = files.load_inputs_file(write(files.inputs_to_toml(INPUTS)))
    assert summarize(found) == summarize(INPUTS)
    assert torch.equal(found.args[0], torch.ones(2, 3))
    for name in ("input_ids", "mask"):
        assert torch.equal(found.kwargs[name], INPUTS.kwargs[name])
    assert found.kwargs["use_cache"] is False
    assert found.kwargs["sizes"] == (4, (5, 6))
    assert (found.dynamic_shapes, found.strategy) == (INPUTS.dynamic_shapes, "file")
    batch, pair = found.kwargs["batch"], found.kwargs["pair"]
    assert torch.equal(batch["more"][1]["deep"], torch.arange(2))
    assert (type(batch["more"]), type(pair), pair[1]) == (list, tuple, None)
    assert torch.equal(found.kwargs["graph"].edge_index, EDGES)


def test_random_values_of_a_file_are_the_same_each_time(write: Write) -> None:
    path = write('[inputs.x]\nshape = [4]\n[inputs.n]\nshape = [4]\nfill = "randint"\nhigh = 900\n')
    first, second = (files.load_inputs_file(path).kwargs for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in "xn")
    assert first["n"].dtype is torch.int64


def test_under_a_fake_mode_all_tensors_are_fake_and_cannot_be_written(write: Write) -> None:
    mode = FakeTensorMode()
    inputs = files.to_fake(files.load_inputs_file(write(files.inputs_to_toml(INPUTS))), mode)
    values = [inputs.args[0], inputs.kwargs["input_ids"], *inputs.kwargs["images"]]
    values += [inputs.kwargs["batch"]["more"][1]["deep"], inputs.kwargs["graph"].x]
    assert all(isinstance(v, FakeTensor) and v.fake_mode is mode for v in values)
    with pytest.raises(InputsError, match="input_ids: a fake tensor has no values"):
        files.inputs_to_toml(inputs)


def test_a_file_wins_over_rules(tmp_path: Path, write: Write, make: Make) -> None:
    llama, ids = tiny("LlamaForCausalLM", **TEXT), [[4, 5], [6, 7]]
    save_file({"input_ids": torch.tensor(ids)}, tmp_path / "saved.safetensors")
    saved = (write(f"[inputs.input_ids]\nvalues = {ids}\n"), tmp_path / "saved.safetensors")
    for path in saved:
        inputs = make(llama, inputs_file=str(path))
        assert {name: value.tolist() for name, value in inputs.kwargs.items()} == {"input_ids": ids}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inputs = [", "not an inputs file"),
        ("schema = 99", "schema 99 is unknown"),
        ("[unknown]\nx = 3", "not an inputs file"),
        ("[inputs.x]\nshape = [2]\nfill = 'noise'", "x: unknown fill 'noise'"),
        ("[inputs.x]\nshape = [2]\ndtype = 'int5'", "x: unknown dtype 'int5'"),
        ("[inputs.x]\nshape = ['batch']", "x: 'batch' is not a size"),
        ("[inputs.x]\nshape = 2", "x: shape must be a list"),
        ("[inputs.x]\nvalues = [[1], [2, 3]]", "x: values are not a tensor"),
        ("[inputs.x]\nshape = [2]\nfil = 'ones'", "x: unknown fil"),
        ("[inputs.x]", "x: needs one of"),
        ("[inputs.x]\nshape = [2]\nfill = 'randint'\nlow = 9\nhigh = 3", "x: cannot be filled"),
        ("[inputs.x]\ntuple = 3", "x: tuple must be a list"),
        ("[inputs.x]\nentries = 3", "x: entries must be a table"),
        ("[inputs.x.entries.y]\nshape = 2", "x.y: shape must be a list"),
    ],
)
def test_malformed_toml_is_one_line_that_names_the_file(
    write: Write, text: str, message: str
) -> None:
    check_line(write(text), message)


def check_line(path: Path, message: str) -> None:
    with pytest.raises(InputsError) as caught:
        files.load_inputs_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"not tensors at all")
    check_line(tmp_path / "missing.toml", "cannot be read: No such file")
    check_line(tmp_path / "broken.safetensors", "not a safetensors file")
    check_line(tmp_path / "inputs.pt", "are read from .toml or .safetensors")


def test_what_is_unknown_is_a_comment_to_fill_in(write: Write) -> None:
    text = files.inputs_to_toml(INPUTS, ("left",))
    assert files.load_inputs_file(write(text)).kwargs.keys() == INPUTS.kwargs.keys()
    head, _, skeleton = text.partition("left cannot be inferred")
    filled = head + "\n" + "\n".join(line.removeprefix("# ") for line in skeleton.splitlines()[1:])
    assert files.load_inputs_file(write(filled)).kwargs["left"].shape == (2, 8)


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    return tiny("LlamaForCausalLM", **TEXT | {"num_hidden_layers": 2})


def test_a_tensor_is_given_in_sizes_of_batch_sequence_and_configuration(
    make: Make, llama: nn.Module
) -> None:
    embeds = {"shape": ["batch", "sequence", "config.hidden_size"], "fill": "uniform"}
    product = {"shape": ["2*batch", "config.num_attention_heads*3"]}
    no_argument = {"shape": [2]}
    override: dict[str, Any] = {"inputs_embeds": embeds, "position_ids": product}
    override |= {"pixel_values": no_argument, "drop": ["input_ids"]}
    inputs = make(llama, override=override)
    shapes = {name: tuple(value.shape) for name, value in inputs.kwargs.items()}
    assert shapes == {"inputs_embeds": (2, 32, 32), "position_ids": (4, 12)}
    assert "override" in inputs.strategy
    # Rules see the batch and the sequence.
    inputs = make(llama, override={"batch": 1, "sequence": 8})
    assert inputs.kwargs["input_ids"].shape == (1, 8)
    forward(llama, inputs)


def test_a_cache_of_another_model_fits_the_attention_that_reads_it(
    make: Make, llama: nn.Module
) -> None:
    inputs = make(llama, override={"cache": 5, "drop": ["attention_mask"]})
    cache = inputs.kwargs["past_key_values"]
    assert isinstance(cache, tf.DynamicCache)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(2, 2, 5, 8)] * 2
    assert forward(llama, inputs).logits.shape == (2, 32, 200)
    assert cache.get_seq_length() == 5 + 32


@pytest.mark.parametrize(
    "table",
    [
        {"input_ids": {"shape": ["config.no_such"]}},
        {"input_ids": {"fill": "ones"}},
        {"batch": "two"},
        {"drop": "input_ids"},
    ],
)
def test_a_malformed_table_names_the_model(
    make: Make, llama: nn.Module, table: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="overrides: model: "):
        make(llama, override=table)


def test_shipped_overrides_are_well_formed() -> None:
    """For any model: every name in an expression counts as two."""
    tables = [line.inputs for line in overrides_of(factories.request()) if line.inputs]
    assert tables
    for table in tables:
        msgspec.convert(table, AppliedSettings)
        for name in table.keys() - SETTINGS:
            files.from_spec(name, table[name], lambda _: 2, torch.float32)


numbers = itertools.count()


def build(folder: Path, make: str) -> FactoryBuild:
    """A build whose inputs are `make` of a module with the given statements."""
    name = f"own_inputs_{next(numbers)}"
    (folder / f"{name}.py").write_text(f"import torch\ndef make():\n    {make}\n")
    return FactoryBuild(factory=f"{name}:model", path=str(folder), inputs=f"{name}:make")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("return (torch.ones(2, 3),)", (1, [])),
        ("return {'x': torch.ones(2, 3)}", (0, ["x"])),
        ("return (torch.ones(2, 3),), {'y': 1}", (1, ["y"])),
        ("return torch.ones(2, 3)", (1, [])),
        ("return 3", "returned int"),
        ("raise OSError('no\\nfile')", "raised OSError: no"),
        ("pass\ndel make", "cannot be found"),
    ],
)
def test_what_a_callable_may_return(
    make: Make, tmp_path: Path, statement: str, expected: Any
) -> None:
    made = build(tmp_path, statement)
    if isinstance(expected, str):
        with pytest.raises(InputsError, match=expected) as caught:
            make(nn.Identity(), build=made)
        assert "\n" not in str(caught.value)
    else:
        inputs = make(nn.Identity(), build=made)
        assert (len(inputs.args), list(inputs.kwargs)) == expected
        assert inputs.strategy == "factory"


def test_a_fake_cache_leaves_the_real_one_as_it_is() -> None:
    cache = tf.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    made = files.fake_values({"past_key_values": cache}, InputAwareFakeMode())["past_key_values"]
    assert isinstance(made.layers[0].keys, FakeTensor)
    assert not isinstance(cache.layers[0].keys, FakeTensor)
    assert made.get_seq_length() == 3


def test_a_session_moves_to_the_declared_device_with_its_state() -> None:
    session = tf.Sam2VideoInferenceSession(video_height=8, video_width=8)
    points = {"point_coords": torch.ones(1, 1, 1, 2)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, points)
    made = files.fake_values([session], InputAwareFakeMode(torch.device("cuda")))[0]
    moved = made.point_inputs_per_obj[0][0]["point_coords"]
    assert isinstance(moved, FakeTensor)
    assert moved.device.type == "cuda"
    assert (made.inference_device, made.cache.inference_device) == ("cuda", "cuda")
    assert session.inference_device == "cpu"
    assert not isinstance(session.point_inputs_per_obj[0][0]["point_coords"], FakeTensor)


class Tracker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = tf.SiglipVisionConfig(image_size=48)

    def forward(
        self,
        inference_session: tf.Sam2VideoInferenceSession,
        frame_idx: Any = None,
        frame: Any = None,
    ) -> Any:
        return frame.mean()


def test_a_session_has_an_object_and_each_call_adds_a_frame(make: Make) -> None:
    inputs = make(Tracker())
    session = inputs.kwargs["inference_session"]
    assert (session.video_height, session.obj_with_new_inputs) == (48, [1])
    assert session.point_inputs_per_obj[0][0]["point_labels"].tolist() == [[[1]]]
    assert inputs.kwargs["frame"].shape == (1, 3, 48, 48)
    assert "frame_idx" not in inputs.kwargs
    assert inputs.strategy == "session"


class Data(dict[str, Any]):
    """Of PyTorch Geometric: attributes are entries; others say how it was put together."""

    slices = "of its graphs"
    to_dict = dict[str, Any].copy

    def __copy__(self) -> Any:
        return type(self)(self)


class Batch(Data):
    pass


def test_objects_with_attributes_keep_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, files.GRAPHS, SimpleNamespace(Data=Data))
    plain, batch = SimpleNamespace(x=torch.ones(2)), Batch(x=torch.ones(3))
    made = files.converted({"plain": plain, "batch": batch}, torch.clone, torch.device("cpu"))
    assert [type(made[name]) for name in ("plain", "batch")] == [SimpleNamespace, Batch]
    assert made["batch"]["x"] is not batch["x"]
