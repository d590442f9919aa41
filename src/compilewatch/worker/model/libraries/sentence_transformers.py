"""sentence-transformers: the whole chain of modules that the folder of a repository configures."""

import copy
import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compilewatch.errors import ConfigError
from compilewatch.files import DamagedError, from_json, read_json_object
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model import replaced
from compilewatch.worker.model.libraries import BATCH, Construct, Library
from compilewatch.worker.model.shrink import reduce_depth

LENGTH = 32
"""Tokens of a text."""

TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
"""How a model of text is called, as the library infers it from a tokenizer."""

_ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
"""Models of two stacks of which the library takes the encoder, as its `_load_model` does."""


class SentenceTransformers(Library):
    """The modules of a `modules.json` in sequence; no tokenizer and no weights are read."""

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        import sentence_transformers

        if not build.configuration:
            raise ConfigError(f"{build.name}: a folder with its modules.json is needed")
        folder = Path(build.configuration)
        chain = _chain(folder)

        def construct() -> nn.Module:
            modules = [_module(folder, entry, depth) for entry in chain]
            where = torch.empty(0).device.type  # the constructor would move them elsewhere
            model: nn.Module = sentence_transformers.SentenceTransformer(
                modules=modules, device=where
            )
            return model

        return construct

    def inputs(self, module: nn.Module, build: LibraryBuild) -> dict[str, Any] | None:
        del build
        first = next(iter(module.children()))
        config = getattr(getattr(first, "model", None), "config", None)
        if config is None:
            return None
        ids = torch.randint(5, min(config.vocab_size, 1000), (BATCH, LENGTH))
        features = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        # A batch of texts of two lengths, as a tokenizer pads it.
        features["attention_mask"][-1, LENGTH // 2 :] = 0
        return {"input": features}


def _chain(folder: Path) -> list[dict[str, Any]]:
    file = folder / "modules.json"
    try:
        return from_json(file.read_bytes(), list[dict[str, Any]])
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except DamagedError as error:
        raise ConfigError(f"{file}: not a list of modules: {error}") from None


def _module(folder: Path, entry: dict[str, Any], depth: Depth) -> nn.Module:
    from sentence_transformers.sentence_transformer import modules

    kind = str(entry.get("type", ""))
    place = folder / str(entry.get("path", ""))
    name = kind.rpartition(".")[2]
    if name == "Transformer":
        return _transformer(place, depth)
    if name == "Normalize":
        return modules.Normalize()
    values = read_json_object(place / "config.json")
    chosen = getattr(modules, name, None)
    if chosen is None:
        raise ConfigError(f"{folder}/modules.json: sentence-transformers has no module {kind}")
    if name == "Pooling":
        return chosen(**_pooling(values))
    if name == "Dense":
        values["activation_function"] = _activation(values.get("activation_function"))
    return chosen(**values)


def _pooling(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Pooling` from a configuration of either format."""
    if "embedding_dimension" in values:
        return values
    modes = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
        "pooling_mode_lasttoken": "lasttoken",
    }
    chosen = tuple(mode for key, mode in modes.items() if values.get(key))
    arguments = {"embedding_dimension": values["word_embedding_dimension"], "pooling_mode": chosen}
    if "include_prompt" in values:
        arguments["include_prompt"] = values["include_prompt"]
    return arguments


def _activation(name: str | None) -> nn.Module | None:
    if not name or not name.startswith("torch.nn."):
        return None
    module, _, attribute = name.rpartition(".")
    function: nn.Module = getattr(importlib.import_module(module), attribute)()
    return function


def _transformer(folder: Path, depth: Depth) -> nn.Module:
    import transformers
    from sentence_transformers.base.modules import transformer as library
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = read_json_object(folder / "config.json")
    kind = values.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise ConfigError(
            f"{folder}: transformers {transformers.__version__} has no model type {kind!r}"
        )
    config = CONFIG_MAPPING[kind].from_dict(values)
    if depth is Depth.REDUCED:
        reduce_depth(config)

    class Configured(library.Transformer):  # type: ignore[misc]
        """The library's module, with a configuration in place of files."""

        def _load_config(self, *_: Any, **__: Any) -> tuple[Any, bool]:
            return copy.deepcopy(config), False

        def _load_model(self, *_: Any, **__: Any) -> nn.Module:
            if kind in _ENCODERS:
                return getattr(transformers, _ENCODERS[kind])(config)
            return AutoModel.from_config(copy.deepcopy(config))

    class Processors:
        """In place of `AutoProcessor`: an empty tokenizer."""

        @staticmethod
        def from_pretrained(*_: Any, **__: Any) -> Any:
            return _tokenizer()

    with replaced(library, "AutoProcessor", Processors):
        module: nn.Module = Configured(
            str(folder), modality_config=TEXT, module_output_name="token_embeddings"
        )
        return module


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    empty = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=empty, unk_token="[UNK]", pad_token="[PAD]")
