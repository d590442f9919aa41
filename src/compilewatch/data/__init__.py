"""Reviewed data that every installation has. A project's own files of the same kinds add to it.

A project's files lie in its folder `inputs`, or where its settings name them. Where two entries are
about the same thing, that of the project applies.
"""

import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from compilewatch.errors import ConfigError
from compilewatch.files import read_toml, toml_table
from compilewatch.records import Record

T = TypeVar("T", bound=msgspec.Struct)

FOLDER = Path(__file__).parent

DIFFUSERS = FOLDER / "diffusers.toml"
"""What single classes of diffusers need besides rules."""
EXPECTATIONS = FOLDER / "expectations.toml"
HUB_FORMATS = FOLDER / "hub_formats.toml"
"""What the names of files, libraries and tags on the Hub say."""
LIBRARY_POPULARITY = FOLDER / "library_popularity.csv"
MODEL_PRICES = FOLDER / "papers" / "prices.toml"
NEURON_DECOMPOSITIONS = FOLDER / "neuron_decompositions.toml"
NEURON_OPERATORS = FOLDER / "neuron_operators.toml"
MODELS = FOLDER / "models"
"""Reviewed configurations of published models, by library."""
OVERRIDES = FOLDER / "overrides"
POPULARITY = FOLDER / "popularity.csv"
REPOSITORIES = FOLDER / "repositories.toml"
REQUIREMENTS = FOLDER / "requirements"
"""The locks of environments; in the checkout, a link to `requirements/`."""
RULES = FOLDER / "papers" / "rules.toml"
SENTENCE_TRANSFORMERS = FOLDER / "sentence-transformers"
TRAINIUM_PRICES = FOLDER / "trainium_prices.toml"


class Reviewed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of reviewed data: why it is so, and when that was reviewed."""

    reason: Annotated[str, Meta(min_length=1)]
    date: datetime.date


class PriceRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a file of prices: when it was reviewed, and where the price stands."""

    date: datetime.date
    source: Annotated[str, Meta(min_length=1)]


def read(own: Path | None, shipped: Path, kind: type[T]) -> tuple[T, ...]:
    """Read a project's own file, if it exists, and then the shipped file of the same kind.

    Raises ConfigError that names the file and the line or field.
    """
    paths = (own, shipped) if own is not None and own.exists() else (shipped,)
    return tuple(read_toml(path, kind) for path in paths)


class PackageClass(Record, frozen=True, kw_only=True):
    """Where a class is that derives from Transformers' own, but is in another package."""

    module: str
    packages: tuple[str, ...]


def package_classes(own: Path) -> dict[str, PackageClass]:
    """Return the classes for which a reviewed line names a module. Raises ConfigError.

    `own` is a project's folder of overrides, which need not exist.
    """
    return {
        name: PackageClass(module=override["module"], packages=tuple(override.get("packages", ())))
        for override in read_overrides(own if own.is_dir() else None)
        if override.get("module")
        for name in override.get("classes", ())
    }


def read_overrides(own: Path | None) -> tuple[dict[str, Any], ...]:
    """Return the `[[override]]` tables, without `reason` and `date`: the shipped ones come first.

    `own` is a project's folder of overrides. `worker/model/overrides.py` validates them; a key only
    depends on which models they select and on their content. Raises ConfigError.
    """
    overrides: list[dict[str, Any]] = []
    folders = (OVERRIDES,) if own is None else (OVERRIDES, own)
    for path in (path for folder in folders for path in sorted(folder.glob("*.toml"))):
        entries = toml_table(path).get("override", [])
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise ConfigError(f"{path}: overrides are written as [[override]] tables")
        overrides += ({k: v for k, v in e.items() if k not in ("reason", "date")} for e in entries)
    return tuple(overrides)
