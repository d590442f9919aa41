"""timm: architectures by name, with the size of the input that each is published with."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compilewatch.contract.libraries import LibraryModel
from compilewatch.errors import ConfigError
from compilewatch.files import read_json_object
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.libraries import BATCH, Library


class Timm(Library):
    """An architecture as timm registers it, or as the `config.json` of a repository sets it."""

    def models(self) -> Iterator[LibraryModel]:
        import timm

        functions = {name: timm.model_entrypoint(name) for name in timm.list_models()}

        def place(name: str) -> tuple[str, int]:
            return functions[name].__module__, functions[name].__code__.co_firstlineno

        for name in sorted(functions, key=place):  # as the modules list them
            yield LibraryModel(
                name=name,
                family=functions[name].__module__.rpartition(".")[2],
                published=timm.models.is_model_pretrained(name),
            )

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        import timm

        if not timm.is_model(build.name):
            raise ConfigError(f"timm {timm.__version__} has no architecture {build.name!r}")
        if depth is Depth.REDUCED:
            return None
        arguments = "".join(f", {name}={value!r}" for name, value in _arguments(build).items())
        return ["import timm", "", f"model = timm.create_model({build.name!r}{arguments})"]

    def inputs(self, module: nn.Module, build: LibraryBuild) -> dict[str, Any] | None:
        del build
        known = getattr(module, "pretrained_cfg", None) or getattr(module, "default_cfg", None)
        size = (known or {}).get("input_size")
        if size is None:
            return None
        name = next(iter(inspect.signature(module.forward).parameters))
        return {name: torch.randn(BATCH, *size)}


def _arguments(build: LibraryBuild) -> dict[str, Any]:
    """The arguments of `create_model` in a repository's configuration, as timm reads them."""
    if not build.configuration:
        return {}
    values = read_json_object(Path(build.configuration))
    known = dict(values.get("pretrained_cfg") or {})
    arguments = dict(values.get("model_args") or {})
    for name in ("num_classes", "global_pool"):
        if values.get(name) is not None:
            arguments.setdefault(name, values[name])
    if known:
        arguments["pretrained_cfg"] = known
    return arguments
