"""Modules of no known library: what is guessed for them, from each kind of evidence."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from compilewatch.errors import InputsError, UnknownArgumentsError, WrongGuessError
from compilewatch.records import FactoryBuild
from compilewatch.worker.example_inputs import summarize
from compilewatch.worker.example_inputs.files import attributes_of
from compilewatch.worker.model.construct import to_fake
from compilewatch.worker.model.fake_mode import InputAwareFakeMode
from tests.integration.worker.example_inputs.conftest import Make, forward

pytestmark = pytest.mark.torch

OWN = FactoryBuild(factory="somewhere:model")


class Made(nn.Module):
    """A module of these parts."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class Returns(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class Image(nn.Module):
    """A convolution behind another module, for images of one size."""

    def __init__(self, channels: int = 4, side: int = 48) -> None:
        super().__init__()
        self.img_size = side
        self.stem = nn.Sequential(nn.Identity(), nn.Conv2d(channels, 8, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == self.img_size, "another size"
        return self.stem(x)


class Configured(Made):
    default_cfg = {"input_size": (1, 40, 40)}  # noqa: RUF012

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(len(x), -1))


class Example(Made):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(5, 7) + 1


class Unpacked(nn.Module):
    def forward(self, frames: Tensor) -> Tensor:
        b, t, c, h, w = frames.shape
        return frames.reshape(b * t, c, h, w)


class Unchecked(Made):
    """Needs its second argument, although it has a default."""

    def forward(self, ids: Tensor, extra: Tensor | None = None, scale: Tensor | None = None) -> Any:
        found = self.embed(ids).mean(1) + self.linear(extra)
        return found if scale is None else found * scale


class Optional(Made):
    """Takes an image, a text, or both; with neither it returns nothing."""

    def encode(self, text: Tensor) -> Tensor:
        return self.words(text)

    def forward(self, image: Tensor | None = None, text: Tensor | None = None) -> Any:
        seen = self.visual(image) if image is not None else None
        return seen, self.encode(text) if text is not None else None


class Batch(Made):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.conv(batch["image"]).mean((2, 3)) + self.linear(batch["features"])


class Detector(Made):
    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        return [self.conv(image[None]) for image in images]


class Graph(Made):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        message = self.linear(x)[edge_index[0]] + self.edges(edge_attr)
        nodes = torch.zeros(len(x), 4).index_add(0, edge_index[1], message)
        return torch.zeros(2, 4).index_add(0, batch, nodes)


class Data(Made):
    def forward(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        return self.linear(x)[edge_index[0]]


class Pair(Made):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.linear(torch.cat([left, right], dim=-1))


class Named(Made):
    """Names its argument as Transformers does."""

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.embedding(input_ids)


class Scaled(Made):
    """Only a message says that its second argument must fit what the convolution returns."""

    def forward(self, image: Tensor, scale: Tensor) -> Tensor:
        return self.conv(image) * scale[:, :, None, None]


class Recurrent(Made):
    def forward(self, series: Tensor) -> Tensor:
        return self.rnn(series)[0]


class Weight(Made):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class Ids(nn.Module):
    """Nothing but a message says that its argument contains ids."""

    def forward(self, thing: Tensor) -> Tensor:
        return functional.one_hot(thing % 5, 5)


class Wrapper(Made):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Asserted(Made):
    """Says in an assertion of another method what it needs."""

    def extra(self, extra: Tensor | None) -> Tensor:
        assert extra is not None
        return self.right(extra)

    def forward(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        if extra is None and x.ndim == 3:
            return self.left(x)
        return self.left(x) + self.extra(extra)


class Diffusion(Made):
    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.conv(x) + self.steps(time)[:, :, None, None]


class Transposed(Made):
    def forward(self, feats: Tensor) -> Tensor:
        return self.conv(feats.transpose(1, 2))


class Masked(Made):
    """A layer whose eager mode rejects masks of the shape that a tensor for it would have."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.layer(x, src_key_padding_mask=padding_mask)


class Captions(Made):
    """Runs on an image alone, as CoCa does; a user gives both."""

    def forward(self, image: Tensor, text: Tensor | None = None, scale: Any = None) -> Any:
        found = self.conv(image)
        return found if text is None else (found, self.words(text))


class Separates(Made):
    """Sound of two channels at a rate of its own."""

    def forward(self, mix: Tensor) -> Tensor:
        return self.conv(mix)


class Spectral(Made):
    """Sound whose first layer takes a spectrum of it."""

    def forward(self, input: Tensor) -> Tensor:
        batch, channels, samples = input.shape
        spectrum = input[..., :1024].reshape(batch, channels, 16, 64)
        return self.conv(torch.cat([spectrum, spectrum], dim=1)) * samples


class Speech(Made):
    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(features.shape[1])
        assert int(lengths.max()) == features.shape[1], "padding without any row that needs it"
        return self.linear(features) * (steps < lengths[:, None])[..., None]


class Prompted(Made):
    def forward(self, latents: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        pooled = self.text(encoder_hidden_states).reshape(len(latents), -1, 8).mean(1)
        return self.conv(latents) + pooled[..., None, None]


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (Masked(layer=nn.TransformerEncoderLayer(8, 2, batch_first=True)), {"x": (2, 32, 8)}),
        (
            Captions(conv=nn.Conv2d(3, 4, 1), words=nn.Embedding(50, 4)),
            {"image": (2, 3, 64, 64), "text": (2, 32)},
        ),
        (Separates(samplerate=44100, conv=nn.Conv1d(2, 4, 8, stride=4)), {"mix": (2, 2, 44100)}),
        (Spectral(audio_channels=2, conv=nn.Conv2d(4, 8, 1)), {"input": (2, 2, 16000)}),
        (Speech(linear=nn.Linear(40, 4)), {"features": (2, 100, 40), "lengths": (2,)}),
        (
            Prompted(conv=nn.Conv2d(4, 8, 1), text=nn.Linear(6, 8)),
            {"latents": (2, 4, 64, 64), "encoder_hidden_states": (2, 32, 6)},
        ),
        (Returns(), {"x": (2, 32)}),
        (Image(), {"x": (2, 4, 48, 48)}),
        (Configured(linear=nn.Linear(1600, 3)), {"x": (2, 1600)}),
        (Example(example_input_array=torch.zeros(5, 7)), {"x": (5, 7)}),
        (Unpacked(), {"frames": (2, 3, 8, 64, 64)}),
        (
            Unchecked(embed=nn.Embedding(11, 4), linear=nn.Linear(6, 4)),
            {"ids": (2, 32), "extra": (2, 6)},
        ),
        (
            Optional(visual=nn.Conv2d(3, 4, 8), words=nn.Embedding(20, 4)),
            {"image": (2, 3, 64, 64), "text": (2, 32)},
        ),
        (
            Batch(conv=nn.Conv2d(3, 4, 3), linear=nn.Linear(5, 4)),
            {"batch.image": (2, 3, 64, 64), "batch.features": (2, 5)},
        ),
        (Detector(conv=nn.Conv2d(3, 4, 3)), {"images[0]": (3, 64, 64), "images[1]": (3, 64, 64)}),
        (
            Graph(linear=nn.Linear(6, 4), edges=nn.Linear(3, 4)),
            {"x": (16, 6), "edge_index": (2, 32), "edge_attr": (32, 3), "batch": (16,)},
        ),
        (Data(linear=nn.Linear(6, 4)), {"data.x": (16, 6), "data.edge_index": (2, 32)}),
        (Pair(linear=nn.Linear(20, 2)), {"left": (2, 10), "right": (2, 10)}),
        (Scaled(conv=nn.Conv2d(3, 4, 3)), {"image": (2, 3, 64, 64), "scale": (2, 4)}),
        (Wrapper(inner=Pair(linear=nn.Linear(20, 2))), {"args[0]": (2, 10), "args[1]": (2, 10)}),
        (Asserted(left=nn.Linear(3, 4), right=nn.Linear(5, 4)), {"x": (2, 3), "extra": (2, 5)}),
        (Recurrent(rnn=nn.LSTM(5, 8, batch_first=True)), {"series": (2, 32, 5)}),
        (Named(embedding=nn.Embedding(50, 4)), {"input_ids": (2, 32)}),
        (nn.Linear(7, 3), {"input": (2, 7)}),
        (nn.GRU(3, 4), {"input": (2, 32, 3)}),
        (nn.LayerNorm(9), {"input": (2, 32, 9)}),
        (nn.TransformerEncoderLayer(8, 2), {"src": (2, 32, 8)}),
        (nn.Bilinear(5, 6, 7), {"input1": (2, 5), "input2": (2, 6)}),
        (nn.MultiheadAttention(8, 2), dict.fromkeys(("query", "key", "value"), (2, 32, 8))),
        (nn.Conv3d(2, 3, 3), {"input": (2, 2, 8, 64, 64)}),
        (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), {"input": (2, 12)}),
        (Weight(weight=nn.Parameter(torch.zeros(3, 13))), {"x": (2, 13)}),
        (Ids(), {"thing": (2, 32)}),
        (
            Diffusion(conv=nn.Conv2d(2, 2, 1), steps=nn.Embedding(10, 2)),
            {"x": (2, 2, 64, 64), "time": (2,)},
        ),
        (Transposed(conv=nn.Conv1d(7, 2, 3)), {"feats": (2, 64, 7)}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_is_guessed_runs(
    make: Make, module: nn.Module, shapes: dict[str, tuple[int, ...]]
) -> None:
    inputs = make(module, build=OWN)
    assert {each.name: each.shape for each in summarize(inputs)} == shapes
    assert inputs.strategy == "guess"
    assert len(inputs.guessed) == len(shapes)
    forward(module, inputs)


def test_a_guess_is_tried_on_fake_tensors(make: Make) -> None:
    mode = InputAwareFakeMode()
    inputs = make(to_fake(Pair(linear=nn.Linear(20, 2)), mode), build=OWN, fake_mode=mode)
    for half in inputs.kwargs.values():
        assert isinstance(half, FakeTensor)
        assert tuple(half.shape) == (2, 10)


def test_a_graph_is_fake_with_all_it_holds(make: Make) -> None:
    mode = InputAwareFakeMode()
    inputs = make(to_fake(Data(linear=nn.Linear(6, 4)), mode), build=OWN, fake_mode=mode)
    found = attributes_of(inputs.kwargs["data"])
    assert found is not None
    assert all(isinstance(value, FakeTensor) for value in found.values())


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("always")


def test_a_wrong_guess_says_what_was_guessed_and_what_to_type(make: Make) -> None:
    with pytest.raises(WrongGuessError) as caught:
        make(Broken(), build=OWN)
    message = str(caught.value)
    assert "x [2, 32] float (a plain tensor)" in message
    assert "RuntimeError: always: `compilewatch inputs model --save FILE`" in message
    assert caught.value.made.kwargs["x"].shape == (2, 32)


class OwnTensors(nn.Module):
    def forward(self) -> Tensor:
        return torch.ones(2)


def test_a_forward_without_arguments_is_called_without_any(make: Make) -> None:
    inputs = make(OwnTensors(), build=OWN)
    assert not inputs.args
    assert not inputs.kwargs


class Flag(nn.Module):
    def forward(self, verbose: bool = False) -> Tensor:
        return torch.ones(2)


def test_a_call_without_any_tensor_is_rejected(make: Make) -> None:
    with pytest.raises(UnknownArgumentsError, match="no tensor would reach the model: `compilewat"):
        make(Flag(), build=OWN)


def test_an_empty_file_is_rejected(make: Make, tmp_path: Any) -> None:
    path = tmp_path / "inputs.toml"
    path.write_text("schema = 1\n")
    with pytest.raises(InputsError, match="no tensor would reach the model"):
        make(Returns(), inputs_file=str(path))


class Indexed(Made):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.linear(x)[edge_index[0]]


def test_two_rows_of_indices_are_no_batch(make: Make) -> None:
    assert make(Indexed(linear=nn.Linear(4, 2)), build=OWN).dynamic_shapes == {}
    assert make(nn.Linear(3, 2), build=OWN).dynamic_shapes == {"input": {0: "batch"}}


def test_the_model_is_not_called_in_this_process() -> None:
    """In a process with one thread, as workers are: elsewhere the model is built again."""
    code = (
        "import torch; torch.set_num_threads(1)\n"
        "from compilewatch.worker import forked\n"
        "from compilewatch.worker.example_inputs.guess.trial import tried\n"
        "from compilewatch.worker.subject import ExampleInputs\n"
        "calls = []\n"
        "class Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        calls.append(x)\n"
        "        self.seen = x\n"
        "        return x + 1\n"
        "net = Net()\n"
        "inputs = ExampleInputs(strategy='guess', kwargs={'x': torch.ones(2)})\n"
        "assert forked.possible()\n"
        "assert tried(net, inputs, None).passed\n"
        "print(len(calls), hasattr(net, 'seen'))\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.split() == ["0", "False"]
