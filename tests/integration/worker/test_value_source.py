"""Inputs as source code: what the source makes is the value that it was written from."""

import functools
import importlib
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from compilewatch.errors import InputsError
from compilewatch.worker.example_inputs.files import GRAPHS
from compilewatch.worker.subject import ExampleInputs
from compilewatch.worker.value_source import (
    OBJECTS,
    given_source,
    has_objects,
    inputs_source,
    value_source,
)

pytestmark = pytest.mark.torch


def _read_again(value: object) -> Any:
    """The value that the source of another one makes in a script."""
    names: dict[str, Any] = {"torch": torch, "OrderedDict": OrderedDict}
    names |= {"importlib": importlib, "functools": functools}
    exec(OBJECTS, names)
    return eval(value_source(value), names)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Batch:
    """As a person's own collate function returns it."""

    x: torch.Tensor
    names: list[str] = field(default_factory=list)


@dataclass
class Counted:
    """A data class whose constructor does not take all of its fields."""

    x: torch.Tensor
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.x)


class Plain:
    """An object whose constructor takes something else than its attributes."""

    class Inner:
        pass

    def __init__(self, rows: int) -> None:
        self.x = torch.ones(rows, 2)
        self.nested = SimpleNamespace(kind="k", inner=Plain.Inner())


class Data:
    """As `torch_geometric.data.Data`, which keeps its attributes in a store."""

    def __init__(self, **kwargs: Any) -> None:
        self._store = [kwargs]

    def to_dict(self) -> dict[str, Any]:
        return self._store[0]


def test_objects_of_transformers_are_written_with_their_state() -> None:
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    made = _read_again({"past_key_values": cache})["past_key_values"]
    assert type(made) is type(cache)
    assert made.layers[0].keys.shape == (1, 2, 3, 4)
    assert made.get_seq_length() == 3
    session = transformers.Sam2VideoInferenceSession(video_height=8, dtype=torch.bfloat16)
    session.obj_id_to_idx(7)
    made = _read_again(session)
    assert (made.video_height, made.dtype, made.obj_ids) == (8, torch.bfloat16, [7])
    assert made.obj_id_to_idx(7) == 0
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=torch.ones(1, 2, 3))
    made = _read_again(output)
    assert type(made) is type(output)
    assert made.last_hidden_state.shape == made[0].shape == (1, 2, 3)


def test_objects_are_made_by_their_constructors_or_of_their_attributes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = _read_again(Batch(x=torch.ones(2, 3), names=["a"]))
    assert (type(batch), batch.x.shape, batch.names) == (Batch, (2, 3), ["a"])
    pair = _read_again(Pair(torch.zeros(2), (1,)))
    assert (type(pair), pair.right) == (Pair, (1,))
    plain = _read_again(Plain(4))
    assert (type(plain), plain.x.shape, plain.nested.kind) == (Plain, (4, 2), "k")
    assert type(plain.nested.inner) is Plain.Inner
    counted = _read_again(Counted(torch.ones(3)))
    assert (counted.rows, counted.x.shape) == (3, (3,))
    monkeypatch.setitem(sys.modules, GRAPHS, SimpleNamespace(Data=Data))
    graph = _read_again(Data(x=torch.ones(4, 2), **{"edge index": [0]}))
    assert (type(graph), graph.to_dict()["x"].shape) == (Data, (4, 2))
    assert graph.to_dict()["edge index"] == [0]
    # Only objects need the functions that make them.
    assert has_objects(ExampleInputs(strategy="", args=(SimpleNamespace(x=1),)))
    assert not has_objects(ExampleInputs(strategy="", kwargs={"x": torch.ones(1), "n": [1]}))


def test_what_cannot_be_written_is_named_with_its_argument() -> None:
    class Hidden:
        pass

    cyclic = Plain(1)
    cyclic.nested = SimpleNamespace(parent=cyclic)
    for value, reason in (
        (Path("x"), "a PosixPath cannot be written: it is more than its attributes"),
        (Hidden(), "the class .*Hidden of .* cannot be imported"),
        (cyclic, "recursion"),
    ):
        inputs = ExampleInputs(strategy="factory", kwargs={"data": [value]})
        with pytest.raises(InputsError, match=f"^data: .*{reason}.*; a script can contain"):
            inputs_source(inputs)


def test_few_numbers_are_written_and_many_are_noise() -> None:
    """Boxes of a detector must stay boxes; a picture may be any picture."""
    boxes = torch.tensor([[1.0, 2.5, 30.0, 40.0]])
    assert torch.equal(_read_again(boxes), boxes)
    assert value_source(torch.linspace(-2, 2, 24)) == "torch.randn((24,), dtype=torch.float32)"
    # Probabilities, and what a root is taken of, must stay in their range.
    positive = _read_again(torch.rand(3, 8) + 2)
    assert 2 <= positive.min() < positive.max() < 3
    assert value_source(torch.tensor([1.0, float("nan")])).startswith("torch.randn(")


def test_a_long_text_keeps_its_tokens() -> None:
    """A random one would have no tokens for its image."""
    text = torch.arange(6000).view(2, 3000) % 40
    assert torch.equal(_read_again(text), text)


def test_what_a_person_gave_is_written_with_its_own_values() -> None:
    given = {
        "few": torch.rand(3, 8),
        "many": torch.rand(80, 80),
        "half": torch.rand(80, 80).bfloat16(),
        "bools": torch.rand(80, 80) > 0.5,
        "infinite": torch.tensor([1.0, float("inf")]),
        "one": torch.tensor(0.1),
        "none": torch.ones(0, 2),
    }
    names: dict[str, Any] = {"torch": torch}
    exec(inputs_source(ExampleInputs(strategy="file", kwargs=given), given_source), names)
    for name, value in names["kwargs"].items():
        assert (value.dtype, value.shape) == (given[name].dtype, given[name].shape)
        assert torch.equal(value, given[name]), name
