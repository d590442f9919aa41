"""Libraries of models: one row and one Protocol each. Their files are read, never imported.

A row is all that the parent knows without reading the library: its source, its package, and what
the Hub calls it. Its class lists the models. How they are built, called and made shallow is known
to its counterpart in `worker.model.libraries` (of Transformers: to `worker.model` itself).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from compilewatch.contract.targets import PACKAGE_ENVIRONMENTS
from compilewatch.records import DEFAULT_ENVIRONMENT, ModelSpec, Record

ALL = "all-libraries"
"""The source of the models of all libraries."""


class LibraryRow(Record, frozen=True, kw_only=True):
    """One library.

    Attributes:
        implementation: `"module:Class"`, a `ModelLibrary`.
        source: the value of `--source`.
        package: the distribution that has the models.
        module: the package's folder, as `import` names it.
        hub: `library_name` of its repositories on the Hub.
    """

    implementation: str
    source: str
    package: str
    module: str
    hub: str

    @property
    def environments(self) -> tuple[str, ...]:
        """The environments whose recipes have the package; `default` for Transformers alone."""
        environments = (
            name for name, packages in PACKAGE_ENVIRONMENTS.items() if self.package in packages
        )
        return tuple(environments) or (DEFAULT_ENVIRONMENT,)


class ModelLibrary(Protocol):
    """Lists the models of a library; a `Source`. Raises SourceError if the library is not there.

    `package` is the folder of the package to read (None: that of the environment in which its
    models run), `heads="all"` selects every model, `popularity` is a project's own file of
    downloads, and `cache` the folder that stores what was read.
    """

    name: str

    def __init__(
        self,
        *,
        heads: str = "default",
        package: Path | None = None,
        popularity: Path | None = None,
        cache: Path | None = None,
    ) -> None: ...

    def models(self) -> tuple[ModelSpec, ...]: ...


_FOLDER = "compilewatch.sources.libraries"

LIBRARIES: dict[str, LibraryRow] = {
    "transformers": LibraryRow(
        implementation="compilewatch.sources.transformers.source:LibrarySource",
        source="library",
        package="transformers",
        module="transformers",
        hub="transformers",
    ),
    "timm": LibraryRow(
        implementation=f"{_FOLDER}.timm:TimmSource",
        source="timm",
        package="timm",
        module="timm",
        hub="timm",
    ),
    "torchvision": LibraryRow(
        implementation=f"{_FOLDER}.torchvision:TorchvisionSource",
        source="torchvision",
        package="torchvision",
        module="torchvision",
        hub="torchvision",
    ),
    "diffusers": LibraryRow(
        implementation=f"{_FOLDER}.diffusers:DiffusersSource",
        source="diffusers",
        package="diffusers",
        module="diffusers",
        hub="diffusers",
    ),
    "sentence-transformers": LibraryRow(
        implementation=f"{_FOLDER}.sentence_transformers:SentenceTransformersSource",
        source="sentence-transformers",
        package="sentence-transformers",
        module="sentence_transformers",
        hub="sentence-transformers",
    ),
    "open_clip": LibraryRow(
        implementation=f"{_FOLDER}.open_clip:OpenClipSource",
        source="open_clip",
        package="open-clip-torch",
        module="open_clip",
        hub="open_clip",
    ),
}
"""All libraries, in the order in which their models are listed."""


ADAPTERS = "peft"
"""The distribution that puts adapters on models of Transformers."""


def package_of(library: str) -> str | None:
    """Return the distribution that a library's models need, None for an unknown library."""
    return LIBRARIES[library].package if library in LIBRARIES else None
