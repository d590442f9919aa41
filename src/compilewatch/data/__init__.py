"""Reviewed data that every installation has. A project's own files of the same kinds add to it.

A project's files lie in its folder `inputs`, or where its settings name them. Where two entries are
about the same thing, that of the project applies.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from compilewatch.files import read_toml

T = TypeVar("T", bound=msgspec.Struct)

FOLDER = Path(__file__).parent

EXPECTATIONS = FOLDER / "expectations.toml"
LIBRARY_POPULARITY = FOLDER / "library_popularity.csv"
MODEL_PRICES = FOLDER / "papers" / "prices.toml"
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


def read(own: Path | None, shipped: Path, kind: type[T]) -> tuple[T, ...]:
    """Read a project's own file, if it exists, and then the shipped file of the same kind.

    Raises ConfigError that names the file and the line or field.
    """
    paths = (own, shipped) if own is not None and own.exists() else (shipped,)
    return tuple(read_toml(path, kind) for path in paths)
