"""Building the model of a request: the `create` phase."""

import copy
import importlib
import re
import sys
import typing
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from compilewatch import records
from compilewatch.contract.targets import CPU, default_dtype
from compilewatch.errors import ConfigError
from compilewatch.files import read_json_object
from compilewatch.worker.model import shrink
from compilewatch.worker.model.construct import (
    Construct,
    construct_fake,
    construct_real,
    count_parameters,
    to_fake,
)
from compilewatch.worker.model.libraries import library
from compilewatch.worker.model.overrides import Override, matching
from compilewatch.worker.model.shrink import sub_configs


class MissingPackageError(Exception):
    """The model needs a package that is not in this environment; the argument is its name."""

    @property
    def package(self) -> str:
        return str(self.args[0])


class UnknownArchitectureError(Exception):
    """The installed Transformers does not have the class or model type."""


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A constructed model, with the depth in which it was actually built.

    `part` is the name of the module inside its parent, if the parent has no forward
    (`generation_step`).
    """

    module: nn.Module
    depth: records.Depth
    part: str = ""

    @property
    def config(self) -> Any:
        """Its configuration of Transformers, None where it has none."""
        return getattr(self.module, "config", None)

    @property
    def parameters(self) -> int:
        """Its elements: tied ones count once, those that only the first call makes do not."""
        return sum(p.numel() for p in self.module.parameters() if not is_lazy(p))


def build_model(
    request: records.Request,
    fake_mode: FakeTensorMode | None,
    *,
    budget: int | None = shrink.PARAMETER_BUDGET,
) -> BuiltModel:
    """Build the model of a request: with fake tensors, or without `fake_mode` with small real ones.

    In the fake tier, the request determines the depth, and the width is that of the configuration.
    In the real tier, both are reduced, the width so that the parameters fit the `budget` (None
    keeps the full size), and the initialisation is real and seeded. Models with real weights and
    models of factories are not changed and have their full depth. Raises MissingPackageError or
    UnknownArchitectureError; errors of a constructor or factory propagate.
    """
    build = request.model.build
    depth = records.Depth.REDUCED if fake_mode is None else request.depth
    depth = records.Depth.FULL if budget is None else depth
    try:
        if isinstance(build, records.ClassBuild) or (
            isinstance(build, records.ConfigBuild) and not build.weights
        ):
            module = _from_configuration(request, depth, fake_mode, budget)
        elif isinstance(build, records.LibraryBuild):
            construct = library(build.library).constructor(build, depth)
            real = fake_mode is None
            module = construct_real(construct) if real else construct_fake(construct, fake_mode)
            module = _in_named_type(module, request)
        else:
            depth = records.Depth.FULL
            if isinstance(build, records.ConfigBuild):
                module = _with_weights(build, request)
            else:
                assert isinstance(
                    build, records.FactoryBuild
                )  # an object of a caller needs no building
                module = _in_named_type(_call_factory(build), request)
            module = to_fake(module, fake_mode) if fake_mode is not None else module
    except ImportError as error:
        if (missing := missing_package(error)) is not None:
            raise missing from error
        raise
    part, module = generation_step(module)
    return BuiltModel(module=module, depth=depth, part=part)


def _override(config: Any, overrides: list[Override]) -> None:
    for override in overrides:
        for path, value in override.config.items():
            _set_path(config, path, value)


def _constructor(
    model_class: Any, config: Any, depth: records.Depth, dtype: torch.dtype = torch.float32
) -> Construct:
    def construct() -> nn.Module:
        # A constructor may change its configuration, and it may be called twice.
        own = copy.deepcopy(config)
        with (
            shrink.one_block_of_each_kind(own) if depth is records.Depth.REDUCED else nullcontext()
        ):
            if hasattr(model_class, "_from_config"):
                return model_class._from_config(own, dtype=dtype)
            return model_class(own)

    return construct


def _from_configuration(
    request: records.Request,
    depth: records.Depth,
    fake_mode: FakeTensorMode | None,
    budget: int | None,
) -> nn.Module:
    tier = records.Tier.REAL if fake_mode is None else records.Tier.FAKE
    build = request.model.build
    named: list[Override] = []
    if isinstance(build, records.ClassBuild):
        model_type = configuration_class(library_class(build.class_name)).model_type
        named = matching(request, build.class_name, model_type, tier, depth)
    model_class, config = resolve(request, named)
    applied = matching(request, model_class.__name__, config.model_type, tier, depth)
    if depth is records.Depth.REDUCED:
        shrink.reduce_depth(config)
    _override(config, applied)
    if tier is records.Tier.REAL and budget is not None:
        config = shrink.narrow(
            config, lambda c: count_parameters(_constructor(model_class, c, depth)), budget
        )
        _override(config, applied)  # again: overrides take precedence over the reduction
    dtype = _dtype(request, config)
    adapter = adapter_config(request, depth)
    construct = with_adapter(_constructor(model_class, config, depth, dtype), adapter)
    if fake_mode is None:
        return construct_real(construct)
    module = construct_fake(construct, fake_mode)
    # A person named neither a device nor a type; a forecast has a device of its own.
    free = request.target.device == CPU or request.target.dtype is records.Dtype.CONFIG
    if free and dtype is torch.float32 and _groups_experts(module):
        # Such models are published in bfloat16. The fake kernel of _grouped_mm in torch 2.13
        # accepts no other type; that in 2.15 also accepts float32, but for float32 Transformers
        # compiles a fallback that is not used in deployments (`_can_use_grouped_mm` of
        # integrations/moe.py).
        construct = _constructor(model_class, config, depth, torch.bfloat16)
        module = construct_fake(with_adapter(construct, adapter), fake_mode)
    return module


def _dtype(request: records.Request, config: Any) -> torch.dtype:
    """The type of weights that the request names, or that the configuration or a part of it has."""
    dtype = request.target.dtype
    if dtype is not records.Dtype.CONFIG:
        named: torch.dtype = getattr(torch, dtype.value)
        return named
    parts = (config, *(part for part in vars(config).values() if hasattr(part, "model_type")))
    for part in parts:
        part_dtype = getattr(part, "dtype", None)
        part_dtype = getattr(torch, part_dtype, None) if isinstance(part_dtype, str) else part_dtype
        if isinstance(part_dtype, torch.dtype) and part_dtype.is_floating_point:
            return part_dtype
    return torch.float32


def _groups_experts(module: nn.Module) -> bool:
    """Whether Transformers multiplies its experts as one grouped matrix (`integrations.moe`)."""
    return any(
        hasattr(submodule, "_apply_gate")
        and getattr(getattr(submodule, "config", None), "_experts_implementation", None)
        == "grouped_mm"
        for submodule in module.modules()
    )


def _with_weights(build: records.ConfigBuild, request: records.Request) -> nn.Module:
    model_class, config = resolve(request, [])
    return model_class.from_pretrained(
        weights_source(build),
        config=config,
        revision=request.model.revision if build.repo else None,
        dtype=_dtype(request, config),
        trust_remote_code=build.trust_remote_code,
    )


def _in_named_type(module: nn.Module, request: records.Request) -> nn.Module:
    """The module in the type that a person named; without one in its own type."""
    dtype = request.target.dtype
    if dtype in (records.Dtype.CONFIG, default_dtype(request.target.device)):
        return module
    return module.to(getattr(torch, dtype.value))


def _call_factory(build: records.FactoryBuild) -> nn.Module:
    module_name, _, attribute = build.factory.partition(":")
    module = import_own(build, module_name)
    if not hasattr(module, attribute):
        raise ConfigError(f"{module_name} has no {attribute}: give MODULE:FACTORY")
    model = getattr(module, attribute)()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{build.factory} returned {type(model).__name__}, not a torch.nn.Module")
    return model


def import_own(build: records.FactoryBuild, module: str) -> ModuleType:
    """Import `module` from the folders of `build`, and write no bytecode from now on.

    Python takes cached bytecode for current if the file has the size and the modification time, in
    whole seconds, that are noted there (the format of `.pyc` files, PEP 552). A file that is
    changed within the second in which it was imported, to a text of the same length, would get the
    verdict of its earlier text.

    Raises ImportError if there is no such module, and whatever its code raises.
    """
    sys.path[:0] = [folder for folder in build.python_path if folder not in sys.path]
    sys.dont_write_bytecode = True
    return importlib.import_module(module)


def generation_step(module: nn.Module) -> tuple[str, nn.Module]:
    """Return the part of a model whose forward is a step of its generation, and the part's name.

    A model without forward only generates, stage by stage: its step is that of its first part that
    generates. A model with a forward is itself the step, and the name is "".
    """
    if type(module).forward is not nn.Module.forward:
        return "", module
    for name, part in module.named_children():
        if type(part).forward is not nn.Module.forward and hasattr(part, "generate"):
            return name, part
    return "", module


def _set_path(config: Any, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        config = config[parent] if isinstance(config, dict) else getattr(config, parent)
    if isinstance(config, dict):
        config[name] = value
    else:
        # TOML has no tuples, only lists, but model code adds tuples to tuples.
        is_tuple = isinstance(value, list) and isinstance(getattr(config, name, None), tuple)
        setattr(config, name, tuple(value) if is_tuple else value)


# --- classes and configurations -------------------------------------------------------------------

_TOKEN_NAME = re.compile(r"(image|video|audio|speech|vision|boi|eoi|boa|eoa)\w*_(id|index)")
_VOCABULARY_STEP = 64


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

    `GemmaVisionModel` inherits `GemmaConfig` in some releases: of a declared class and its parts,
    it takes the one that it is named after (`GemmaVisionConfig`), or the declared one without such.
    """
    declared = getattr(model_class, "config_class", None)
    if declared is not None:
        stems = {part.__name__.removesuffix("Config"): part for part in _parts_of(declared)}
        named = [stem for stem in stems if model_class.__name__.startswith(stem)]
        return stems[max(named, key=len)] if named else declared
    for base in model_class.__mro__:
        if "__init__" in vars(base):
            annotated = typing.get_type_hints(base.__init__).get("config")
            if annotated is not None:
                return annotated
    raise UnknownArchitectureError(f"{model_class.__name__} declares no configuration class")


