"""Where models come from: one Protocol, one line each in `SOURCES`; loaded lazily."""

from __future__ import annotations

from typing import Protocol

from compilewatch.records import ModelSpec

SOURCES: dict[str, str] = {
    "library": "compilewatch.sources.transformers.source:LibrarySource",
    "hub": "compilewatch.sources.hub.source:HubSource",
    "manifest": "compilewatch.sources.manifest:ManifestSource",
    "chaos": "compilewatch.sources.chaos:ChaosSource",
}


class Source(Protocol):
    """Yields model specs without importing torch. Raises SourceError or ConfigError."""

    name: str

    def models(self) -> tuple[ModelSpec, ...]:
        """All models of this source, most used first, then by name; names are unique."""
        ...
