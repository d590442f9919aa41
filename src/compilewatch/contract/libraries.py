"""The table of libraries of models: one row contains everything the parent knows of a library.

To add a library, write its class in `worker.model.libraries`, which lists, builds and calls its
models, and add a row here; the packages are locked in `requirements/`. The parent lists and places
models by these rows and never imports a library.
"""

from compilewatch.records import DEFAULT_ENVIRONMENT, Record

ADAPTERS = "peft"
"""The distribution that puts adapters on models of Transformers."""


class LibraryRow(Record, frozen=True, kw_only=True):
    """One library.

    Attributes:
        name: its name in builds, in the names of its models and, but for Transformers, in
            `--source`.
        implementation: `"module:Class"`, a `worker.model.libraries.Library`; imported in a worker
            only. Empty for Transformers, which `worker.model.resolve` builds.
        package: the distribution that has the models, if its name differs.
        environments: those whose locks have the package; `default` for Transformers alone.
        one_of_each_family: whether by default one model of each family is selected, the most used
            or first one.
        configurations: whether its models are folders of configurations, in the shipped data and in
            the inputs of a project, instead of what the package itself has.
        by_module: whether a module alone says what it takes, whoever built it.
        warm_up: a module that takes long to import, which a server imports before its first child.
    """

    name: str
    implementation: str = ""
    package: str = ""
    environments: tuple[str, ...] = (DEFAULT_ENVIRONMENT,)
    one_of_each_family: bool = False
    configurations: bool = False
    by_module: bool = False
    warm_up: str = ""

    @property
    def source(self) -> str:
        """The value of `--source`."""
        return self.name if self.implementation else "library"

    @property
    def module(self) -> str:
        """The package's folder, as `import` names it."""
        return self.name.replace("-", "_")

    @property
    def distribution(self) -> str:
        return self.package or self.name


class LibraryModel(Record, frozen=True, kw_only=True):
    """A model as its library names it.

    `family` groups the variants of one design. `published` says that the library knows weights of
    it. A model that is not `selected` is left out without `heads="all"`. `parts` are the
    names of the models that a pipeline consists of, which is itself no model.
    """

    name: str
    family: str
    task: str = "vision"
    published: bool = True
    selected: bool = True
    parts: tuple[str, ...] = ()


class ListedModels(Record, frozen=True, kw_only=True):
    """What a worker of an environment lists, by library, and why a library cannot be listed."""

    models: dict[str, tuple[LibraryModel, ...]]
    problems: dict[str, str]


_FOLDER = "compilewatch.worker.model.libraries"

LIBRARIES: dict[str, LibraryRow] = {
    row.name: row
    for row in (
        LibraryRow(name="transformers"),
        LibraryRow(
            name="timm",
            implementation=f"{_FOLDER}.timm:Timm",
            environments=("vision", "libraries"),
            one_of_each_family=True,
            by_module=True,
            warm_up="timm",
        ),
        LibraryRow(
            name="torchvision",
            implementation=f"{_FOLDER}.torchvision:Torchvision",
            environments=("vision", "libraries"),
        ),
        LibraryRow(
            name="diffusers",
            implementation=f"{_FOLDER}.diffusers:Diffusers",
            environments=("libraries",),
            by_module=True,
            warm_up="diffusers.models.unets.unet_2d_condition",
        ),
        LibraryRow(
            name="sentence-transformers",
            implementation=f"{_FOLDER}.sentence_transformers:SentenceTransformers",
            environments=("libraries",),
            configurations=True,
            by_module=True,
            warm_up="sentence_transformers",
        ),
        LibraryRow(
            name="open_clip",
            implementation=f"{_FOLDER}.open_clip:OpenClip",
            package="open-clip-torch",
            environments=("libraries",),
            warm_up="open_clip",
        ),
    )
}
"""All libraries, in the order in which their models are listed."""

_FURTHER_PACKAGES = {"vision": (), "libraries": ("chronos-forecasting", ADAPTERS)}

PACKAGE_ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    name: tuple(
        sorted([*further, *(r.distribution for r in LIBRARIES.values() if name in r.environments)])
    )
    for name, further in _FURTHER_PACKAGES.items()
}
"""Environments with the torch of the default one -> the packages that they have besides."""
