"""What the libraries share whose models are reviewed configurations: a class with arguments."""

from __future__ import annotations

import sys
import warnings
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from compilewatch.errors import ConfigError
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.libraries import Call, Construct, read_configuration

Configuration = dict[str, Any]


class PublishedModel(ABC):
    """Models of a library made from the files in `data/models`; see `WorkerLibrary`.

    `classes` are the only ones that a file can name. Models have their published depth, since
    these libraries have no common argument for it, unless `build` uses `depth`.
    """

    name: str
    classes: frozenset[str]

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        if not build.configuration:
            raise ConfigError(f"{self.name} has no model {build.name!r} without its configuration")
        values = read_configuration(build)
        chosen = values.get("class")
        if chosen not in self.classes:
            known = ", ".join(sorted(self.classes))
            raise ConfigError(f"{build.configuration}: unknown class {chosen!r}; known: {known}")
        self.prepare()
        return lambda: self.build(values, depth)

    def inputs(self, module: nn.Module, build: LibraryBuild) -> Call | None:
        return self.call(module, read_configuration(build))

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        del build, depth
        return None

    def prepare(self) -> None:
        """Import the library, outside of the device and the modes in which models are built."""
        return

    @abstractmethod
    def build(self, values: Configuration, depth: Depth) -> nn.Module:
        """Return the module that a configuration describes."""

    @abstractmethod
    def call(self, module: nn.Module, values: Configuration) -> Call:
        """Return the arguments of a forward call."""


def import_torchaudio() -> None:
    """Import torchaudio beside a torch that was built for another release of CUDA.

    The last release of torchaudio, 2.11, is built on the stable interface of torch and works with
    later ones, but its import compares the releases of CUDA, which concern its operations on GPUs
    only. No model uses these. The comparison is skipped while torchaudio is imported for the first
    time.
    """
    if "torchaudio" in sys.modules:
        return
    version: Any = torch.version
    built_for = version.cuda
    version.cuda = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torchaudio  # noqa: F401
    finally:
        version.cuda = built_for
