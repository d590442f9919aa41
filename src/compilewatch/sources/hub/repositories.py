"""From a repository's configuration files to the models that it has, or the reason for none.

What decides, in turn: the format of the weights, the library that the Hub names, and which
configuration files there are. No weights and no code of a repository are read. docs/guide.md lists
the kinds of repository.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from compilewatch.contract.libraries import ADAPTERS, LIBRARIES
from compilewatch.data import REPOSITORIES
from compilewatch.errors import ConfigError
from compilewatch.files import read_toml
from compilewatch.records import (
    SCHEMA_VERSION,
    LibraryBuild,
    ModelSpec,
    Part,
    Quantization,
    canonical_config,
    digest,
)
from compilewatch.sources.hub import formats
from compilewatch.sources.transformers import Configured, Resolver, read_config

_METHODS = {
    "awq": Quantization.AWQ,
    "compressed-tensors": Quantization.COMPRESSED_TENSORS,
    "fbgemm_fp8": Quantization.FP8,
    "fp8": Quantization.FP8,
    "gptq": Quantization.GPTQ,
    "torchao": Quantization.TORCHAO,
}
"""`quant_method` as Transformers spells it (`QuantizationMethod`)."""


def quantization_of(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> Quantization | None:
    """Return the quantisation that a configuration says, None for weights as they were trained.

    `beside` is the `quantize_config.json` with which older releases of AutoGPTQ and AutoAWQ
    describe the weights instead of the configuration.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if isinstance(stated, Mapping):
        return _method(stated)
    if beside is not None:
        return Quantization.AWQ if "zero_point" in beside else Quantization.GPTQ
    return None


def _method(stated: Mapping[str, Any]) -> Quantization:
    method = str(stated.get("quant_method", "")).lower()
    eight = stated.get("load_in_8bit") or stated.get("_load_in_8bit")
    four = stated.get("load_in_4bit") or stated.get("_load_in_4bit")
    if method.startswith("bitsandbytes") or (not method and (eight or four)):
        return Quantization.BITSANDBYTES_8BIT if eight else Quantization.BITSANDBYTES_4BIT
    if method == "modelopt" and "FP8" in str(stated.get("quant_algo", "")):
        return Quantization.FP8
    return _METHODS.get(method, Quantization.OTHER)


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


FOLDER = "models"


class ReviewedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that users of the repository run.

    Attributes:
        library: a row of `contract.libraries`.
        configuration: the name of a file in `models/<library>/`, without its suffix.
        component: what the model is called, in a repository that has several.
    """

    library: str
    configuration: str
    component: str | None = None


class ReviewedRepository(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What repositories with these names have; either `model` or `skip`.

    Attributes:
        names: names with the wildcards of a shell (`org/*-model`).
        model: the models that their users run.
        part: what part of the repository the models are; by itself `component` where they have
            names, and `whole` otherwise.
        skip: the reason why there is nothing to evaluate.
        reason: how it is known.
        date: when it was reviewed.
    """

    names: list[str]
    reason: str
    date: datetime.date
    model: list[ReviewedModel] = []
    part: Part | None = None
    skip: str | None = None


