"""From a request's build to a model class and its complete configuration, before reduction."""

from __future__ import annotations

import copy
import importlib
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from compilewatch.files import read_json_object
from compilewatch.records import ClassBuild, ConfigBuild, Request
from compilewatch.worker.model.overrides import Override

_TOKEN_NAME = re.compile(r"(image|video|audio|speech|vision|boi|eoi|boa|eoa)\w*_(id|index)")
_VOCABULARY_STEP = 64


class MissingPackageError(Exception):
    """The model needs a package that is not in this environment; the argument is its name."""

    @property
    def package(self) -> str:
        return str(self.args[0])


class UnknownArchitectureError(Exception):
    """The installed Transformers does not have the class or model type."""


def library_class(name: str) -> type[nn.Module]:
    """Return a class of the installed Transformers.

    Raises UnknownArchitectureError, or MissingPackageError if only a placeholder is exported.
    """
    import transformers

    try:
        model_class = getattr(transformers, name)
    except AttributeError:
        raise UnknownArchitectureError(
            f"transformers {transformers.__version__} has no class {name!r}"
        ) from None
    except (ImportError, RuntimeError) as error:
        raise missing_package(error) or error from None
    if getattr(model_class, "is_dummy", False):
        try:
            model_class.config_class  # noqa: B018  any public attribute of a placeholder raises
        except ImportError as error:
            raise missing_package(error) or error from None
    if not (isinstance(model_class, type) and issubclass(model_class, nn.Module)):
        raise UnknownArchitectureError(f"transformers.{name} is not a model class")
    return model_class


def missing_package(error: BaseException) -> MissingPackageError | None:
    """Return the missing package from an import error of Transformers or Python."""
    names = re.findall(
        r"requires the (\w+) library|requires (\w+) to be installed|No module named '(\w+)"
        r"|requires '([\w-]+)",
        str(error),
    )
    # A vision wrapper requires PIL before the package it wraps, so the last match is the right one.
    return MissingPackageError(next(n for n in names[-1] if n)) if names else None


def configuration_class(model_class: Any) -> Any:
    """Return a model class's configuration class: as declared, or as annotated in `__init__`.

    A class that inherits the declaration of its composite model takes the part with its own name.
    """
    declared = getattr(model_class, "config_class", None)
    if declared is not None:
        return configuration_part(model_class.__name__, declared)
    for base in model_class.__mro__:
        if "__init__" in vars(base):
            annotated = typing.get_type_hints(base.__init__).get("config")
            if annotated is not None:
                return annotated
    raise UnknownArchitectureError(f"{model_class.__name__} declares no configuration class")


def configuration_part(class_name: str, declared: Any) -> Any:
    """Return the part of a declared configuration class that a model class is named after.

    `GemmaVisionModel` inherits `GemmaConfig` in some releases, and takes its `GemmaVisionConfig`.
    Without such a part, the declared class is returned.
    """
    parts = [declared, *_parts_of(declared)]
    named = [part for part in parts if class_name.startswith(_stem(part))]
    return max(named, key=lambda part: len(_stem(part)), default=declared)


def _parts_of(config_class: Any) -> Iterator[Any]:
    for part in getattr(config_class, "sub_configs", {}).values():
        # A part of any type is declared as `AutoConfig`, which has no parts.
        if isinstance(part, type) and hasattr(part, "model_type"):
            yield part
            yield from _parts_of(part)


def _stem(config_class: Any) -> str:
    return str(config_class.__name__).removesuffix("Config")


def resolve(request: Request, overrides: list[Override]) -> tuple[Any, Any]:
    """Return class and configuration for a library class or a config.json.

    `overrides` are those for the class; their `defaults` apply to configurations from defaults.
    """
    build = request.model.build
    if isinstance(build, ClassBuild):
        model_class: Any = library_class(build.class_name)
        defaults: dict[str, Any] = {}
        for override in overrides:
            defaults = _merged(defaults, override.defaults)
        # A configuration may take its parts out of the tables that it is given.
        config = configuration_class(model_class)(**copy.deepcopy(defaults))
    elif isinstance(build, ConfigBuild):
        model_class, config = _from_file(build, request)
    else:
        raise TypeError(f"{type(build).__name__} has no configuration")
    for owner in sub_configs(config):
        _fill_conventions(owner)
        _hold_placeholders(owner)
    return model_class, config


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge nested tables key by key, so that two overrides can fill one sub-configuration."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def sub_configs(config: Any, _seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a configuration and all sub-configurations once, the deepest first."""
    seen = set() if _seen is None else _seen
    if id(config) in seen:
        return
    seen.add(id(config))
    for value in list(vars(config).values()):
        if is_config(value):
            yield from sub_configs(value, seen)
    yield config


