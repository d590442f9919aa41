"""From a `config.json` on disk to a model spec, or to the reason why it cannot be built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compilewatch.data import PackageClass
from compilewatch.errors import ConfigError
from compilewatch.records import ConfigBuild, Record, config_sha256
from compilewatch.sources.transformers.scan import ModelClass, ScannedLibrary
from compilewatch.sources.transformers.source import concrete_classes, primary_classes, task_group

TIMM = "timm"
TIMM_TYPES = ("timm_backbone", "timm_wrapper")
"""Types of models of Transformers that timm builds."""


class Configured(Record, frozen=True, kw_only=True):
    """The class that a configuration builds with the installed Transformers.

    `skip_reason` is set if it builds no class, or none without running remote code.
    """

    build: ConfigBuild
    family: str = "unknown"
    architecture: str | None = None
    task: str = "unknown"
    skip_reason: str | None = None
    needs_remote_code: bool = False


def parse_config(text: str, origin: str) -> dict[str, Any]:
    """Parse a configuration. Raises ConfigError that names `origin` and the line."""
    try:
        config = json.loads(text)
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{origin}, line {exc.lineno}: not JSON: {exc.msg}") from exc
    if not isinstance(config, dict):
        raise ConfigError(f"{origin}: must be a JSON object, not {type(config).__name__}")
    return config


def read_config(path: Path) -> dict[str, Any]:
    """Read a configuration file. Raises ConfigError."""
    try:
        return parse_config(path.read_text(encoding="utf-8"), str(path))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 text: {exc.reason}") from exc


class Resolver:
    """Resolves configurations against one scan of Transformers.

    `elsewhere` has the reviewed classes of other packages that Transformers' configurations name.
    """

    def __init__(
        self, library: ScannedLibrary, elsewhere: Mapping[str, PackageClass] | None = None
    ) -> None:
        self._library = library
        self._elsewhere = elsewhere or {}
        self._classes = {cls.name: cls for cls in concrete_classes(library)}
        self._primaries = primary_classes(library)

    def resolve(
        self,
        config_file: Path,
        config: dict[str, Any],
        *,
        class_name: str | None = None,
        repo: str | None = None,
        weights: bool = False,
        trust_remote_code: bool = False,
    ) -> Configured:
        """Return the class of Transformers that this configuration names, or why there is none.

        A model's remote code is needed only if its class, or the class of its model type, is not in
        Transformers. Otherwise the class from Transformers is built and no remote code runs.
        `class_name` is the class, if something else than the configuration names it. Where only the
        class is named, its model type is taken, as its `from_pretrained` does.
        """
        named = class_name or _architecture(config)
        family = config.get("model_type")
        if not isinstance(family, str) or not family:
            family = self._classes[named].model_type if named in self._classes else "unknown"
        model_class = self._class_of(family, named)
        foreign = model_class is None or (
            bool(config.get("auto_map")) and model_class.model_type != family
        )
        other = self._elsewhere.get(named or "") if model_class is None else None
        needs_code = bool(config.get("auto_map")) and foreign and other is None
        skip_reason = None
        if needs_code and not trust_remote_code:
            skip_reason = "remote code: its repository and revision are not in remote_code.toml"
        elif model_class is None and other is None and not needs_code:
            skip_reason = self._why_unknown(family, named)
        build = ConfigBuild(
            config_file=str(config_file.resolve()),
            config_sha256=config_sha256(config),
            class_name=named if needs_code or model_class is None else model_class.name,
            repo=repo,
            weights=weights,
            trust_remote_code=needs_code and trust_remote_code,
            packages=(
                *((TIMM,) if _has_timm_backbone(config) else ()),
                *(other.packages if other is not None else ()),
            ),
            class_module=other.module if other is not None else None,
        )
        return Configured(
            build=build,
            family=family,
            architecture=build.class_name,
            task=task_group(model_class, self._library) if model_class else "unknown",
            skip_reason=skip_reason,
            needs_remote_code=needs_code,
        )

    def named_type(self, name: str) -> str | None:
        """Return the longest model type in a repository's name, as Transformers did before 5.

        Configurations of 2019 and 2020 have no `model_type`. Types of three letters occur in too
        many words.
        """
        words = name.rpartition("/")[2].lower()
        types = [t for t in self._library.model_types if len(t) > 3 and t in words]
        return max(types, key=len, default=None)

    def _class_of(self, family: str, named: str | None) -> ModelClass | None:
        if family not in self._library.model_types:
            return None
        return self._classes.get(named or self._primaries.get(family, ""))

    def _why_unknown(self, family: str, named: str | None) -> str:
        version = f"transformers {self._library.version}"
        if family == "unknown":
            return "its config.json names no model_type"
        if family not in self._library.model_types:
            return f"{version} has no model type {family}"
        return f"{version} has no class {named or f'to build a {family} with'}"


def _has_timm_backbone(value: Any) -> bool:
    """Whether a configuration or a part of it names a backbone of timm."""
    if not isinstance(value, dict):
        return False
    if value.get("use_timm_backbone") is True or value.get("model_type") in TIMM_TYPES:
        return True
    return any(map(_has_timm_backbone, value.values()))


def _architecture(config: dict[str, Any]) -> str | None:
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        return architectures[0]
    return None
