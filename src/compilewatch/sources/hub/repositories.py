"""From a repository's configuration files to the models that it has, or the reason for none.

What decides, in turn: the format of the weights, the library that the Hub names, and which
configuration files there are. No weights and no code of a repository are read. docs/guide.md lists
the kinds of repository.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.contract.libraries import ADAPTERS
from compilewatch.errors import ConfigError
from compilewatch.records import LibraryBuild, ModelSpec, Part, canonical_config, digest
from compilewatch.sources.configs import Configured, Resolver, read_config
from compilewatch.sources.hub import formats
from compilewatch.sources.hub.original import ORIGINAL_CONFIG
from compilewatch.sources.hub.reviewed import Reviewed
from compilewatch.sources.hub.specs import built, configured, library_build, skipped

BASE = "base"
"""The folder, in that of a repository, with the configurations of an adapter's base."""

BASE_CONFIG = f"{BASE}/config.json"
BASE_INDEX = f"{BASE}/model_index.json"

NO_MODELS = re.compile(
    r"(Scheduler|Tokenizer(Fast)?|Processor(Fast)?|FeatureExtractor|Guider|GuidanceProjector)$"
)
"""Classes of a pipeline's components that are not models."""

SIZES = {"hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"}
"""Keys of a configuration that was written for Transformers before it stored `model_type`."""

BUILT_HERE = "Transformers, timm, diffusers, sentence-transformers and open_clip"


@dataclass(frozen=True, kw_only=True)
class Repository:
    """What is known of a repository; `folder` has its configuration files, if it has any.

    `files` are the names of its files, None in a list that does not name them. `trusted`: a person
    listed this commit in `remote_code.toml`.
    """

    name: str
    folder: Path | None = None
    library: str | None = None
    tags: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None
    weights: bool = False
    trusted: bool = False

    def has(self, name: str) -> bool:
        return self.folder is not None and (self.folder / name).is_file()

    def path(self, name: str) -> Path:
        assert self.folder is not None
        return self.folder / name

    def read(self, name: str) -> dict[str, Any]:
        """Read a configuration file. Raises ConfigError, with the name that it has on the Hub."""
        try:
            return read_config(self.path(name))
        except ConfigError as error:
            reason = str(error).removeprefix(str(self.path(name))).lstrip(":, ")
            raise ConfigError(f"{name}: {reason}") from error

    def read_if_there(self, name: str) -> dict[str, Any]:
        return self.read(name) if self.has(name) else {}


Rule = Callable[["Kinds", ModelSpec, Repository], tuple[ModelSpec, ...]]


