"""Building the model of a request: the `create` phase."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import is_lazy

from compilewatch.contract.targets import default_dtype
from compilewatch.errors import ConfigError
from compilewatch.records import (
    ClassBuild,
    ConfigBuild,
    Depth,
    Dtype,
    FactoryBuild,
    LibraryBuild,
    Request,
    Tier,
)
from compilewatch.worker.model.adapters import adapter_config, with_adapter
from compilewatch.worker.model.architectures import (
    MissingPackageError,
    UnknownArchitectureError,
    configuration_class,
    library_class,
    missing_package,
    resolve,
    weights_source,
)
from compilewatch.worker.model.construct import (
    Construct,
    construct_fake,
    construct_real,
    count_parameters,
    to_fake,
)
from compilewatch.worker.model.depth import reduce_depth
from compilewatch.worker.model.libraries import library
from compilewatch.worker.model.overrides import Override, Overrides, Scope
from compilewatch.worker.model.own_code import import_own
from compilewatch.worker.model.timm_depth import one_block_of_each_kind
from compilewatch.worker.model.width import narrow

__all__ = ["BuiltModel", "MissingPackageError", "UnknownArchitectureError", "build_model"]


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A constructed model; `config` is its Transformers configuration, None where it has none.

    `tier` and `depth` are those in which it was actually built. `parameters` counts elements; tied
    parameters count once, and those that only the first call makes do not count. `part` is the name
    of the module inside its parent, if the parent has no forward (`generation_step`).
    """

    module: nn.Module
    config: Any | None
    tier: Tier
    depth: Depth
    parameters: int
    part: str = ""


def build_model(
    request: Request,
    fake_mode: FakeTensorMode | None,
    overrides: Overrides,
    *,
    full_size: bool = False,
) -> BuiltModel:
    """Build the model of a request: with fake tensors, or without `fake_mode` with small real ones.

    In the fake tier, the request determines the depth, and the width is that of the configuration.
    In the real tier, both are reduced (not with `full_size`), and the initialisation is real and
    seeded. Models with real weights and models of factories are not changed and have their full
    depth. Raises MissingPackageError or UnknownArchitectureError; errors of a constructor or
    factory propagate.
    """
    build = request.model.build
    if isinstance(build, ClassBuild) or (isinstance(build, ConfigBuild) and not build.weights):
        with _missing_packages_named():
            return _from_configuration(request, fake_mode, overrides, full_size=full_size)
    if isinstance(build, ConfigBuild):
        with _missing_packages_named():
            module = _with_weights(build, request)
    elif isinstance(build, FactoryBuild):
        with _missing_packages_named():
            module = _in_named_type(_call_factory(build), request)
    else:
        assert isinstance(build, LibraryBuild)  # an object of a caller needs no building
        with _missing_packages_named():
            return _from_library(request, build, fake_mode, full_size=full_size)
    if fake_mode is not None:
        module = to_fake(module, fake_mode)
    return _built(module, fake_mode, Depth.FULL)


def fit_config(
    model_class: Any, config: Any, tier: Tier, depth: Depth, overrides: list[Override]
) -> Any:
    """The configuration reduced for a tier and depth, with overrides applied."""
    if depth is Depth.REDUCED:
        reduce_depth(config)
    _override(config, overrides)
    if tier is Tier.REAL:
        config = narrow(config, lambda c: count_parameters(_constructor(model_class, c, depth)))
        _override(config, overrides)  # again: overrides take precedence over the reduction
    return config


def _override(config: Any, overrides: list[Override]) -> None:
    for override in overrides:
        for path, value in override.config.items():
            _set_path(config, path, value)


def change_defaults(model_class: type, functions: Mapping[str, Mapping[str, Any]]) -> None:
    """Give functions of a model's module other defaults, for as long as this process lives.

    `functions` are names with new values by argument. What a release lacks is left out: it may have
    another implementation.
    """
    for name, values in functions.items():
        function = getattr(sys.modules[model_class.__module__], name, None)
        if function is None:
            continue
        function = inspect.unwrap(function)
        parameters = inspect.signature(function).parameters.values()
        with_default = [
            parameter for parameter in parameters if parameter.default is not parameter.empty
        ]
        by_name = {
            parameter.name for parameter in with_default if parameter.kind is parameter.KEYWORD_ONLY
        }
        defaults = {
            parameter.name: values.get(parameter.name, parameter.default)
            for parameter in with_default
        }
        function.__defaults__ = tuple(v for name, v in defaults.items() if name not in by_name)
        function.__kwdefaults__ = {name: defaults[name] for name in by_name}


