"""Inputs of diffusers' models, from the names of arguments and the fields of the configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from compilewatch.worker.model.libraries import BATCH, Call
from compilewatch.worker.model.libraries.diffusers_special import SPECIAL

TOKENS = 16
"""Tokens of a text."""

SIDE = 16
"""Height and width of latents, unless the class fixes them."""

IMAGE = 64
"""Height and width of an image for an autoencoder."""

FRAMES = 9
"""Frames of a video for an autoencoder: one, and a multiple of each compression ratio."""

LATENT_FRAMES = 3
"""Frames of the latents of a video."""

SAMPLES = 2**16
"""Samples of a sound for an autoencoder: more than a second, and a multiple of each ratio."""

TEXT_WIDTH = (
    "caption_channels",
    "text_embed_dim",
    "joint_attention_dim",
    "text_dim",
    "cap_feat_dim",
    "encoder_hid_dim",
    "context_in_dim",
    "encoder_hidden_size",
    "cross_attention_dim",
    "in_text_dim",
    "text_encoder_dim",
    "condition_dim",
)
"""Fields with the width of the text's features, the decisive one first."""


@dataclass(frozen=True)
class Facts:
    """A model, and what its configuration says."""

    module: nn.Module
    parameters: dict[str, inspect.Parameter]

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first field that is set; of a list, its first entry."""
        config = self.module.config
        for name in names:
            value = config.get(name)
            if value is not None:
                return value[0] if isinstance(value, (list, tuple)) else value
        return default

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @property
    def channels(self) -> int:
        return int(self.get("in_channels", "in_dim", "latent_channels", default=4))

    @property
    def is_packed(self) -> bool:
        """Whether images are sequences of patches, which the caller makes."""
        return bool({"img_ids", "img_shapes"} & self.parameters.keys())

    @property
    def is_video(self) -> bool:
        patch = self.module.config.get("patch_size")
        fields = ("patch_size_t", "sample_frames", "num_frames", "video_length")
        return (
            "3D" in self.name
            or (isinstance(patch, (list, tuple)) and len(patch) == 3)
            or any(self.module.config.get(part) is not None for part in fields)
            or any(isinstance(part, nn.Conv3d) for part in self.module.modules())
        )

    @property
    def takes_control(self) -> bool:
        return "controlnet_cond" in self.parameters

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.module.forward) or ""

    @property
    def side(self) -> int:
        return SIDE


Rule = Callable[[Facts], Any]


def call_of(module: nn.Module) -> Call:
    """Return the arguments that a model of diffusers needs."""
    parts = getattr(module, "nets", None) or getattr(module, "adapters", None)
    if not hasattr(module, "config") and parts is not None:
        return _call_of_several(module, list(parts))
    parameters = dict(inspect.signature(module.forward).parameters)
    facts = Facts(module, parameters)
    special = SPECIAL.get(facts.name)
    values: dict[str, Any] = special(facts) if special is not None else {}
    for name, parameter in parameters.items():
        if name in values:
            continue
        argument = RULES[name](facts) if name in RULES else None
        if argument is None and parameter.default is inspect.Parameter.empty:
            argument = _documented(facts, name)
        if argument is not None:
            values[name] = argument
    return Call(kwargs={name: value for name, value in values.items() if value is not None})


def _call_of_several(module: nn.Module, parts: list[nn.Module]) -> Call:
    """The arguments of one part, with a condition and a weight for each part of a container."""
    values = call_of(parts[0]).kwargs
    takes = inspect.signature(module.forward).parameters
    if "xs" in takes:
        return Call(kwargs={"xs": [values["x"]] * len(parts)})
    values["controlnet_cond"] = [values["controlnet_cond"]] * len(parts)
    values["conditioning_scale"] = [1.0] * len(parts)
    if "controlnet_mode" in takes:
        values["controlnet_mode"] = [values["controlnet_mode"]] * len(parts)
    return Call(kwargs=values)


def _documented(facts: Facts, name: str) -> torch.Tensor | None:
    """An argument whose docstring gives its shape in fields of the configuration."""
    shape_text = re.search(
        rf"^\s*{name} \(.*?shape `?\((?P<shape>[^)]*)\)", facts.doc, re.MULTILINE
    )
    if shape_text is None:
        return None
    sizes = [_size(facts, dimension.strip()) for dimension in shape_text["shape"].split(",")]
    if None in sizes:
        return None
    shape = [size for size in sizes if size is not None]
    if name.endswith("ids"):
        return torch.randint(0, 1000, shape)
    return torch.randn(shape)


def _size(facts: Facts, dimension: str) -> int | None:
    known = facts.get(dimension)
    if isinstance(known, int):
        return known
    if dimension.startswith("batch"):
        return BATCH
    return TOKENS if "sequence" in dimension or dimension == "length" else None


def _hidden_states(facts: Facts) -> torch.Tensor:
    if facts.is_packed:
        return torch.randn(BATCH, facts.side**2, facts.channels)
    if facts.is_video:
        return torch.randn(BATCH, facts.channels, LATENT_FRAMES, facts.side, facts.side)
    return torch.randn(BATCH, facts.channels, facts.side, facts.side)


def _sample(facts: Facts) -> torch.Tensor:
    """What an autoencoder encodes, as its first convolution takes it, or the latents of a U-Net."""
    if not (hasattr(facts.module, "encode") or hasattr(facts.module, "encoder")):
        return _hidden_states(facts)
    channels = int(facts.get("in_channels", "input_channels", "audio_channels", default=3))
    for layer in facts.module.modules():
        if isinstance(layer, nn.Conv3d):
            return torch.rand(BATCH, channels, FRAMES, IMAGE, IMAGE)
        if isinstance(layer, nn.Conv2d):
            return torch.rand(BATCH, channels, IMAGE, IMAGE)
        if isinstance(layer, nn.Conv1d):
            channels = int(facts.get("audio_channels", "num_channels", "in_channels", default=1))
            return torch.rand(BATCH, channels, SAMPLES)
    return _hidden_states(facts)


def _text(facts: Facts) -> torch.Tensor:
    return torch.randn(BATCH, TOKENS, int(facts.get(*TEXT_WIDTH, default=768)))


def _mask(facts: Facts) -> torch.Tensor:
    del facts
    return torch.ones(BATCH, TOKENS, dtype=torch.bool)


def _timestep(facts: Facts) -> torch.Tensor:
    del facts
    return torch.full((BATCH,), 500)


def _pooled(facts: Facts) -> torch.Tensor | None:
    width = facts.get("pooled_projection_dim")
    return torch.randn(BATCH, width) if width else None


def _guidance(facts: Facts) -> torch.Tensor | None:
    return torch.full((BATCH,), 3.5) if facts.get("guidance_embeds") else None


def _class_labels(facts: Facts) -> torch.Tensor | None:
    kinds = facts.get("num_class_embeds", "num_embeds_ada_norm")
    return torch.tensor([1] * BATCH) if kinds else None


def _added(facts: Facts) -> dict[str, torch.Tensor] | None:
    """The pooled text and the sizes of the image of a U-Net that embeds them."""
    if facts.get("addition_embed_type") != "text_time":
        return None
    width = facts.get("projection_class_embeddings_input_dim")
    sizes = 6 * facts.get("addition_time_embed_dim")
    return {"text_embeds": torch.randn(BATCH, width - sizes), "time_ids": torch.ones(BATCH, 6)}


def _control(facts: Facts) -> torch.Tensor:
    """The condition of a control network: an image for a U-Net, latents for a transformer."""
    if "conditioning_embedding_out_channels" in facts.module.config or hasattr(
        facts.module, "controlnet_cond_embedding"
    ):
        return torch.rand(BATCH, 3, 8 * facts.side, 8 * facts.side)
    return _hidden_states(facts)


def _ids(facts: Facts, *, text: bool = False) -> torch.Tensor:
    """The place of each token on each axis: none of a text, rows and columns of an image."""
    axes = facts.module.config.get("axes_dims_rope") or (0, 0, 0)
    count = TOKENS if text else facts.side**2
    ids = torch.zeros(count, len(axes))
    if not text:
        ids[:, 1] = torch.arange(count) // SIDE
        ids[:, 2] = torch.arange(count) % SIDE
    return ids


def _image_features(facts: Facts) -> torch.Tensor | None:
    width = facts.get("image_dim")
    return torch.randn(BATCH, 257, width) if width else None


def _pair(facts: Facts) -> torch.Tensor:
    del facts
    return torch.tensor([[512.0, 512.0]] * BATCH)


RULES: dict[str, Rule] = {
    "added_cond_kwargs": _added,
    "class_labels": _class_labels,
    "controlnet_cond": _control,
    "crop_coords": lambda _: torch.zeros(BATCH, 2),
    "encoder_attention_mask": _mask,
    "encoder_hidden_states": _text,
    "encoder_hidden_states_mask": _mask,
    "guidance": _guidance,
    "hidden_states": _hidden_states,
    "encoder_hidden_states_image": _image_features,
    "img_ids": _ids,
    "img_shapes": lambda facts: [[(1, facts.side, facts.side)]] * BATCH,
    "original_size": _pair,
    "pooled_projections": _pooled,
    "sample": _sample,
    "target_size": _pair,
    "timestep": _timestep,
    "txt_ids": lambda facts: _ids(facts, text=True),
    "x": _sample,
}
"""Arguments by name. Others keep their defaults."""
