"""Modules of no known library: what is guessed for them, from each kind of evidence."""

from collections.abc import Callable
from pathlib import Path
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


Shapes = dict[str, tuple[int, ...]]
CASES: list[Any] = []
"""Modules, and the shapes that are guessed for each."""


class Methods(nn.Module):
    def on_the_right(self, extra: Tensor | None) -> Tensor:
        assert extra is not None
        return self.right(extra)


def made(forward: Any, **parts: Any) -> nn.Module:
    """A module with this forward and these parts."""
    module: nn.Module = type(forward.__name__.title(), (Methods,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def case(shapes: Shapes, **parts: Any) -> Callable[[Any], Any]:
    def add(forward: Any) -> Any:
        CASES.append(pytest.param(made(forward, **parts), shapes, id=forward.__name__))
        return forward

    return add


class Forwards(Methods):
    """One for each kind of evidence; their docstrings belong to it."""

    @case({"x": (2, 32)})
    def returns(self, x: Any) -> Any:
        return x

    @case(
        {"x": (2, 4, 48, 48)},
        img_size=48,
        stem=nn.Sequential(nn.Identity(), nn.Conv2d(4, 8, 3, padding=1)),
    )
    def image(self, x: Tensor) -> Tensor:
        assert x.shape[-1] == self.img_size, "another size"
        return self.stem(x)

    @case({"x": (2, 1600)}, linear=nn.Linear(1600, 3), default_cfg={"input_size": (1, 40, 40)})
    def configured(self, x: Tensor) -> Tensor:
        return self.linear(x.reshape(len(x), -1))

    @case({"x": (5, 7)}, example_input_array=torch.zeros(5, 7))
    def example(self, x: Tensor) -> Tensor:
        return x.reshape(5, 7) + 1

    @case({"frames": (2, 3, 8, 64, 64)})
    def unpacked(self, frames: Tensor) -> Tensor:
        b, t, c, h, w = frames.shape
        return frames.reshape(b * t, c, h, w)

    @case({"ids": (2, 32), "extra": (2, 6)}, embed=nn.Embedding(11, 4), linear=nn.Linear(6, 4))
    def unchecked(
        self, ids: Tensor, extra: Tensor | None = None, scale: Tensor | None = None
    ) -> Any:
        """Needs its second argument, although it has a default."""
        found = self.embed(ids).mean(1) + self.linear(extra)
        return found if scale is None else found * scale

    @case(
        {"image": (2, 3, 64, 64), "text": (2, 32)},
        visual=nn.Conv2d(3, 4, 8),
        words=nn.Embedding(20, 4),
    )
    def optional(self, image: Tensor | None = None, text: Tensor | None = None) -> Any:
        """Takes an image, a text, or both; with neither it returns nothing."""
        seen = self.visual(image) if image is not None else None
        return seen, self.words(text) if text is not None else None

    @case(
        {"batch.image": (2, 3, 64, 64), "batch.features": (2, 5)},
        conv=nn.Conv2d(3, 4, 3),
        linear=nn.Linear(5, 4),
    )
    def batch(self, batch: dict[str, Tensor]) -> Tensor:
        return self.conv(batch["image"]).mean((2, 3)) + self.linear(batch["features"])

    @case({"images[0]": (3, 64, 64), "images[1]": (3, 64, 64)}, conv=nn.Conv2d(3, 4, 3))
    def detector(self, images: list[Tensor], targets: list[dict[str, Tensor]] | None = None) -> Any:
        return [self.conv(image[None]) for image in images]

    @case(
        {"x": (16, 6), "edge_index": (2, 32), "edge_attr": (32, 3), "batch": (16,)},
        linear=nn.Linear(6, 4),
        edges=nn.Linear(3, 4),
    )
    def graph(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        message = self.linear(x)[edge_index[0]] + self.edges(edge_attr)
        nodes = torch.zeros(len(x), 4).index_add(0, edge_index[1], message)
        return torch.zeros(2, 4).index_add(0, batch, nodes)

    @case({"data.x": (16, 6), "data.edge_index": (2, 32)}, linear=nn.Linear(6, 4))
    def data(self, data: Any) -> Tensor:
        x, edge_index = data.x, data.edge_index
        return self.linear(x)[edge_index[0]]

    @case({"left": (2, 10), "right": (2, 10)}, linear=nn.Linear(20, 2))
    def pair(self, left: Tensor, right: Tensor) -> Tensor:
        return self.linear(torch.cat([left, right], dim=-1))

    @case({"args[0]": (2, 10), "args[1]": (2, 10)}, inner=made(pair, linear=nn.Linear(20, 2)))
    def wrapper(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)

    @case({"input_ids": (2, 32)}, embedding=nn.Embedding(50, 4))
    def named(self, input_ids: Tensor) -> Tensor:
        """Names its argument as Transformers does."""
        return self.embedding(input_ids)

    @case({"image": (2, 3, 64, 64), "scale": (2, 4)}, conv=nn.Conv2d(3, 4, 3))
    def scaled(self, image: Tensor, scale: Tensor) -> Tensor:
        """Only a message says that its second argument must fit what the convolution returns."""
        return self.conv(image) * scale[:, :, None, None]

    @case({"x": (2, 13)}, weight=nn.Parameter(torch.zeros(3, 13)))
    def of_a_weight(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)

    @case({"thing": (2, 32)})
    def ids(self, thing: Tensor) -> Tensor:
        """Nothing but a message says that its argument contains ids."""
        return functional.one_hot(thing % 5, 5)

    @case(
        {"x": (2, 3), "extra": (2, 5)},
        left=nn.Linear(3, 4),
        right=nn.Linear(5, 4),
    )
    def asserted(self, x: Tensor, extra: Tensor | None = None) -> Tensor:
        """Says in an assertion of another method what it needs."""
        if extra is None and x.ndim == 3:
            return self.left(x)
        return self.left(x) + self.on_the_right(extra)

    @case({"x": (2, 2, 64, 64), "time": (2,)}, conv=nn.Conv2d(2, 2, 1), steps=nn.Embedding(10, 2))
    def diffusion(self, x: Tensor, time: Tensor) -> Tensor:
        return self.conv(x) + self.steps(time)[:, :, None, None]

    @case({"feats": (2, 64, 7)}, conv=nn.Conv1d(7, 2, 3))
    def transposed(self, feats: Tensor) -> Tensor:
        return self.conv(feats.transpose(1, 2))

    @case({"input": (2, 2, 16000)}, audio_channels=2, conv=nn.Conv2d(4, 8, 1))
    def spectral(self, input: Tensor) -> Tensor:
        """Sound whose first layer takes a spectrum of it."""
        batch, channels, samples = input.shape
        spectrum = input[..., :1024].reshape(batch, channels, 16, 64)
        return self.conv(torch.cat([spectrum, spectrum], dim=1)) * samples

    @case({"features": (2, 100, 40), "lengths": (2,)}, linear=nn.Linear(40, 4))
    def speech(self, features: Tensor, lengths: Tensor) -> Tensor:
        steps = torch.arange(features.shape[1])
        assert int(lengths.max()) == features.shape[1], "padding without any row that needs it"
        return self.linear(features) * (steps < lengths[:, None])[..., None]

    @case(
        {"latents": (2, 4, 64, 64), "encoder_hidden_states": (2, 32, 6)},
        conv=nn.Conv2d(4, 8, 1),
        text=nn.Linear(6, 8),
    )
    def prompted(self, latents: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        pooled = self.text(encoder_hidden_states).reshape(len(latents), -1, 8).mean(1)
        return self.conv(latents) + pooled[..., None, None]

    def broken(self, x: Tensor) -> Tensor:
        raise RuntimeError("always")

    def own_tensors(self) -> Tensor:
        return torch.ones(2)

    def flag(self, verbose: bool = False) -> Tensor:
        return torch.ones(2)


OF_TORCH: list[tuple[nn.Module, Shapes]] = [
    (nn.Linear(7, 3), {"input": (2, 7)}),
    (nn.GRU(3, 4), {"input": (2, 32, 3)}),
    (nn.LayerNorm(9), {"input": (2, 32, 9)}),
    (nn.TransformerEncoderLayer(8, 2), {"src": (2, 32, 8)}),
    (nn.Bilinear(5, 6, 7), {"input1": (2, 5), "input2": (2, 6)}),
    (nn.MultiheadAttention(8, 2), dict.fromkeys(("query", "key", "value"), (2, 32, 8))),
    (nn.Conv3d(2, 3, 3), {"input": (2, 2, 8, 64, 64)}),
    (nn.Sequential(nn.Flatten(), nn.Linear(12, 3)), {"input": (2, 12)}),
]


@pytest.mark.parametrize(("module", "shapes"), [*CASES, *OF_TORCH])
def test_what_is_guessed_runs(make: Make, module: nn.Module, shapes: Shapes) -> None:
    inputs = make(module, build=OWN)
    assert {each.name: each.shape for each in summarize(inputs)} == shapes
    assert inputs.strategy == "guess"
    assert len(inputs.guessed) == len(shapes)
    # Two rows of indices are no batch.
    assert ("edge_index" in shapes) <= (inputs.dynamic_shapes == {})
    forward(module, inputs)


def test_a_guess_is_tried_on_fake_tensors_and_all_it_holds_is_fake(make: Make) -> None:
    mode = InputAwareFakeMode()
    for kind, linear in ((Forwards.pair, (20, 2)), (Forwards.data, (6, 4))):
        module = to_fake(made(kind, linear=nn.Linear(*linear)), mode)
        values = make(module, build=OWN, fake_mode=mode).kwargs
        values = attributes_of(values.get("data")) or values
        assert all(isinstance(value, FakeTensor) for value in values.values())


def test_a_wrong_guess_says_what_was_guessed_and_what_to_type(make: Make) -> None:
    with pytest.raises(WrongGuessError) as caught:
        make(made(Forwards.broken), build=OWN)
    message = str(caught.value)
    assert "x [2, 32] float (a plain tensor)" in message
    assert "RuntimeError: always: `compilewatch inputs model --save FILE`" in message
    assert caught.value.made.kwargs["x"].shape == (2, 32)


def test_a_call_without_any_tensor_is_rejected_but_of_a_forward_without_arguments(
    make: Make, tmp_path: Path
) -> None:
    inputs = make(made(Forwards.own_tensors), build=OWN)
    assert (inputs.args, inputs.kwargs) == ((), {})
    with pytest.raises(UnknownArgumentsError, match="no tensor would reach the model: `compilewat"):
        make(made(Forwards.flag), build=OWN)
    path = tmp_path / "inputs.toml"
    path.write_text("schema = 1\n")
    with pytest.raises(InputsError, match="no tensor would reach the model"):
        make(made(Forwards.returns), inputs_file=str(path))
