"""timm: architectures by name, with the size of the input that each is published with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from compilewatch.contract.libraries import LibraryModel
from compilewatch.errors import ConfigError
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.libraries import (
    BATCH,
    Call,
    Construct,
    Library,
    read_configuration,
)
from compilewatch.worker.model.shrink import drop_repeated


class Timm(Library):
    """An architecture as timm registers it, or as the `config.json` of a repository sets it."""

    def models(self) -> Iterator[LibraryModel]:
        import timm

        functions = {name: timm.model_entrypoint(name) for name in timm.list_models()}
        for name, function in sorted(functions.items(), key=lambda item: _line(item[1])):
            yield LibraryModel(
                name=name,
                family=function.__module__.rpartition(".")[2],
                published=timm.models.is_model_pretrained(name),
            )

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        import timm

        arguments = _arguments(read_configuration(build)) if build.configuration else {}
        if not timm.is_model(build.name):
            raise ConfigError(f"timm {timm.__version__} has no architecture {build.name!r}")

        def construct() -> nn.Module:
            module: nn.Module = timm.create_model(build.name, pretrained=False, **arguments)
            return drop_repeated(module) if depth is Depth.REDUCED else module

        return construct

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        if depth is Depth.REDUCED:
            return None
        arguments = _arguments(read_configuration(build)) if build.configuration else {}
        arguments_text = "".join(f", {name}={value!r}" for name, value in arguments.items())
        return ["import timm", "", f"model = timm.create_model({build.name!r}{arguments_text})"]

    def inputs(self, module: nn.Module, build: LibraryBuild) -> Call | None:
        del build
        known = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        size = (known or {}).get("input_size")
        if size is None:
            return None
        name = next(iter(inspect.signature(module.forward).parameters))
        return Call(kwargs={name: torch.randn(BATCH, *size)})


def _line(function: Any) -> tuple[str, int]:
    """Where a function is: architectures are listed in the order of their modules."""
    return function.__module__, function.__code__.co_firstlineno


def _arguments(values: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `create_model` in a repository's configuration, as timm reads them."""
    known = dict(values.get("pretrained_cfg") or {})
    arguments = dict(values.get("model_args") or {})
    for name in ("num_classes", "global_pool"):
        if values.get(name) is not None:
            arguments.setdefault(name, values[name])
    if known:
        arguments["pretrained_cfg"] = known
    return arguments
