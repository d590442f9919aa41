"""diffusers: model classes from their default or a repository's configuration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from compilewatch.errors import ConfigError
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.libraries import Call, Construct, read_configuration
from compilewatch.worker.model.libraries.diffusers_classes import (
    CONFIGURATIONS,
    CONTAINERS,
    PREPARED,
    REDUCED,
    SHARED,
)
from compilewatch.worker.model.libraries.diffusers_inputs import call_of

MIN_LAYERS = 2
"""Layers of a stack that stay at reduced depth."""

DEPTH_NAME = re.compile(
    r"(\w+_)?(num|n)_(\w+_)?(layers|blocks)|(\w+_)?depths?|nlayers|(\w+_)?layers_per_(\w+_)?block"
)
"""Arguments that count the layers of a stack, or list the counts of several."""


class Diffusers:
    """A subclass of `ModelMixin`, made from the arguments that its configuration records."""

    name = "diffusers"

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        import diffusers

        chosen: Any = getattr(diffusers, build.name, None)
        if not (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
            raise ConfigError(f"diffusers {diffusers.__version__} has no class {build.name!r}")
        if build.name in CONTAINERS:
            part, argument, count = CONTAINERS[build.name]
            inner = self.constructor(LibraryBuild(library=self.name, name=part), depth)
            return lambda: chosen(**{argument: [inner() for _ in range(count)]})
        values = _arguments(chosen, build, depth)

        def construct() -> nn.Module:
            module: Any = chosen(**values)
            if build.name in PREPARED:
                getattr(module, PREPARED[build.name])()
            if build.name in SHARED:
                shared = LibraryBuild(library=self.name, name=SHARED[build.name])
                module.from_transformer(module, self.constructor(shared, depth)())
            model: nn.Module = module
            return model

        return construct

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        lines = ["import diffusers", "", f"model = {_call(build, depth)}"]
        if build.name in PREPARED:
            lines.append(f"model.{PREPARED[build.name]}()")
        if build.name in SHARED:
            shared = LibraryBuild(library=self.name, name=SHARED[build.name])
            lines.append(f"model.from_transformer(model, {_call(shared, depth)})")
        return lines

    def inputs(self, module: nn.Module, build: LibraryBuild) -> Call | None:
        del build
        return call_of(module)


def _call(build: LibraryBuild, depth: Depth) -> str:
    """The source of the call of a class, without defaults that nothing changes."""
    import diffusers

    chosen = getattr(diffusers, build.name)
    if build.name in CONTAINERS:
        part, argument, count = CONTAINERS[build.name]
        inner = _call(LibraryBuild(library=build.library, name=part), depth)
        return f"diffusers.{build.name}({argument}=[{inner} for _ in range({count})])"
    parameters = inspect.signature(chosen.__init__).parameters
    values = _arguments(chosen, build, depth)
    arguments = (f"{n}={v!r}" for n, v in values.items() if v != parameters[n].default)
    return f"diffusers.{build.name}({', '.join(arguments)})"


def _arguments(chosen: type[nn.Module], build: LibraryBuild, depth: Depth) -> dict[str, Any]:
    """The arguments of the constructor: those of a repository, or defaults with what they lack."""
    parameters = inspect.signature(chosen.__init__).parameters
    if build.configuration:
        configuration = read_configuration(build)
        values = {name: value for name, value in configuration.items() if name in parameters}
    else:
        values = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        values |= CONFIGURATIONS.get(build.name, {})
    return _shallow(values) | REDUCED.get(build.name, {}) if depth is Depth.REDUCED else values


def _shallow(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with few layers in each stack; the number of stages stays."""
    reduced = dict(values)
    for name, value in values.items():
        if not DEPTH_NAME.fullmatch(name):
            continue
        least = 1 if "layers_per" in name else MIN_LAYERS
        if isinstance(value, int) and not isinstance(value, bool):
            reduced[name] = min(value, least)
        elif isinstance(value, (list, tuple)) and all(isinstance(count, int) for count in value):
            reduced[name] = type(value)(min(count, least) for count in value)
    return reduced