class ReviewedRepositories(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `repositories.toml`."""

    schema_version: int = SCHEMA_VERSION
    repository: list[ReviewedRepository] = []


@dataclass(frozen=True)
class Reviewed:
    """Reviewed lines, each with the folder of the file that has it; the first that fits applies.

    A line says which models the users of a repository run whose files do not say it, by library and
    by a configuration in the folder `models` beside the file. It applies only where nothing else
    resolves the repository.
    """

    lines: tuple[tuple[ReviewedRepository, Path], ...]

    def models(self, spec: ModelSpec, resolver: Resolver) -> tuple[ModelSpec, ...]:
        """Return the models of a repository, none for one without a line. Raises ConfigError."""
        for line, folder in self.lines:
            if any(fnmatchcase(spec.name, name) for name in line.names):
                if line.skip is not None:
                    return skipped(spec, line.skip)
                return tuple(_model(spec, line, model, folder, resolver) for model in line.model)
        return ()


def read_reviewed(paths: Iterable[Path]) -> Reviewed:
    """Read the files that exist; lines of earlier ones come first. Raises ConfigError."""
    lines: list[tuple[ReviewedRepository, Path]] = []
    for path in paths:
        if path.exists():
            for line in read_toml(path, ReviewedRepositories).repository:
                _check(line, path)
                lines.append((line, path.parent / FOLDER))
    return Reviewed(tuple(lines))


def shipped_and_own(inputs: Path) -> Reviewed:
    """Read the lines of a project and those of every installation. Raises ConfigError."""
    return read_reviewed((inputs / REPOSITORIES.name, REPOSITORIES))


def _check(line: ReviewedRepository, path: Path) -> None:
    names = ", ".join(line.names)
    if bool(line.model) == (line.skip is not None):
        raise ConfigError(f"{path}: {names}: write either [[repository.model]] or skip")
    if len(line.model) > 1 and any(model.component is None for model in line.model):
        raise ConfigError(f"{path}: {names}: each of several models needs a component")
    for model in line.model:
        if model.library not in LIBRARIES:
            known = ", ".join(LIBRARIES)
            raise ConfigError(f"{path}: {names}: no library {model.library!r}; known: {known}")


def _model(
    spec: ModelSpec,
    line: ReviewedRepository,
    model: ReviewedModel,
    folder: Path,
    resolver: Resolver,
) -> ModelSpec:
    path = folder / model.library / f"{model.configuration}.json"
    config = read_config(path)
    part = line.part or (Part.WHOLE if model.component is None else Part.COMPONENT)
    if model.component is not None:
        name = f"{spec.name}#{model.component}"
        spec = msgspec.structs.replace(spec, name=name, component=model.component)
    if model.library == "transformers":
        return configured(spec, resolver.resolve(path, config), config, part)
    is_class = model.library == "diffusers"
    name = str(config.get("_class_name")) if is_class else model.configuration
    build = library_build(model.library, name, path)
    return built(spec, build, name, "unknown", config, part)


ORIGINAL_CONFIG = "original/config.json"
"""Where the converted configuration is stored in the folder of a repository."""

_MADE_OF = ("dim", "n_layers", "n_heads", "norm_eps")


def converted(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration with the sizes of a `params.json`; None for one of another form.

    Llama's, Mistral's and Mamba's own code stores sizes under other names than Transformers does.
    The conversions are those of `convert_llama_weights_to_hf.py`,
    `convert_mistral_weights_to_hf.py` and `convert_mamba_ssm_checkpoint_to_pytorch.py` of
    Transformers 5.23.
    """
    sizes = [params.get(name) for name in _MADE_OF]
    if not all(isinstance(size, int | float) and size > 0 for size in sizes):
        return None
    vocabulary = params.get("vocab_size", 0)
    if not isinstance(vocabulary, int) or "vision_encoder" in params:
        return None
    config: dict[str, Any] = {
        "hidden_size": params["dim"],
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": params["n_heads"],
        "num_key_value_heads": params.get("n_kv_heads", params["n_heads"]),
        "rms_norm_eps": params["norm_eps"],
        # Llama 1 and 2 store -1, and leave the size to their tokenizer.
        "vocab_size": vocabulary if vocabulary > 0 else 32000,
        "rope_theta": params.get("rope_theta", 10000.0),
    }
    if "hidden_dim" not in params:
        config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        return config | {"intermediate_size": _intermediate_size(params)}
    if "head_dim" in params:
        config["head_dim"] = params["head_dim"]
    config["intermediate_size"] = params["hidden_dim"]
    experts = params.get("moe")
    if isinstance(experts, Mapping):
        config |= {
            "num_local_experts": experts.get("num_experts", 8),
            "num_experts_per_tok": experts.get("num_experts_per_tok", 2),
        }
        return config | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"]}
    return config | {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}


def converted_mamba(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration with the sizes of the package mamba-ssm; None for another one.

    Its second generation names a layer in `ssm_cfg` and is another class.
    """
    sizes = [config.get(name) for name in ("d_model", "n_layer", "vocab_size")]
    layer = config.get("ssm_cfg")
    if "model_type" in config or not isinstance(layer, Mapping) or "layer" in layer:
        return None
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return None
    multiple = int(config.get("pad_vocab_size_multiple", 8))
    return {
        "model_type": "mamba",
        "architectures": ["MambaForCausalLM"],
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layer"],
        "vocab_size": multiple * -(-config["vocab_size"] // multiple),
    }


def _intermediate_size(params: Mapping[str, Any]) -> int:
    multiple = int(params.get("multiple_of", 256))
    size = int(float(params.get("ffn_dim_multiplier") or 1) * int(8 * int(params["dim"]) / 3))
    return multiple * -(-size // multiple)


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
        """Read a configuration file, {} where there is none.

        Raises ConfigError, with the name that the file has on the Hub.
        """
        if not self.has(name):
            return {}
        try:
            return read_config(self.path(name))
        except ConfigError as error:
            reason = str(error).removeprefix(str(self.path(name))).lstrip(":, ")
            raise ConfigError(f"{name}: {reason}") from error


def models_of(
    spec: ModelSpec, repository: Repository, resolver: Resolver, reviewed: Reviewed | None = None
) -> tuple[ModelSpec, ...]:
    """Return the models of a repository, or `spec` with a reason to skip it.

    `spec` has what the list says of the repository; there is one model for each component of a
    pipeline, and one model for every other kind. `reviewed` has the repositories whose files do not
    say what their users run.
    """
    foreign = formats.foreign_format(repository.library, repository.tags, repository.files)
    if foreign is not None:
        return skipped(spec, f"not PyTorch: it has only {foreign} weights")
    try:
        kinds = _Kinds(spec, repository, resolver).in_turn()
        specs = next(filter(None, kinds), None) or skipped(spec, _why_none(repository))
    except ConfigError as error:
        specs = skipped(spec, f"invalid configuration: {error}")
    if reviewed is not None and all(model.skip_reason is not None for model in specs):
        return reviewed.models(spec, resolver) or specs
    return specs


@dataclass(frozen=True)
class _Kinds:
    """The kinds of repository: each returns the models of one of its kind, or nothing."""

    spec: ModelSpec
    repository: Repository
    resolver: Resolver

    def in_turn(self) -> Iterator[tuple[ModelSpec, ...]]:
        """Try the kind of the library which the Hub names, then those of the files."""
        repository = self.repository
        if repository.has("adapter_config.json") and (
            repository.library == "peft" or not repository.has("config.json")
        ):
            yield self.adapter()
        if repository.has("model_index.json"):
            yield self.pipeline("model_index.json", Part.COMPONENT)
        elif repository.has(BASE_INDEX):
            # An adapter such as a LoRA stores its layers in its weights only, which are not read.
            yield self.pipeline(BASE_INDEX, Part.BASE_COMPONENT)
        named = {
            "diffusers": self.diffusers_model,
            "open_clip": self.open_clip,
            "sentence-transformers": self.sentence_transformers,
            "timm": self.timm,
            "transformers": self.transformers,
        }
        if repository.library in named:
            yield named[repository.library]()
        yield self.sentence_transformers()
        yield self.transformers()
        yield self.diffusers_model()
        yield self.timm()
        yield self.open_clip()
        yield self.original()

    def adapter(self) -> tuple[ModelSpec, ...]:
        """The base model of a PEFT adapter with the adapter on it."""
        spec, repository = self.spec, self.repository
        adapter = repository.read("adapter_config.json")
        base = adapter.get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            return skipped(spec, "PEFT adapter: it names no base model")
        if not repository.has(BASE_CONFIG):
            reason = f"PEFT adapter: the configuration of its base model {base} is not available"
            return skipped(spec, reason)
        config = repository.read(BASE_CONFIG)
        # The base has a commit of its own, which nobody listed for remote code.
        resolved = self.resolver.resolve(repository.path(BASE_CONFIG), config, repo=base)
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

    def pipeline(self, index_file: str, part: Part) -> tuple[ModelSpec, ...]:
        """One model for each component of a pipeline of diffusers that may be a model."""
        models = []
        for name, value in self.repository.read(index_file).items():
            if not name.isidentifier() or not isinstance(value, list) or len(value) != 2:
                continue
            library, class_name = value
            named = isinstance(library, str) and isinstance(class_name, str)
            if named and not NO_MODELS.search(class_name):
                folder = f"{index_file.removesuffix('model_index.json')}{name}"
                component = self._component(name, library, class_name, f"{folder}/config.json")
                models.append(msgspec.structs.replace(component, part=part))
        reason = "pipeline of diffusers without a component that is a model"
        return tuple(models) or skipped(self.spec, reason)

    def _component(self, name: str, library: str, class_name: str, file: str) -> ModelSpec:
        repository = self.repository
        spec = msgspec.structs.replace(
            self.spec,
            name=f"{repository.name}#{name}",
            component=name,
            architecture=class_name,
            family=class_name,
        )
        if library not in ("diffusers", "transformers"):
            reason = f"component {name}: {class_name} belongs to the pipeline, not to the models "
            reason += "of diffusers"
            if {f"{name}.py", f"{library}.py"} & set(repository.files or ()):
                reason = f"remote code: component {name} is a class of the repository"
            return skipped(spec, reason)[0]
        if not repository.has(file):
            reason = "its configuration is not in the repository's list: pull again"
            return skipped(spec, f"component {name}: {reason}")[0]
        config = repository.read(file)
        if library == "transformers":
            resolved = self.resolver.resolve(
                repository.path(file), config, class_name=class_name, repo=repository.name
            )
            return configured(spec, resolved, config, Part.COMPONENT)
        build = library_build("diffusers", class_name, repository.path(file))
        return built(spec, build, class_name, "vision", config)

    def diffusers_model(self) -> tuple[ModelSpec, ...]:
        """A single model of diffusers, such as an autoencoder or a ControlNet."""
        config = self.repository.read("config.json")
        name = config.get("_class_name")
        if not isinstance(name, str):
            return ()
        build = library_build("diffusers", name, self.repository.path("config.json"))
        return (built(self.spec, build, name, "vision", config),)

    def timm(self) -> tuple[ModelSpec, ...]:
        config = self.repository.read("config.json")
        name = config.get("architecture")
        if not isinstance(name, str) or "model_type" in config:
            return ()
        build = library_build("timm", name, self.repository.path("config.json"))
        return (built(self.spec, build, name.partition("_")[0], "vision", config),)

    def open_clip(self) -> tuple[ModelSpec, ...]:
        config, file = self.repository.read("open_clip_config.json"), "open_clip_config.json"
        if not self.repository.has(file):
            return ()
        build = library_build("open_clip", self.repository.name, self.repository.path(file))
        return (built(self.spec, build, "open_clip", "multimodal", config),)

    def sentence_transformers(self) -> tuple[ModelSpec, ...]:
        """The chain of `modules.json`, or its Transformers part where a module is remote code."""
        spec, repository = self.spec, self.repository
        if not repository.has("modules.json"):
            return ()
        modules = _modules(repository)
        own = [kind for kind, _ in modules if not kind.startswith("sentence_transformers.")]
        paths = [path for kind, path in modules if kind.endswith(("Transformer", "CLIPModel"))]
        files = (f"{path}/config.json" if path else "config.json" for path in paths)
        file = next(filter(repository.has, files), None)
        config = repository.read(file) if file is not None else {}
        resolved = self._resolved(file, config) if file is not None else None
        if own or (resolved is not None and resolved.needs_remote_code):
            if resolved is None:
                reason = f"{own[0]} is not a module of sentence-transformers"
                return skipped(spec, f"remote code: {reason}")
            return (configured(spec, resolved, config, Part.TRANSFORMERS),)
        build = LibraryBuild(
            library="sentence-transformers",
            name=repository.name,
            configuration=str(repository.path(".").resolve()),
            configuration_sha256=_folder_sha256(repository.path(".")),
        )
        chain = built(spec, build, resolved.family if resolved else "unknown", "text", config)
        if resolved is not None and resolved.skip_reason is not None:
            return skipped(chain, f"sentence-transformers: {resolved.skip_reason}")
        architecture = resolved.architecture if resolved else None
        return (msgspec.structs.replace(chain, architecture=architecture),)

    def transformers(self) -> tuple[ModelSpec, ...]:
        """A class of Transformers; only a part, where the repository is of another library."""
        repository = self.repository
        config = repository.read("config.json")
        if not {"model_type", "architectures", "auto_map"} & config.keys():
            named = self.resolver.named_type(repository.name)
            if named is None or not config.keys() >= SIZES:
                return ()
            config["model_type"] = named
        resolved = self._resolved("config.json", config)
        other = formats.other_library(repository.library, (), repository.files)
        if other and resolved.skip_reason is not None and not resolved.needs_remote_code:
            return ()
        beside = repository.read("quantize_config.json") or None
        part = Part.WHOLE if other is None else Part.TRANSFORMERS
        return (configured(self.spec, resolved, config, part, beside),)

    def original(self) -> tuple[ModelSpec, ...]:
        config = self.repository.read(ORIGINAL_CONFIG)
        if not config:
            return ()
        resolved = self.resolver.resolve(self.repository.path(ORIGINAL_CONFIG), config)
        return (configured(self.spec, resolved, config, Part.ORIGINAL),)

    def _resolved(self, file: str, config: dict[str, Any]) -> Configured:
        repository = self.repository
        return self.resolver.resolve(
            repository.path(file),
            config,
            repo=repository.name,
            weights=repository.weights,
            trust_remote_code=repository.trusted,
        )


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


def _modules(repository: Repository) -> list[tuple[str, str]]:
    """Return type and folder of each module of `modules.json`. Raises ConfigError."""
    try:
        modules = json.loads(repository.path("modules.json").read_bytes())
        return [(str(module["type"]), str(module.get("path", ""))) for module in modules]
    except (OSError, ValueError) as error:
        raise ConfigError(f"modules.json: not JSON: {error}") from error
    except (AttributeError, KeyError, TypeError):
        raise ConfigError("modules.json: must be a list of modules with type and path") from None


def _folder_sha256(folder: Path) -> str:
    """Return the digest of all configuration files of a repository."""
    content: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        try:
            value = json.loads(path.read_bytes())
        except ValueError as error:
            raise ConfigError(f"{name}: not JSON: {error}") from error
        content[name] = canonical_config(value) if isinstance(value, dict) else value
    return digest(content)
