"""Keys: digests of everything that can change a result.

Requests with equal keys are evaluated once and share the result, in this run or from an earlier
one. A key that omits something therefore returns a wrong result, and a key that contains too much
repeats work. When in doubt, the key contains it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.contract.devices import declared
from compilewatch.contract.targets import COMMON_FILES, entry, variants_of
from compilewatch.errors import ConfigError
from compilewatch.records import (
    HARNESS_VERSION,
    ClassBuild,
    ConfigBuild,
    Depth,
    Environment,
    FactoryBuild,
    LibraryBuild,
    ModelSpec,
    Target,
    Tier,
    Variants,
    digest,
)

# fmt: off
GENERIC_WORDS = frozenset({
    "audio", "base", "causal", "classification", "conditional", "config", "decoder", "encoder",
    "for", "generation", "head", "image", "lm", "model", "sequence", "text", "token", "video",
    "vision", "with",
})
# fmt: on
"""Words of class names and model types that do not show that two models are related."""


@cache
def target_sha256(target: str) -> str:
    """Return the digest of the files that can change a target's results (see its catalogue row).

    An edit to any of these files makes results of earlier runs unusable; other edits do not.
    """
    folder = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(_source_files(folder, (*COMMON_FILES, *entry(target).files))):
        total.update(f"{path.relative_to(folder)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _source_files(folder: Path, names: Iterable[str]) -> set[Path]:
    files: set[Path] = set()
    for name in names:
        path = folder / name
        files |= {path} if path.is_file() else set(path.rglob("*.py"))
    return files


def class_of(spec: ModelSpec) -> str | None:
    """Return the class that a model is built from, None if only the worker knows it."""
    build = spec.build
    named = build.class_name if isinstance(build, ClassBuild | ConfigBuild) else None
    return named or spec.architecture


def overrides_for(spec: ModelSpec, overrides: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the overrides that may apply to a model: rather one too many than one too few.

    Only these enter its key, so that a new line for one model does not repeat a thousand others.
    The class decides exactly. Only the worker knows the model type (a class of the family `clip`
    may have `clip_text_model`), so a type counts if it resembles the family or the class.
    """
    class_name = class_of(spec)
    applying = []
    for override in overrides:
        classes, types = override.get("classes", ()), override.get("model_types", ())
        if classes and class_name is not None and class_name not in classes:
            continue
        if types and not any(_resembles(t, spec.family, class_name or "") for t in types):
            continue
        applying.append(override)
    return applying


def request_key(
    spec: ModelSpec,
    target: Target,
    *,
    environment: Environment | None,
    tier: Tier,
    depth: Depth,
    variants: Variants = Variants.MAIN,
    overrides: Iterable[dict[str, Any]] = (),
    inputs_file: Path | None = None,
    operators_files: Iterable[Path] = (),
) -> str:
    """Return the key of a request: a digest of everything that can change its result.

    It does not contain the model's name, downloads or licence, nor deadlines and memory limits,
    which can only prevent a result, nor the environment's name: two names of one environment share
    results. `environment` None means that it does not exist, so that the request does not run.
    Raises ConfigError if `inputs_file` or one of `operators_files` cannot be read.
    """
    target_options = msgspec.structs.asdict(target)
    del target_options["environment"]
    target_options["device"] = declared(target.device)
    return digest(
        {
            "build": _build_identity(spec),
            "target": target_options,
            "tier": tier,
            "depth": depth,
            "variants": variants_of(target.name, variants),
            "environment": _environment_identity(environment),
            "overrides": overrides_for(spec, overrides),
            "inputs": _file_sha256(inputs_file) if inputs_file is not None else None,
            "operators": [_file_sha256(path) for path in operators_files],
            "harness": [HARNESS_VERSION, target_sha256(target.name)],
        }
    )


def _environment_identity(environment: Environment | None) -> list[str | None]:
    if environment is None:
        return []
    return [
        environment.digest,
        environment.torch,
        environment.torch_git,
        environment.transformers,
        environment.python,
        environment.device,
    ]


def _build_identity(spec: ModelSpec) -> dict[str, Any]:
    build = spec.build
    if isinstance(build, ClassBuild):
        return {"class": build.class_name}
    if isinstance(build, FactoryBuild):
        identity = {"factory": build.factory, "inputs": build.inputs, "source": build.source_sha256}
        # Without the digest of the source, only the folder distinguishes two factories.
        return identity if build.source_sha256 else {**identity, "path": build.path}
    if isinstance(build, LibraryBuild):
        return {
            "library": build.library,
            "name": build.name,
            "configuration": build.configuration_sha256,
        }
    assert isinstance(build, ConfigBuild)  # an object of a caller is never planned
    pinned = [build.repo, spec.revision]
    adapter = {"adapter": build.adapter_sha256} if build.adapter_file is not None else {}
    return adapter | {
        "config": build.config_sha256,
        "class": build.class_name or spec.architecture,
        "weights": pinned if build.weights else None,
        "remote_code": pinned if build.trust_remote_code else None,
    }


def _file_sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def _resembles(model_type: str, family: str, class_name: str) -> bool:
    plain_type, known = _plain(model_type), _plain(family)
    if (
        not known
        or known == "unknown"
        or plain_type.startswith(known)
        or known.startswith(plain_type)
    ):
        return True
    if plain_type in _plain(class_name):
        return True
    return bool(_words(model_type) & (_words(family) | _words(class_name)))


@cache
def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _words(name: str) -> frozenset[str]:
    words = (w.lower() for w in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name))
    return frozenset(words) - GENERIC_WORDS