def _parts_of(config_class: Any) -> Iterator[Any]:
    """Yield a configuration class and the classes of its parts."""
    yield config_class
    for part in getattr(config_class, "sub_configs", {}).values():
        # A part of any type is declared as `AutoConfig`, which has no parts.
        if isinstance(part, type) and hasattr(part, "model_type"):
            yield from _parts_of(part)


def resolve(request: records.Request, overrides: list[Override]) -> tuple[Any, Any]:
    """Return class and configuration for a library class or a config.json.

    `overrides` are those for the class; their `defaults` apply to configurations from defaults.
    """
    build = request.model.build
    if isinstance(build, records.ClassBuild):
        model_class: Any = library_class(build.class_name)
        defaults: dict[str, Any] = {}
        for override in overrides:
            defaults = _merged(defaults, override.defaults)
        # A configuration may take its parts out of the tables that it is given.
        config = configuration_class(model_class)(**copy.deepcopy(defaults))
    elif isinstance(build, records.ConfigBuild):
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
    if not tokens or not shrink.is_config(text):
        return
    size = vars(text).get("vocab_size")
    if isinstance(size, int) and size <= max(tokens):
        text.vocab_size = -(-(max(tokens) + 1) // _VOCABULARY_STEP) * _VOCABULARY_STEP


def _from_file(build: records.ConfigBuild, request: records.Request) -> tuple[Any, Any]:
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
        # Of another package. Raises ImportError if it is not installed.
        model_class: Any = getattr(importlib.import_module(build.class_module), str(name), None)
        if model_class is None:
            raise UnknownArchitectureError(f"{build.class_module} has no class {str(name)!r}")
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


def _base_class(config: Any) -> Any:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if type(config) not in MODEL_MAPPING:
        raise UnknownArchitectureError(f"model type {config.model_type!r} has no base model")
    model_class = MODEL_MAPPING[type(config)]
    return model_class[0] if isinstance(model_class, tuple) else model_class


def _remote_class(
    build: records.ConfigBuild, request: records.Request, values: dict[str, Any]
) -> tuple[Any, Any]:
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


def weights_source(build: records.ConfigBuild) -> str:
    """Return the repository of a configuration: its name on the Hub, or the local folder."""
    return build.repo or str(Path(build.config_file).parent)


# --- adapters of PEFT: made from their configuration on a model that was built without weights ----

NAMED_LAYERS = ("layers_to_transform", "layer_replication")
"""Fields that name layers by their index. A reduced model lacks most of these layers."""

FROM_WEIGHTS = ("init_lora_weights", "init_weights")
"""Fields with the initialisation, some of which compute it from the weights of the base model."""


def adapter_config(request: records.Request, depth: records.Depth) -> dict[str, Any] | None:
    """Return the configuration of a request's adapter, None for a model without one.

    No weights are loaded, so that the initialisation is the plain one of the method. In train mode
    the adapter is trained: published configurations are stored for inference. Raises ConfigError.
    """
    build = request.model.build
    if not isinstance(build, records.ConfigBuild) or build.adapter_file is None:
        return None
    values = read_json_object(Path(build.adapter_file))
    values["inference_mode"] = request.target.mode is not records.Mode.TRAIN
    left_out = {name for name in FROM_WEIGHTS if isinstance(values.get(name), str)}
    left_out |= set(NAMED_LAYERS) if depth is records.Depth.REDUCED else set()
    return {name: value for name, value in values.items() if name not in left_out}


def with_adapter(construct: Construct, values: dict[str, Any] | None) -> Construct:
    """Return a function that makes a model with an adapter on it, or `construct` without one."""
    if values is None:
        return construct

    def construct_both() -> nn.Module:
        import peft

        config = peft.PeftConfig.from_peft_type(**values)
        adapted: nn.Module = peft.get_peft_model(construct(), config)
        return adapted

    return construct_both


def base_of(module: nn.Module, request: records.Request) -> nn.Module:
    """Return the model that an adapter is on: it determines what a call needs."""
    build = request.model.build
    if isinstance(build, records.ConfigBuild) and build.adapter_file is not None:
        base: nn.Module = module.get_base_model()
        return base
    return module
