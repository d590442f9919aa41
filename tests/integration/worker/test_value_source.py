"""Inputs as source code: what the source makes is the value that it was written from."""

import functools
import importlib
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from compilewatch.errors import InputsError
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
    names = {
        "torch": torch,
        "importlib": importlib,
        "functools": functools,
        "OrderedDict": OrderedDict,
    }
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

    def __init__(self, rows: int) -> None:
        self.x = torch.ones(rows, 2)
        self.nested = SimpleNamespace(kind="k")


class Outer:
    class Inner:
        def __init__(self) -> None:
            self.value = 3


def test_objects_of_transformers_are_written_with_their_state() -> None:
    cache = transformers.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), 0)
    made = _read_again({"past_key_values": cache})["past_key_values"]
    assert type(made) is type(cache)
    assert made.layers[0].keys.shape == (1, 2, 3, 4)
    assert made.get_seq_length() == 3
    assert made.layer_class_to_replicate is cache.layer_class_to_replicate

    session = transformers.Sam2VideoInferenceSession(
        video_height=8, video_width=8, dtype=torch.bfloat16
    )
    session.obj_id_to_idx(7)
    made = _read_again(session)
    assert (made.video_height, made.dtype, made.obj_ids) == (8, torch.bfloat16, [7])
    assert made.obj_id_to_idx(7) == 0
    assert type(made.cache) is type(session.cache)

    states = torch.ones(1, 2, 3)
    output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=states)
    made = _read_again(output)
    assert type(made) is type(output)
    assert made.last_hidden_state.shape == made[0].shape == (1, 2, 3)


def test_objects_are_made_by_their_constructors_or_of_their_attributes() -> None:
    batch = _read_again(Batch(x=torch.ones(2, 3), names=["a"]))
    assert (type(batch), batch.x.shape, batch.names) == (Batch, (2, 3), ["a"])
    space = _read_again(SimpleNamespace(x=torch.tensor([1, 2]), scale=2.0))
    assert (type(space), space.x.tolist(), space.scale) == (SimpleNamespace, [1, 2], 2.0)
    pair = _read_again(Pair(torch.zeros(2), (1,)))
    assert (type(pair), pair.right) == (Pair, (1,))
    plain = _read_again(Plain(4))
    assert (type(plain), plain.x.shape, plain.nested.kind) == (Plain, (4, 2), "k")
    assert _read_again(Outer.Inner()).value == 3
    counted = _read_again(Counted(torch.ones(3)))
    assert (counted.rows, counted.x.shape) == (3, (3,))
    # Only objects need the functions that make them.
    assert has_objects(ExampleInputs(strategy="", args=(SimpleNamespace(x=1),)))
    assert not has_objects(ExampleInputs(strategy="", kwargs={"x": torch.ones(1), "n": [1]}))


def test_a_graph_is_made_by_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `torch_geometric.data.Data`, which keeps its attributes in a store."""

    class Data:
        def __init__(self, **kwargs: Any) -> None:
            self._store = [kwargs]

        def to_dict(self) -> dict[str, Any]:
            return self._store[0]

    geometric = ModuleType("torch_geometric.data")
    geometric.Data = Data  # type: ignore[attr-defined]
    Data.__module__, Data.__qualname__ = geometric.__name__, "Data"
    monkeypatch.setitem(sys.modules, geometric.__name__, geometric)

    made = _read_again(Data(x=torch.ones(4, 2), **{"edge index": [0]}))

    assert type(made) is Data
    assert made.to_dict()["x"].shape == (4, 2)
    assert made.to_dict()["edge index"] == [0]


def test_what_cannot_be_written_is_named_with_its_argument() -> None:
    def local() -> type:
        class Hidden:
            pass

        return Hidden

    cyclic = Plain(1)
    cyclic.nested = SimpleNamespace(parent=cyclic)
    for value, reason in (
        (Path("x"), "a PosixPath cannot be written: it is more than its attributes"),
        (local()(), "the class .*Hidden of .* cannot be imported"),
        (cyclic, "recursion"),
    ):
        inputs = ExampleInputs(strategy="factory", kwargs={"data": [value]})
        with pytest.raises(InputsError, match=f"^data: .*{reason}.*; a script can contain"):
            inputs_source(inputs)


def test_few_numbers_are_written_and_many_are_noise() -> None:
    """Boxes of a detector must stay boxes; a picture may be any picture."""
    boxes = torch.tensor([[1.0, 2.5, 30.0, 40.0]])
    made = _read_again(boxes)
    assert torch.equal(made, boxes)
    assert made.dtype == boxes.dtype
    assert value_source(torch.linspace(-2, 2, 24)) == "torch.randn((24,), dtype=torch.float32)"
    # Probabilities, and what a root is taken of, must stay in their range.
    positive = _read_again(torch.rand(3, 8) + 2)
    assert 2 <= positive.min() < positive.max() < 3
    assert value_source(torch.tensor([1.0, float("nan")])).startswith("torch.randn(")


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
        assert value.dtype == given[name].dtype
        assert value.shape == given[name].shape
        assert torch.equal(value, given[name]), name