def is_config(value: Any) -> bool:
    return hasattr(value, "model_type") and hasattr(value, "to_dict")


def _fill_conventions(config: Any) -> None:
    """Compute fields for which None has a conventional meaning that some models do not handle."""
    fields = vars(config)
    hidden, heads = fields.get("hidden_size"), fields.get("num_attention_heads")
    if not (isinstance(hidden, int) and isinstance(heads, int) and heads > 0):
        return
    if "head_dim" in fields and fields["head_dim"] is None and hidden % heads == 0:
        config.head_dim = hidden // heads
    if "num_key_value_heads" in fields and fields["num_key_value_heads"] is None:
        config.num_key_value_heads = heads


def _hold_placeholders(config: Any) -> None:
    """Enlarge a vocabulary that is too small for the placeholder tokens that its parent names.

    Processors add such tokens and callers resize the embeddings; a configuration alone cannot.
    """
    tokens = [
        value
        for name, value in vars(config).items()
        if _TOKEN_NAME.fullmatch(name) and isinstance(value, int)
    ]
    text = vars(config).get("text_config")
    if not tokens or not is_config(text):
        return
    size = vars(text).get("vocab_size")
    if isinstance(size, int) and size <= max(tokens):
        text.vocab_size = -(-(max(tokens) + 1) // _VOCABULARY_STEP) * _VOCABULARY_STEP


def _from_file(build: ConfigBuild, request: Request) -> tuple[Any, Any]:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = read_json_object(Path(build.config_file))
    if build.trust_remote_code and values.get("auto_map"):
        return _remote_class(build, request, values)
    # The storage format of weights is not part of the architecture, and no weights are loaded.
    values.pop("quantization_config", None)
    names = [build.class_name, request.model.architecture, *(values.get("architectures") or ())]
    name = next((n for n in names if n), None)
    model_type = values.get("model_type")
    if build.class_module is not None:
        model_class: Any = _package_class(build.class_module, str(name))
        return model_class, configuration_class(model_class).from_dict(values)
    if model_type in CONFIG_MAPPING:
        config = CONFIG_MAPPING[model_type].from_dict(values)
        model_class = library_class(name) if name else _base_class(config)
    elif name is not None and hasattr(transformers, name):
        model_class = library_class(name)
        config = configuration_class(model_class).from_dict(values)
    else:
        needed = "remote code" if values.get("auto_map") else "another version of transformers"
        raise UnknownArchitectureError(
            f"transformers {transformers.__version__} has no model type {model_type!r}: "
            f"this model needs {needed}"
        )
    config_class = configuration_class(model_class)
    part = next((c for c in sub_configs(config) if type(c) is config_class), config)
    return model_class, part


def _package_class(module: str, name: str) -> Any:
    """Return a class of another package. Raises ImportError if the package is not installed."""
    model_class = getattr(importlib.import_module(module), name, None)
    if model_class is None:
        raise UnknownArchitectureError(f"{module} has no class {name!r}")
    return model_class


def _base_class(config: Any) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if type(config) not in MODEL_MAPPING:
        raise UnknownArchitectureError(f"model type {config.model_type!r} has no base model")
    model_class = MODEL_MAPPING[type(config)]
    return model_class[0] if isinstance(model_class, tuple) else model_class


def _remote_class(build: ConfigBuild, request: Request, values: dict[str, Any]) -> tuple[Any, Any]:
    """Return classes from a repository's code, which is only reached if a person listed it."""
    from transformers import AutoConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    source = weights_source(build)
    revision = request.model.revision if build.repo else None
    config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=True)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    models = {k: v for k, v in values["auto_map"].items() if k.startswith("AutoModel")}
    names = [build.class_name, request.model.architecture, *(values.get("architectures") or ())]
    chosen = [ref for ref in models.values() if ref.rpartition(".")[2] in names]
    reference = next(iter([*chosen, *models.values()]), None)
    if reference is None:
        raise UnknownArchitectureError(f"{source}: its auto_map names no model class")
    return get_class_from_dynamic_module(reference, source, revision=revision), config


def weights_source(build: ConfigBuild) -> str:
    """Return the repository of a configuration: its name on the Hub, or the local folder."""
    return build.repo or str(Path(build.config_file).parent)
