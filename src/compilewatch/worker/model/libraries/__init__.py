"""Libraries of models in the worker: how each lists, builds and calls its models.

One class for each row of `contract.libraries`, loaded when a request needs it. Transformers, whose
models are made from classes and configurations, is `worker.model.resolve` itself.
"""

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from compilewatch import plugins
from compilewatch.contract.failures import one_line
from compilewatch.contract.libraries import LIBRARIES, LibraryModel, ListedModels
from compilewatch.errors import ConfigError
from compilewatch.records import Depth, LibraryBuild
from compilewatch.worker.model.shrink import drop_repeated

Construct = Callable[[], nn.Module]

Arguments = tuple[Any, ...] | dict[str, Any]
"""Arguments of one call: by position, or by name."""

BATCH = 2
"""Rows of every batch: Dynamo specialises sizes 0 and 1."""


class Library:
    """Lists, builds and calls the models of one library; never loads weights or uses the network.

    A method imports the library itself: it is not in every environment.
    """

    def models(self) -> Iterable[LibraryModel]:
        """Return all models, in the order of the library; none if it has none of its own."""
        return ()

    def source(self, build: LibraryBuild, depth: Depth) -> list[str] | None:
        """Return lines of Python that make the module, and name it `model`.

        None if no such lines are written at this depth. Raises ConfigError for a configuration that
        cannot be read, or a name that is unknown, and ImportError if the library is not in this
        environment.
        """
        del build, depth
        return None

    def constructor(self, build: LibraryBuild, depth: Depth) -> Construct:
        """Return a function that makes the module; it may be called twice, also on meta.

        It runs the lines of `source`. Where there are none at reduced depth, repeated blocks are
        dropped from the module of full depth. Raises the errors of `source`.
        """
        own = self.source(build, depth)
        lines = own or self.source(build, Depth.FULL) or []

        def construct() -> nn.Module:
            names: dict[str, Any] = {}
            exec("\n".join(lines), names)
            module: nn.Module = names["model"]
            return module if own else drop_repeated(module)

        return construct

    def inputs(self, module: nn.Module, build: LibraryBuild) -> Arguments | None:
        """Return the arguments of a forward call in the module's mode, with real tensors.

        None leaves them to the rules for unknown models.
        """
        raise NotImplementedError


def library(name: str) -> Library:
    """Return the library of a build. Raises ConfigError for an unknown one."""
    row = LIBRARIES.get(name)
    if row is None or not row.implementation:
        known = ", ".join(row.name for row in LIBRARIES.values() if row.implementation)
        raise ConfigError(f"{name!r} is not a library of models; known: {known}")
    model_library: Library = plugins.load(row.implementation)()
    return model_library


def list_models() -> ListedModels:
    """Return the models of each library in this environment, and why one lists none."""
    models: dict[str, tuple[LibraryModel, ...]] = {}
    problems: dict[str, str] = {}
    for row in LIBRARIES.values():
        if row.implementation and importlib.util.find_spec(row.module) is not None:
            try:
                models[row.name] = tuple(library(row.name).models())
            except Exception as error:  # noqa: BLE001  (foreign packages, when they are imported)
                problems[row.name] = one_line(error)
    return ListedModels(models=models, problems=problems)
