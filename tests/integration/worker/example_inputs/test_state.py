"""Arguments that hold the state of earlier calls, and objects with attributes."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from compilewatch.worker.example_inputs.files import converted, fake_values
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from tests.integration.worker.example_inputs.conftest import Make

pytestmark = pytest.mark.torch


def test_a_fake_cache_leaves_the_real_one_as_it_is() -> None:
    cache = tf.DynamicCache()
    cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    made = fake_values({"past_key_values": cache}, InputAwareFakeMode())["past_key_values"]
    assert isinstance(made.layers[0].keys, FakeTensor)
    assert not isinstance(cache.layers[0].keys, FakeTensor)
    assert made.get_seq_length() == 3


def test_a_session_moves_to_the_declared_device_with_its_state() -> None:
    session = tf.Sam2VideoInferenceSession(video_height=8, video_width=8)
    points = {"point_coords": torch.ones(1, 1, 1, 2)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, points)
    made = fake_values([session], InputAwareFakeMode(torch.device("cuda")))[0]
    moved = made.point_inputs_per_obj[0][0]["point_coords"]
    assert isinstance(moved, FakeTensor)
    assert moved.device.type == "cuda"
    assert (made.inference_device, made.cache.inference_device) == ("cuda", "cuda")
    assert session.inference_device == "cpu"
    assert not isinstance(session.point_inputs_per_obj[0][0]["point_coords"], FakeTensor)


class Session:
    """What Transformers' sessions of videos have in common."""

    def __init__(self, *, video_height: int, video_width: int, dtype: torch.dtype) -> None:
        self.size = (video_height, video_width)
        self.points: dict[str, torch.Tensor] = {}
        self.obj_with_new_inputs: list[int] = []

    def obj_id_to_idx(self, obj_id: int) -> int:
        return obj_id - 1

    def add_point_inputs(self, obj_idx: int, frame_idx: int, inputs: dict[str, Any]) -> None:
        self.points = inputs


class Tracker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = tf.SiglipVisionConfig(image_size=48)
        self.layer = nn.Linear(2, 2)

    def forward(self, inference_session, frame_idx=None, frame=None):  # type: ignore[no-untyped-def]
        return frame.mean() + inference_session.points["point_coords"].mean()


Tracker.forward.__annotations__["inference_session"] = Session


def test_a_session_has_an_object_and_each_call_adds_a_frame(make: Make) -> None:
    inputs = make(Tracker())
    session = inputs.kwargs["inference_session"]
    assert (session.size, session.obj_with_new_inputs) == ((48, 48), [1])
    assert session.points["point_labels"].tolist() == [[[1]]]
    assert inputs.kwargs["frame"].shape == (1, 3, 48, 48)
    assert "frame_idx" not in inputs.kwargs
    assert inputs.strategy == "session"


class Data(dict[str, Any]):
    """Of PyTorch Geometric: attributes are entries; others say how it was put together."""

    slices = ""

    def to_dict(self) -> dict[str, Any]:
        return dict(self)

    def __copy__(self) -> Any:
        made = type(self)(self)
        made.slices = self.slices
        return made


class Batch(Data):
    slices = "of its graphs"


def test_objects_with_attributes_keep_their_class(monkeypatch: pytest.MonkeyPatch) -> None:
    geometric: Any = ModuleType("torch_geometric.data")
    geometric.Data = Data
    monkeypatch.setitem(sys.modules, geometric.__name__, geometric)
    plain, batch = SimpleNamespace(x=torch.ones(2)), Batch(x=torch.ones(3))
    made = converted({"plain": plain, "batch": batch}, torch.clone, torch.device("cpu"))
    assert type(made["plain"]) is SimpleNamespace
    assert type(made["batch"]) is Batch
    assert made["batch"].slices == "of its graphs"
    assert made["batch"]["x"] is not batch["x"]
