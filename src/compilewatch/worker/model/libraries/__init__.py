"""Libraries of models in the worker: how each builds a model, calls it, and makes it shallow.

One row for each library of `sources.libraries`, loaded when a request needs it. Transformers, whose
models are made from classes and configurations, is `worker.model.resolve` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from compilewatch import plugins
from compilewatch.errors import ConfigError
from compilewatch.files import read_json_object
from compilewatch.records import Depth, LibraryBuild

Construct = Callable[[], nn.Module]

BATCH = 2
"""Rows of every batch: Dynamo specialises sizes 0 and 1."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of one forward call, with real tensors."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class WorkerLibrary(Protocol):
    """Builds and calls the models of one library; never loads weights, never uses the network."""

    name: str

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        """Return a function that makes the module; it may be called twice, also on meta.

        Raises ConfigError for a configuration that cannot be read, and ImportError if the library
        is not in this environment.
        """
        ...

    def inputs(self, module: nn.Module, build: LibraryBuild) -> Call | None:
        """Return the arguments of a forward call in the module's mode.

        None leaves them to the rules for unknown models.
        """
        ...

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        """Return lines of Python that make what `constructor` makes, and name it `model`.

        None if no such lines are written at this depth.
        """
        ...


_FOLDER = "compilewatch.worker.model.libraries"

LIBRARIES: dict[str, str] = {
    "timm": f"{_FOLDER}.timm:Timm",
    "torchvision": f"{_FOLDER}.torchvision:Torchvision",
    "diffusers": f"{_FOLDER}.diffusers:Diffusers",
    "sentence-transformers": f"{_FOLDER}.sentence_transformers:SentenceTransformers",
    "open_clip": f"{_FOLDER}.open_clip:OpenClip",
}


def library(name: str) -> WorkerLibrary:
    """Return the library of a build. Raises ConfigError for an unknown one."""
    if name not in LIBRARIES:
        raise ConfigError(f"{name!r} is not a library of models; known: {', '.join(LIBRARIES)}")
    model_library: WorkerLibrary = plugins.load(LIBRARIES[name])()
    return model_library


def read_configuration(build: LibraryBuild, *, file: str = "") -> dict[str, Any]:
    """Return the JSON of a build's configuration, or of a file in its folder.

    Raises ConfigError.
    """
    path = Path(build.configuration or "") / file if file else Path(build.configuration or "")
    return read_json_object(path)
