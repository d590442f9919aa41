"""Model specs of a repository: built by Transformers, by another library, or skipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.records import LibraryBuild, ModelSpec, Part, canonical_config, digest
from compilewatch.sources.configs import Configured, read_config
from compilewatch.sources.hub.quantized import quantization_of


def skipped(spec: ModelSpec, reason: str) -> tuple[ModelSpec]:
    """Return a model that is not evaluated, with the reason."""
    return (msgspec.structs.replace(spec, skip_reason=reason),)


def configured(
    spec: ModelSpec,
    resolved: Configured,
    config: Mapping[str, Any],
    part: Part,
    beside: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """Return the model of Transformers that a configuration says.

    `beside` is a file that describes the quantisation instead of the configuration.
    """
    return msgspec.structs.replace(
        spec,
        build=resolved.build,
        architecture=resolved.architecture,
        family=resolved.family,
        task=resolved.task,
        part=part,
        quantization=quantization_of(config, beside),
        skip_reason=resolved.skip_reason,
    )


def built(
    spec: ModelSpec,
    build: LibraryBuild,
    family: str,
    task: str,
    config: Mapping[str, Any],
    part: Part = Part.WHOLE,
) -> ModelSpec:
    """Return a model of another library."""
    return msgspec.structs.replace(
        spec,
        build=build,
        architecture=build.name,
        family=family,
        task=task,
        part=part,
        quantization=quantization_of(config),
    )


def library_build(library: str, name: str, path: Path) -> LibraryBuild:
    """Return the build of a library's model that a file configures. Raises ConfigError."""
    return LibraryBuild(
        library=library,
        name=name,
        configuration=str(path.resolve()),
        configuration_sha256=digest(canonical_config(read_config(path))),
    )
