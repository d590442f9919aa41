"""Sources of models: one Protocol, one row for each in `SOURCES`; loaded lazily."""

from __future__ import annotations

from typing import Protocol

from compilewatch import extras
from compilewatch.records import ModelSpec
from compilewatch.sources.libraries import ALL, LIBRARIES

SOURCES: dict[str, str] = {
    **{row.source: row.implementation for row in LIBRARIES.values()},
    ALL: "compilewatch.sources.libraries.source:AllLibraries",
    "hub": "compilewatch.sources.hub.source:HubSource",
    "manifest": "compilewatch.sources.manifest:ManifestSource",
    **extras.rows("sources"),
}


class Source(Protocol):
    """Makes model specs without importing torch. Raises SourceError or ConfigError."""

    name: str

    def models(self) -> tuple[ModelSpec, ...]:
        """Return all models of this source, most used first, then by name; names are unique."""
        ...
