"""open_clip: a model of two towers, or one of them, from a configuration of its own format."""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compilewatch.contract.libraries import LibraryModel
from compilewatch.errors import ConfigError
from compilewatch.files import read_json_object
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model import replaced
from compilewatch.worker.model.libraries import BATCH, Arguments, Construct, Library
from compilewatch.worker.model.shrink import MIN_LAYERS, drop_repeated, reduce_depth

_ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}

TEXT_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta-base": ("RobertaConfig", {"vocab_size": 50265, **_ROBERTA}),
    "xlm-roberta-base": ("XLMRobertaConfig", {"vocab_size": 250002, **_ROBERTA}),
    "xlm-roberta-large": (
        "XLMRobertaConfig",
        {"vocab_size": 250002, **_ROBERTA, **_LARGE, "intermediate_size": 4096},
    ),
    "google/mt5-base": (
        "MT5Config",
        {"vocab_size": 250112, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
    ),
    "google/mt5-xl": (
        "MT5Config",
        {"vocab_size": 250112, "d_model": 2048, "d_ff": 5120, "num_layers": 24, "num_heads": 32},
    ),
    "facebook/nllb-200-distilled-600M": ("M2M100Config", {"vocab_size": 256206, "d_model": 1024}),
    "facebook/nllb-200-distilled-1.3B": (
        "M2M100Config",
        {
            "vocab_size": 256206,
            "d_model": 1024,
            "encoder_layers": 24,
            "decoder_layers": 24,
            "encoder_ffn_dim": 8192,
            "decoder_ffn_dim": 8192,
        },
    ),
}
"""Repositories that configurations name as their text tower: the class and what differs from its
defaults. open_clip downloads these configurations, and workers are offline: they were written by
hand and not compared with the repositories."""


TOWERS = {"visual": "vision", "text": "text"}
"""The parts of a model, which end its name (`ViT-B-32:visual`), with the task of each."""


class OpenClip(Library):
    """A configuration of the package, or the `open_clip_config.json` of a repository."""

    def models(self) -> Iterator[LibraryModel]:
        """Yield each model of two towers and, not selected by default, each tower by itself."""
        import open_clip

        for name in sorted(open_clip.list_models(), key="{}.json".format):  # as its files
            family = _family(open_clip.get_model_config(name))
            yield LibraryModel(name=name, family=family, task="multimodal")
            for tower, task in TOWERS.items():
                yield LibraryModel(name=f"{name}:{tower}", family=family, task=task, selected=False)

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        name, _, tower = build.name.partition(":")
        values = _model_configuration(build, name)
        for part in ("vision_cfg", "text_cfg", "multimodal_cfg") if depth is Depth.REDUCED else ():
            layers = values.get(part, {}).get("layers")
            if isinstance(layers, list):
                values[part]["layers"] = [min(count, MIN_LAYERS) for count in layers]
            elif isinstance(layers, int):
                values[part]["layers"] = min(layers, MIN_LAYERS)

        def construct() -> nn.Module:
            with _text_configurations(depth):
                module = _create(copy.deepcopy(values))
            module = drop_repeated(module) if depth is Depth.REDUCED else module
            if tower in ("", "visual"):
                return module.visual if tower else module
            if isinstance(getattr(module, "text", None), nn.Module):
                return module.text
            module.visual = None
            return TextTower(module)

        return construct

    def inputs(self, module: nn.Module, build: LibraryBuild) -> Arguments | None:
        del module
        name, _, tower = build.name.partition(":")
        values = _model_configuration(build, name)
        side = values["vision_cfg"].get("image_size", 224)
        height, width = side if isinstance(side, list) else (side, side)
        text = values["text_cfg"]
        vocabulary = text.get("vocab_size", 1000)
        image = torch.randn(BATCH, 3, height, width)
        # Zero is the padding of most vocabularies; the highest id ends a text.
        ids = torch.randint(3, min(vocabulary, 1000), (BATCH, text.get("context_length", 77)))
        ids[:, -1] = vocabulary - 1 if "vocab_size" in text else 2
        if tower:
            return (image if tower == "visual" else ids,)
        return {"image": image, "text": ids}


class TextTower(nn.Module):  # type: ignore[misc]
    """The text tower of a model that has its parts among its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.model.encode_text(text)
        return features


def _family(values: dict[str, Any]) -> str:
    """What makes the visual tower: `vit`, `resnet`, `coca`, or timm's name of its architecture."""
    vision = values.get("vision_cfg", {})
    if "multimodal_cfg" in values:
        return "coca"
    if name := vision.get("timm_model_name"):
        return str(name).partition("_")[0]
    return "resnet" if isinstance(vision.get("layers"), list) else "vit"


def _model_configuration(build: LibraryBuild, name: str) -> dict[str, Any]:
    import open_clip

    if build.configuration:
        values = read_json_object(Path(build.configuration))
        values = values.get("model_cfg", values)
    else:
        values = open_clip.get_model_config(name)
    if not values and not build.configuration:
        raise ConfigError(f"open_clip {open_clip.__version__} has no configuration {name!r}")
    missing = [field for field in ("embed_dim", "vision_cfg", "text_cfg") if not values.get(field)]
    if missing:
        raise ConfigError(
            f"{name}: open_clip cannot build it, because its configuration lacks "
            f"{', '.join(missing)}: complete {build.configuration or 'it'}"
        )
    return copy.deepcopy(values)


def _create(values: dict[str, Any]) -> nn.Module:
    """Choose the class as `open_clip.create_model` does, which would read files of weights."""
    from open_clip.coca_model import CoCa
    from open_clip.model import CLIP, CustomTextCLIP

    if "timm_model_name" in values["vision_cfg"]:
        values["vision_cfg"]["timm_model_pretrained"] = False
    from_hub = "hf_model_name" in values["text_cfg"]
    if from_hub:
        values["text_cfg"]["hf_model_pretrained"] = False
    custom = values.pop("custom_text", False) or from_hub
    chosen = (CoCa if "multimodal_cfg" in values else CustomTextCLIP) if custom else CLIP
    module: nn.Module = chosen(**values)
    return module


def _text_configurations(depth: Depth) -> AbstractContextManager[None]:
    """While active, open_clip finds the configurations of TEXT_CONFIGS without the network."""
    import transformers
    from open_clip import hf_model

    original = hf_model.AutoConfig

    class Known:
        """In place of `AutoConfig` in open_clip's module."""

        @staticmethod
        def from_pretrained(name: str, *arguments: Any, **options: Any) -> Any:
            if name not in TEXT_CONFIGS:
                try:
                    return original.from_pretrained(name, *arguments, **options)
                except OSError:
                    known = ", ".join(TEXT_CONFIGS)
                    raise ConfigError(
                        f"the configuration of the text tower {name} is not in the cache of the "
                        f"Hub, and workers are offline; known without it: {known}"
                    ) from None
            class_name, values = TEXT_CONFIGS[name]
            config = getattr(transformers, class_name)(**values)
            if depth is Depth.REDUCED:
                reduce_depth(config)
            return config

    return replaced(hf_model, "AutoConfig", Known)
