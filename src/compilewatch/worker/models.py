"""Building the model of a request: the `create` phase."""

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from compilewatch.errors import ConfigError
from compilewatch.records import (
    ChaosBuild,
    ClassBuild,
    ConfigBuild,
    Depth,
    FactoryBuild,
    Request,
    Tier,
)
from compilewatch.worker.construction import construct_fake, construct_real, to_fake
from compilewatch.worker.overrides import Overrides
from compilewatch.worker.reduction import reduce_depth, reduce_width


class MissingPackageError(Exception):
    """The model needs a package that this environment lacks; the argument is its name."""

    @property
    def package(self) -> str:
        return str(self.args[0])


class UnknownArchitectureError(Exception):
    """The installed Transformers has no such class or model type."""


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A constructed model; `config` is its Transformers configuration, None where it has none.

    `tier` and `depth` are those it was really built in. `parameters` counts elements, tied ones
    once.
    """

    module: nn.Module
    config: Any | None
    tier: Tier
    depth: Depth
    parameters: int


def build_model(
    request: Request, fake_mode: FakeTensorMode | None, overrides: Overrides
) -> BuiltModel:
    """Build the model of a request, with fake tensors, or without a mode with small real ones.

    In the fake tier depth is as the request says and width is the configuration's own; in the
    real tier both are reduced and initialisation is real and seeded. Raises MissingPackageError
    or UnknownArchitectureError; whatever a constructor or factory raises propagates.
    """
    build = request.model.build
    if isinstance(build, ChaosBuild):
        chaos = importlib.import_module("compilewatch.worker.chaos")
        return _built(_placed(chaos.build(build.behaviour), fake_mode), fake_mode, Depth.FULL)
    if isinstance(build, FactoryBuild):
        return _built(_placed(_call_factory(build), fake_mode), fake_mode, Depth.FULL)
    tier = Tier.REAL if fake_mode is None else Tier.FAKE
    depth = Depth.REDUCED if tier is Tier.REAL else request.depth
    if isinstance(build, ClassBuild):
        model_class = library_class(build.class_name)
        config = default_config(model_class)
    else:
        model_class, config = _from_config_file(build, request)
    fit_config(config, model_class.__name__, tier, depth, overrides)
    module = (
        construct_real(lambda: model_class(config))
        if fake_mode is None
        else construct_fake(lambda: model_class(config), fake_mode)
    )
    return _built(module, fake_mode, depth)


def fit_config(
    config: Any, class_name: str, tier: Tier, depth: Depth, overrides: Overrides
) -> None:
    """Reduce a configuration for a tier and depth and apply the overrides, in place."""
    if depth is Depth.REDUCED:
        reduce_depth(config)
    if tier is Tier.REAL:
        reduce_width(config)
    for override in overrides.matching(class_name, config.model_type, tier, depth):
        for path, value in override.config.items():
            _set_path(config, path, value)


def library_class(name: str) -> type[nn.Module]:
    """A class of the installed Transformers by name."""
    import transformers

    try:
        found = getattr(transformers, name)
    except AttributeError:
        raise UnknownArchitectureError(
            f"transformers {transformers.__version__} has no class {name!r}"
        ) from None
    except (ImportError, RuntimeError) as error:
        raise _missing_package(error) or error from None
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UnknownArchitectureError(f"transformers.{name} is no model class")
    return found


def default_config(model_class: Any) -> Any:
    """The default configuration of a class: of the type it declares."""
    return model_class.config_class()


def _from_config_file(build: ConfigBuild, request: Request) -> tuple[Any, Any]:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path = Path(build.config_file)
    try:
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    model_type = values.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise UnknownArchitectureError(
            f"transformers {transformers.__version__} has no model type {model_type!r}"
        )
    names = [build.class_name, request.model.architecture, *(values.get("architectures") or ())]
    name = next((n for n in names if n), None)
    if name is None:
        raise UnknownArchitectureError(f"{path}: names no architecture")
    return library_class(name), CONFIG_MAPPING[model_type].from_dict(values)


def _call_factory(build: FactoryBuild) -> nn.Module:
    if build.path is not None and build.path not in sys.path:
        sys.path.insert(0, build.path)
    module_name, _, attribute = build.factory.partition(":")
    made = getattr(importlib.import_module(module_name), attribute)()
    if not isinstance(made, nn.Module):
        raise TypeError(f"{build.factory} returned {type(made).__name__}, not a torch.nn.Module")
    return made


def _placed(module: nn.Module, fake_mode: FakeTensorMode | None) -> nn.Module:
    return module if fake_mode is None else to_fake(module, fake_mode)


def _built(module: nn.Module, fake_mode: FakeTensorMode | None, depth: Depth) -> BuiltModel:
    return BuiltModel(
        module=module,
        config=getattr(module, "config", None),
        tier=Tier.REAL if fake_mode is None else Tier.FAKE,
        depth=depth,
        parameters=sum(p.numel() for p in module.parameters()),
    )


def _set_path(config: Any, path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        config = config[parent] if isinstance(config, dict) else getattr(config, parent)
    if isinstance(config, dict):
        config[name] = value
    else:
        setattr(config, name, value)


def _missing_package(error: BaseException) -> MissingPackageError | None:
    """The package whose absence an import error reports, as Transformers and Python word it."""
    found = re.search(r"No module named '([\w.]+)'|requires the (\w+) library", str(error))
    return MissingPackageError((found[1] or found[2]).split(".")[0]) if found else None