class Kinds:
    """The kinds of repository, resolved against one scan of Transformers.

    `reviewed` has the repositories whose files do not say what their users run.
    """

    def __init__(self, resolver: Resolver, reviewed: Reviewed | None = None) -> None:
        self._resolver = resolver
        self._reviewed = reviewed or Reviewed(())

    def models(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        """Return the models of a repository, or `spec` with a reason to skip it.

        `spec` has what the list says of the repository; there is one model for each component of a
        pipeline, and one model for every other kind.
        """
        foreign = formats.foreign_format(repository.library, repository.tags, repository.files)
        if foreign is not None:
            return skipped(spec, f"not PyTorch: it has only {foreign} weights")
        specs = self._by_its_files(spec, repository)
        if all(resolved.skip_reason is not None for resolved in specs):
            return self._reviewed.models(spec, self._resolver) or specs
        return specs

    def _by_its_files(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        try:
            for rule in _rules(repository):
                if specs := rule(self, spec, repository):
                    return specs
        except ConfigError as error:
            return skipped(spec, f"invalid configuration: {error}")
        return skipped(spec, _why_none(repository))

    def adapter(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        """The base model of a PEFT adapter with the adapter on it."""
        adapter = repository.read("adapter_config.json")
        base = adapter.get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            return skipped(spec, "PEFT adapter: it names no base model")
        if not repository.has(BASE_CONFIG):
            reason = f"PEFT adapter: the configuration of its base model {base} is not available"
            return skipped(spec, reason)
        config = repository.read(BASE_CONFIG)
        # The base has a commit of its own, which nobody listed for remote code.
        resolved = self._resolver.resolve(repository.path(BASE_CONFIG), config, repo=base)
        base_spec = configured(spec, resolved, config, Part.WHOLE)
        if resolved.skip_reason is not None:
            return skipped(base_spec, f"PEFT adapter of {base}: {resolved.skip_reason}")
        build = msgspec.structs.replace(
            resolved.build,
            adapter_file=str(repository.path("adapter_config.json").resolve()),
            adapter_sha256=digest(canonical_config(adapter)),
            packages=(*resolved.build.packages, ADAPTERS),
        )
        return (msgspec.structs.replace(base_spec, build=build),)

    def pipeline(
        self, spec: ModelSpec, repository: Repository, index_file: str = "model_index.json"
    ) -> tuple[ModelSpec, ...]:
        """One model for each component of a pipeline of diffusers."""
        index = repository.read(index_file)
        components = tuple(
            self._component(spec, repository, index_file, name, library, class_name)
            for name, library, class_name in _components(index)
        )
        return components or skipped(
            spec, "pipeline of diffusers without a component that is a model"
        )

    def base_pipeline(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        """The components of the pipeline that an adapter of diffusers is for.

        An adapter such as a LoRA stores its layers in its weights only, which are not read.
        """
        components = self.pipeline(spec, repository, BASE_INDEX)
        return tuple(
            msgspec.structs.replace(component, part=Part.BASE_COMPONENT)
            if component.component
            else component
            for component in components
        )

    def _component(
        self,
        spec: ModelSpec,
        repository: Repository,
        index_file: str,
        name: str,
        library: str,
        class_name: str,
    ) -> ModelSpec:
        spec = msgspec.structs.replace(
            spec,
            name=f"{repository.name}#{name}",
            part=Part.COMPONENT,
            component=name,
            architecture=class_name,
            family=class_name,
        )
        file = f"{index_file.removesuffix('model_index.json')}{name}/config.json"
        if library not in ("diffusers", "transformers"):
            own = f"{name}.py" in (repository.files or ()) or f"{library}.py" in (
                repository.files or ()
            )
            reason = (
                f"remote code: component {name} is a class of the repository"
                if own
                else f"component {name}: {class_name} belongs to the pipeline, not to the models "
                "of diffusers"
            )
            return msgspec.structs.replace(spec, skip_reason=reason)
        if not repository.has(file):
            reason = (
                f"component {name}: its configuration is not in the repository's list: pull again"
            )
            return msgspec.structs.replace(spec, skip_reason=reason)
        config = repository.read(file)
        if library == "transformers":
            resolved = self._resolver.resolve(
                repository.path(file), config, class_name=class_name, repo=repository.name
            )
            return configured(spec, resolved, config, Part.COMPONENT)
        build = library_build("diffusers", class_name, repository.path(file))
        return built(spec, build, class_name, "vision", config, Part.COMPONENT)

    def diffusers_model(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        """A single model of diffusers, such as an autoencoder or a ControlNet."""
        config = repository.read_if_there("config.json")
        class_name = config.get("_class_name")
        if not isinstance(class_name, str):
            return ()
        build = library_build("diffusers", class_name, repository.path("config.json"))
        return (built(spec, build, class_name, "vision", config),)

    def timm(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        config = repository.read_if_there("config.json")
        name = config.get("architecture")
        if not isinstance(name, str) or "model_type" in config:
            return ()
        build = library_build("timm", name, repository.path("config.json"))
        return (built(spec, build, name.partition("_")[0], "vision", config),)

    def open_clip(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        if not repository.has("open_clip_config.json"):
            return ()
        config = repository.read("open_clip_config.json")
        build = library_build(
            "open_clip", repository.name, repository.path("open_clip_config.json")
        )
        return (built(spec, build, "open_clip", "multimodal", config),)

    def sentence_transformers(
        self, spec: ModelSpec, repository: Repository
    ) -> tuple[ModelSpec, ...]:
        """The chain of `modules.json`, or its Transformers part where a module is remote code."""
        if not repository.has("modules.json"):
            return ()
        modules = _modules(repository)
        own = [kind for kind, _ in modules if not kind.startswith("sentence_transformers.")]
        paths = [path for kind, path in modules if kind.endswith(("Transformer", "CLIPModel"))]
        config: dict[str, Any] = {}
        resolved = None
        file = next((f for f in (_config_of(path) for path in paths) if repository.has(f)), None)
        if file is not None:
            config = repository.read(file)
            resolved = self._transformers(repository, file, config)
        if own or (resolved is not None and resolved.needs_remote_code):
            return self._transformers_part(spec, resolved, config, own)
        build = LibraryBuild(
            library="sentence-transformers",
            name=repository.name,
            configuration=str(repository.path(".").resolve()),
            configuration_sha256=_folder_sha256(repository),
        )
        chain = built(spec, build, resolved.family if resolved else "unknown", "text", config)
        if resolved is not None and resolved.skip_reason is not None:
            return skipped(chain, f"sentence-transformers: {resolved.skip_reason}")
        return (
            msgspec.structs.replace(
                chain, architecture=resolved.architecture if resolved else None
            ),
        )

    def _transformers_part(
        self,
        spec: ModelSpec,
        resolved: Configured | None,
        config: Mapping[str, Any],
        own: list[str],
    ) -> tuple[ModelSpec, ...]:
        if resolved is None:
            return skipped(spec, f"remote code: {own[0]} is not a module of sentence-transformers")
        return (configured(spec, resolved, config, Part.TRANSFORMERS),)

    def transformers(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        """A class of Transformers; only a part, where the repository is of another library."""
        config = repository.read_if_there("config.json")
        if not {"model_type", "architectures", "auto_map"} & config.keys():
            named = self._resolver.named_type(repository.name)
            if named is None or not config.keys() >= SIZES:
                return ()
            config["model_type"] = named
        resolved = self._transformers(repository, "config.json", config)
        other = formats.other_library(repository.library, (), repository.files)
        if (
            other is not None
            and resolved.skip_reason is not None
            and not resolved.needs_remote_code
        ):
            return ()
        beside = repository.read_if_there("quantize_config.json") or None
        part = Part.WHOLE if other is None else Part.TRANSFORMERS
        return (configured(spec, resolved, config, part, beside),)

    def original(self, spec: ModelSpec, repository: Repository) -> tuple[ModelSpec, ...]:
        if not repository.has(ORIGINAL_CONFIG):
            return ()
        config = repository.read(ORIGINAL_CONFIG)
        resolved = self._resolver.resolve(repository.path(ORIGINAL_CONFIG), config)
        return (configured(spec, resolved, config, Part.ORIGINAL),)

    def _transformers(
        self, repository: Repository, file: str, config: dict[str, Any]
    ) -> Configured:
        return self._resolver.resolve(
            repository.path(file),
            config,
            repo=repository.name,
            weights=repository.weights,
            trust_remote_code=repository.trusted,
        )


def _rules(repository: Repository) -> Iterator[Rule]:
    """Yield the rules to try: that of the library which the Hub names, then those of the files."""
    if repository.has("adapter_config.json") and (
        repository.library == "peft" or not repository.has("config.json")
    ):
        yield Kinds.adapter
    if repository.has("model_index.json"):
        yield Kinds.pipeline
    elif repository.has(BASE_INDEX):
        yield Kinds.base_pipeline
    named: dict[str, Rule] = {
        "diffusers": Kinds.diffusers_model,
        "open_clip": Kinds.open_clip,
        "sentence-transformers": Kinds.sentence_transformers,
        "timm": Kinds.timm,
        "transformers": Kinds.transformers,
    }
    if repository.library in named:
        yield named[repository.library]
    yield Kinds.sentence_transformers
    yield Kinds.transformers
    yield Kinds.diffusers_model
    yield Kinds.timm
    yield Kinds.open_clip
    yield Kinds.original


def _why_none(repository: Repository) -> str:
    other = formats.other_library(repository.library, repository.tags, repository.files)
    if other is not None:
        return f"a model of {other}: only models of {BUILT_HERE} are built"
    if repository.library == "diffusers":
        kind = "a LoRA" if "lora" in repository.tags else "adapter or single-file weights"
        return f"{kind} for diffusers, without the configuration of a model"
    if repository.has("config.json"):
        return "its config.json names no model_type"
    return formats.why_no_model(repository.files)


def _components(index: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield name, library and class of each component of a pipeline that may be a model."""
    for name, value in index.items():
        if not name.isidentifier() or not isinstance(value, list) or len(value) != 2:
            continue
        library, class_name = value
        named = isinstance(library, str) and isinstance(class_name, str)
        if named and not NO_MODELS.search(class_name):
            yield name, library, class_name


def _modules(repository: Repository) -> list[tuple[str, str]]:
    """Return type and folder of each module of `modules.json`. Raises ConfigError."""
    try:
        modules = json.loads(repository.path("modules.json").read_bytes())
        return [(str(module["type"]), str(module.get("path", ""))) for module in modules]
    except (OSError, ValueError) as error:
        raise ConfigError(f"modules.json: not JSON: {error}") from error
    except (AttributeError, KeyError, TypeError):
        raise ConfigError("modules.json: must be a list of modules with type and path") from None


def _config_of(path: str) -> str:
    return f"{path}/config.json" if path else "config.json"


def _folder_sha256(repository: Repository) -> str:
    """Return the digest of all configuration files of a repository."""
    content: dict[str, Any] = {}
    for path in sorted(repository.path(".").rglob("*.json")):
        name = path.relative_to(repository.path(".")).as_posix()
        try:
            value = json.loads(path.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{name}: not JSON: {error}") from error
        content[name] = canonical_config(value) if isinstance(value, dict) else value
    return digest(content)
