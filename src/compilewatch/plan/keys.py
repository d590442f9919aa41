"""When are two questions the same? Digests of all that can change an answer.

Two requests with one key are asked once and answered for both, today or from an earlier run, so
a key that forgets something returns a wrong answer, and a key that holds too much asks twice.
Where it is not certain that something cannot matter, it is in the key.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.contract.targets import COMMON_FILES, entry
from compilewatch.errors import ConfigError
from compilewatch.records import (
    HARNESS_VERSION,
    ChaosBuild,
    ClassBuild,
    ConfigBuild,
    Depth,
    Environment,
    FactoryBuild,
    ModelSpec,
    Target,
    Tier,
)
from compilewatch.records.digests import digest

# fmt: off
GENERIC_WORDS = frozenset({
    "audio", "base", "causal", "classification", "conditional", "config", "decoder", "encoder",
    "for", "generation", "head", "image", "lm", "model", "sequence", "text", "token", "video",
    "vision", "with",
})
# fmt: on
"""Words of class names and model types that say nothing about kinship."""


@cache
def target_sha256(target: str) -> str:
    """Digest of the files that can change a result of a target (its row of the catalogue).

    An edit to any of them makes results of earlier runs unusable; an edit elsewhere does not.
    """
    folder = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(_source_files(folder, (*COMMON_FILES, *entry(target).files))):
        total.update(f"{path.relative_to(folder)}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _source_files(folder: Path, names: Iterable[str]) -> set[Path]:
    found: set[Path] = set()
    for name in names:
        path = folder / name
        found |= {path} if path.is_file() else set(path.rglob("*.py"))
    return found


def read_overrides(folder: Path | None) -> tuple[dict[str, Any], ...]:
    """The `[[override]]` tables of a folder of input overrides, without their prose.

    Raises ConfigError. `worker/model/overrides.py` validates them; here only whom they select and
    that they changed counts.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.toml")) if folder is not None else ():
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8")).get("override", [])
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from None
        if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
            raise ConfigError(f"{path}: overrides are written as [[override]] tables")
        found += ({k: v for k, v in e.items() if k not in ("reason", "date")} for e in entries)
    return tuple(found)


def overrides_for(spec: ModelSpec, overrides: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The overrides that may apply to a model; one too many is harmless, one too few is not.

    Only these enter its key: a new line for one model must not ask a thousand others again. The
    class decides exactly; the model type is known to the worker alone (a class of the family
    `clip` may have `clip_text_model`), so a type counts where it resembles the family or class.
    """
    build = spec.build
    class_name = build.class_name if isinstance(build, ClassBuild | ConfigBuild) else None
    class_name = class_name or spec.architecture
    found = []
    for override in overrides:
        classes, types = override.get("classes", ()), override.get("model_types", ())
        if classes and class_name is not None and class_name not in classes:
            continue
        if types and not any(_resembles(t, spec.family, class_name or "") for t in types):
            continue
        found.append(override)
    return found


def request_key(
    spec: ModelSpec,
    target: Target,
    *,
    environment: Environment | None,
    tier: Tier,
    depth: Depth,
    overrides: Iterable[dict[str, Any]] = (),
    inputs_file: Path | None = None,
    operators_file: Path | None = None,
) -> str:
    """The key of a question: a digest of all that can change its answer.

    Not the model's name, downloads or licence; not deadlines and memory, which can only prevent
    an answer. Nor the environment's name: two names of one environment share its answers. None is
    one that does not exist, whose requests are not asked. Raises ConfigError where `inputs_file` or
    `operators_file` cannot be read.
    """
    asked = msgspec.structs.asdict(target)
    del asked["environment"]
    return digest(
        {
            "build": _build_identity(spec),
            "target": asked,
            "tier": tier,
            "depth": depth,
            "environment": _environment_identity(environment),
            "overrides": overrides_for(spec, overrides),
            "inputs": _file_sha256(inputs_file) if inputs_file is not None else None,
            "operators": _file_sha256(operators_file) if operators_file is not None else None,
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
    if isinstance(build, ChaosBuild):
        return {"chaos": build.behaviour}
    if isinstance(build, FactoryBuild):
        identity = {"factory": build.factory, "inputs": build.inputs, "source": build.source_sha256}
        # Without the source's digest the folder is all that tells two factories apart.
        return identity if build.source_sha256 else {**identity, "path": build.path}
    pinned = [build.repo, spec.revision]
    return {
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
    wanted, known = _plain(model_type), _plain(family)
    if not known or known == "unknown" or wanted.startswith(known) or known.startswith(wanted):
        return True
    if wanted in _plain(class_name):
        return True
    return bool(_words(model_type) & (_words(family) | _words(class_name)))


@cache
def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@cache
def _words(name: str) -> frozenset[str]:
    found = (w.lower() for w in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name))
    return frozenset(found) - GENERIC_WORDS