def _constructor(
    model_class: Any, config: Any, depth: Depth, dtype: torch.dtype = torch.float32
) -> Construct:
    def construct() -> nn.Module:
        # A constructor may change its configuration, and it may be called twice.
        own = copy.deepcopy(config)
        with one_block_of_each_kind(own) if depth is Depth.REDUCED else nullcontext():
            if hasattr(model_class, "_from_config"):
                return model_class._from_config(own, dtype=dtype)
            return model_class(own)

    return construct


def _from_configuration(
    request: Request, fake_mode: FakeTensorMode | None, overrides: Overrides, *, full_size: bool
) -> BuiltModel:
    tier = Tier.REAL if fake_mode is None else Tier.FAKE
    depth = Depth.REDUCED if tier is Tier.REAL else request.depth
    if full_size:
        depth = Depth.FULL
    mode = request.target.mode
    build = request.model.build
    named: list[Override] = []
    if isinstance(build, ClassBuild):
        model_type = configuration_class(library_class(build.class_name)).model_type
        named = overrides.matching(Scope(build.class_name, model_type, tier, depth, mode))
    model_class, config = resolve(request, named)
    matching = overrides.matching(Scope(model_class.__name__, config.model_type, tier, depth, mode))
    # Nothing is narrowed in the fake tier.
    config = fit_config(model_class, config, Tier.FAKE if full_size else tier, depth, matching)
    for override in matching:
        change_defaults(model_class, override.functions)
    dtype = _dtype(request, config)
    adapter = adapter_config(request, depth)
    construct = with_adapter(_constructor(model_class, config, depth, dtype), adapter)
    if fake_mode is None:
        return _built(construct_real(construct), None, depth)
    module = construct_fake(construct, fake_mode)
    free = request.device is None or request.target.dtype is Dtype.CONFIG
    if free and dtype is torch.float32 and _groups_experts(module):
        # Such models are published in bfloat16. The fake kernel of _grouped_mm in torch 2.13
        # accepts no other type; that in 2.15 also accepts float32, but for float32 Transformers
        # compiles a fallback that is not used in deployments (`_can_use_grouped_mm` of
        # integrations/moe.py).
        construct = _constructor(model_class, config, depth, torch.bfloat16)
        construct = with_adapter(construct, adapter)
        module = construct_fake(construct, fake_mode)
    return _built(module, fake_mode, depth)


def _dtype(request: Request, config: Any) -> torch.dtype:
    """The type of weights that the request names, or that the configuration or a part of it has."""
    dtype = request.target.dtype
    if dtype is not Dtype.CONFIG:
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


def _with_weights(build: ConfigBuild, request: Request) -> nn.Module:
    model_class, config = resolve(request, [])
    return model_class.from_pretrained(
        weights_source(build),
        config=config,
        revision=request.model.revision if build.repo else None,
        dtype=_dtype(request, config),
        trust_remote_code=build.trust_remote_code,
    )


def _from_library(
    request: Request, build: LibraryBuild, fake_mode: FakeTensorMode | None, *, full_size: bool
) -> BuiltModel:
    depth = Depth.REDUCED if fake_mode is None else request.depth
    depth = Depth.FULL if full_size else depth
    construct = library(build.library).constructor(build, depth)
    if fake_mode is None:
        module = construct_real(construct)
    else:
        module = construct_fake(construct, fake_mode)
    return _built(_in_named_type(module, request), fake_mode, depth)


def _in_named_type(module: nn.Module, request: Request) -> nn.Module:
    """The module in the type that a person named; without one in its own type."""
    dtype = request.target.dtype
    if dtype in (Dtype.CONFIG, default_dtype(request.target.device)):
        return module
    return module.to(getattr(torch, dtype.value))


def _call_factory(build: FactoryBuild) -> nn.Module:
    module_name, _, attribute = build.factory.partition(":")
    module = import_own(build, module_name)
    if not hasattr(module, attribute):
        raise ConfigError(f"{module_name} has no {attribute}: give MODULE:FACTORY")
    model = getattr(module, attribute)()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{build.factory} returned {type(model).__name__}, not a torch.nn.Module")
    return model


@contextmanager
def _missing_packages_named() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        named = missing_package(error)
        if named is None:
            raise
        raise named from error


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


def _built(module: nn.Module, fake_mode: FakeTensorMode | None, depth: Depth) -> BuiltModel:
    part, module = generation_step(module)
    return BuiltModel(
        part=part,
        module=module,
        config=getattr(module, "config", None),
        tier=Tier.REAL if fake_mode is None else Tier.FAKE,
        depth=depth,
        parameters=sum(p.numel() for p in module.parameters() if not is_lazy(p)),
    )


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
