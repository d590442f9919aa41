"""The source `hub`: from a repository's configuration files to its models, or why it has none.

What decides, in turn: the format of the weights, the library that the Hub names, and which
configuration files there are. No weights and no code of a repository are read. docs/guide.md lists
the kinds of repository.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec

from compilewatch.config import Places, inputs_folder
from compilewatch.contract.libraries import ADAPTERS, LIBRARIES
from compilewatch.data import REPOSITORIES, Reviewed, package_classes
from compilewatch.errors import ConfigError
from compilewatch.files import DamagedError, from_json, read_json_object, read_toml
from compilewatch.records import (
    SCHEMA_VERSION,
    ConfigBuild,
    LibraryBuild,
    ModelSpec,
    Part,
    Quantization,
    canonical_config,
    digest,
)
from compilewatch.sources.hub import formats
from compilewatch.sources.hub.pulled import PulledModel, read_pulled
from compilewatch.sources.libraries import folder_sha256
from compilewatch.sources.transformers import UNREVIEWED, Resolver, read_library

_METHODS = {
    "awq": Quantization.AWQ,
    "compressed-tensors": Quantization.COMPRESSED_TENSORS,
    "fbgemm_fp8": Quantization.FP8,
    "fp8": Quantization.FP8,
    "gptq": Quantization.GPTQ,
    "torchao": Quantization.TORCHAO,
}
"""`quant_method` as Transformers spells it (`QuantizationMethod`)."""

ORIGINAL_CONFIG = "original/config.json"
"""Where the converted configuration is stored in the folder of a repository."""

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

Commit = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{40}$")]


class Allowed(Reviewed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Remote code that a person has reviewed: this repository at this commit, and no other."""

    repository: str
    revision: Commit


class RemoteCode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `remote_code.toml`."""

    schema_version: int = SCHEMA_VERSION
    allow: list[Allowed] = []


class HubSource:
    """The models of the pulled list."""

    name = "hub"

    def __init__(self, places: Places) -> None:
        self.path = places.pulled
        self._root = places.transformers

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the models of all repositories, and those without one with the reason."""
        pulled = read_pulled(self.path)
        specs = [spec for listed in pulled.model for spec in _Repository(listed, self).models()]
        return tuple(sorted(specs, key=lambda s: (-(s.downloads or 0), s.checkpoint or "", s.name)))

    @cached_property
    def resolver(self) -> Resolver:
        """Finds the classes that configurations name."""
        return Resolver(read_library(self._root), package_classes(inputs_folder() / "overrides"))

    @cached_property
    def reviewed(self) -> "ReviewedLines":
        """The project's reviewed lines, then the shipped ones."""
        return read_reviewed((inputs_folder() / REPOSITORIES.name, REPOSITORIES))

    @cached_property
    def trusted(self) -> set[tuple[str, str | None]]:
        """The repositories and revisions of which a person has reviewed the code."""
        path = inputs_folder() / "remote_code.toml"
        if not path.exists():
            return set()
        allowed = read_toml(path, RemoteCode).allow
        return {(line.repository, line.revision) for line in allowed}


# --- models of Transformers and of other libraries ------------------------------------------------


def skipped(spec: ModelSpec, reason: str) -> tuple[ModelSpec]:
    """Return a model that is not evaluated, with the reason."""
    return (msgspec.structs.replace(spec, skip_reason=reason),)


def replaced(spec: ModelSpec, config: Mapping[str, Any], **fields: Any) -> ModelSpec:
    """Return the model with these fields, and the quantisation that its configuration says."""
    return msgspec.structs.replace(spec, quantization=quantization(config), **fields)


def built(
    spec: ModelSpec,
    library: str,
    name: str,
    path: Path,
    config: dict[str, Any],
    *,
    family: str,
    task: str = "vision",
    part: Part = Part.WHOLE,
) -> ModelSpec:
    """Return the model of another library that the file `path` configures."""
    build = LibraryBuild(
        library=library,
        name=name,
        configuration=str(path.resolve()),
        configuration_sha256=digest(canonical_config(config)),
    )
    return replaced(
        spec, config, build=build, architecture=name, family=family, task=task, part=part
    )


def quantization(
    config: Mapping[str, Any], beside: Mapping[str, Any] | None = None
) -> Quantization | None:
    """Return the quantisation that a configuration says, None for weights as they were trained.

    `beside` is the `quantize_config.json` with which older releases of AutoGPTQ and AutoAWQ
    describe the weights instead of the configuration.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if not isinstance(stated, Mapping):
        older = Quantization.AWQ if "zero_point" in (beside or ()) else Quantization.GPTQ
        return older if beside else None
    method = str(stated.get("quant_method", "")).lower()
    eight = stated.get("load_in_8bit") or stated.get("_load_in_8bit")
    four = stated.get("load_in_4bit") or stated.get("_load_in_4bit")
    if method.startswith("bitsandbytes") or (not method and (eight or four)):
        return Quantization.BITSANDBYTES_8BIT if eight else Quantization.BITSANDBYTES_4BIT
    if method == "modelopt" and "FP8" in str(stated.get("quant_algo", "")):
        return Quantization.FP8
    return _METHODS.get(method, Quantization.OTHER)


# --- reviewed lines: what users run of a repository whose files do not say it ---------------------


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


class ReviewedRepository(Reviewed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What repositories with these names have; either `model` or `skip`.

    Attributes:
        names: names with the wildcards of a shell (`org/*-model`).
        model: the models that their users run.
        part: what part of the repository the models are; by itself `component` where they have
            names, and `whole` otherwise.
        skip: the reason why there is nothing to evaluate.
    """

    names: list[str]
    model: tuple[ReviewedModel, ...] = ()
    part: Part | None = None
    skip: str | None = None


class ReviewedRepositories(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `repositories.toml`."""

    schema_version: int = SCHEMA_VERSION
    repository: list[ReviewedRepository] = []


ReviewedLines = Sequence[tuple[ReviewedRepository, Path]]
"""Lines, each with the folder `models` beside its file; the first that fits applies."""


def read_reviewed(paths: Iterable[Path]) -> ReviewedLines:
    """Read the files that exist; lines of earlier ones come first. Raises ConfigError."""
    lines: list[tuple[ReviewedRepository, Path]] = []
    for path in filter(Path.exists, paths):
        for line in read_toml(path, ReviewedRepositories).repository:
            problem = None
            if bool(line.model) == (line.skip is not None):
                problem = "write either [[repository.model]] or skip"
            elif len(line.model) > 1 and any(model.component is None for model in line.model):
                problem = "each of several models needs a component"
            for model in line.model:
                if model.library not in LIBRARIES:
                    problem = f"no library {model.library!r}; known: {', '.join(LIBRARIES)}"
            if problem is not None:
                raise ConfigError(f"{path}: {', '.join(line.names)}: {problem}")
            lines.append((line, path.parent / "models"))
    return lines


def reviewed_models(
    lines: ReviewedLines, spec: ModelSpec, resolver: Resolver
) -> tuple[ModelSpec, ...]:
    """Return the models of a repository, none for one without a line. Raises ConfigError."""
    for line, folder in lines:
        if any(fnmatchcase(spec.name, name) for name in line.names):
            if line.skip is not None:
                return skipped(spec, line.skip)
            return tuple(_reviewed(spec, line, model, folder, resolver) for model in line.model)
    return ()


def _reviewed(
    spec: ModelSpec,
    line: ReviewedRepository,
    model: ReviewedModel,
    folder: Path,
    resolver: Resolver,
) -> ModelSpec:
    path = folder / model.library / f"{model.configuration}.json"
    config = read_json_object(path)
    part = line.part or (Part.WHOLE if model.component is None else Part.COMPONENT)
    if model.component is not None:
        name = f"{spec.name}#{model.component}"
        spec = msgspec.structs.replace(spec, name=name, component=model.component)
    if model.library == "transformers":
        return replaced(resolver.resolve(spec, path, config), config, part=part)
    is_class = model.library == "diffusers"
    name = str(config.get("_class_name")) if is_class else model.configuration
    return built(spec, model.library, name, path, config, family=name, task="unknown", part=part)


# --- configurations in the form of a model's own code ---------------------------------------------


def converted(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the configuration with the sizes of a `params.json`; None for one of another form.

    Llama's, Mistral's and Mamba's own code stores sizes under other names than Transformers does.
    The conversions are those of `convert_llama_weights_to_hf.py`,
    `convert_mistral_weights_to_hf.py` and `convert_mamba_ssm_checkpoint_to_pytorch.py` of
    Transformers 5.23.
    """
    sizes = [params.get(name) for name in ("dim", "n_layers", "n_heads", "norm_eps")]
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
        multiple = int(params.get("multiple_of", 256))
        size = int(float(params.get("ffn_dim_multiplier") or 1) * int(8 * int(params["dim"]) / 3))
        config["intermediate_size"] = multiple * -(-size // multiple)
        return config | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    if "head_dim" in params:
        config["head_dim"] = params["head_dim"]
    config["intermediate_size"] = params["hidden_dim"]
    experts = params.get("moe")
    if isinstance(experts, Mapping):
        config["num_local_experts"] = experts.get("num_experts", 8)
        config["num_experts_per_tok"] = experts.get("num_experts_per_tok", 2)
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


# --- kinds of repository --------------------------------------------------------------------------


class Module(msgspec.Struct, frozen=True):
    """An entry of `modules.json`: its class, and the folder with its configuration."""

    type: str
    path: str = ""


def read_modules(data: bytes | str) -> list[Module]:
    """Return the entries of a `modules.json`. Raises ConfigError."""
    try:
        return from_json(data, list[Module])
    except DamagedError as error:
        raise ConfigError(f"modules.json: not a list of modules: {error}") from None


class _Repository:
    """A repository of the list; each kind is a method that returns its models, or nothing.

    `spec` has what the list says. `folder` has the configuration files, if there are any.
    """

    def __init__(self, listed: PulledModel, source: HubSource) -> None:
        self.listed = listed
        self.path_of_list = source.path
        self.resolver = source.resolver
        self.reviewed = source.reviewed
        self.trusted = (listed.repository, listed.revision) in source.trusted
        self.spec = ModelSpec(
            source=source.name,
            name=listed.repository,
            build=ConfigBuild(config_file="", config_sha256="", repo=listed.repository),
            family=listed.model_type or "unknown",
            revision=listed.revision,
            downloads=listed.downloads,
            license=listed.license,
            gated=listed.gated,
            checkpoint=listed.repository,
            skip_reason=listed.problem,
        )
        self.folder: Path | None = None
        if listed.config is not None:
            # A repository without a configuration of its own has that of its base.
            folder = (source.path.parent / listed.config).parent
            self.folder = folder.parent if folder.name == BASE else folder

    def path(self, name: str) -> Path:
        return (self.folder or Path()) / name

    def has(self, name: str) -> bool:
        return self.folder is not None and self.path(name).is_file()

    def read(self, name: str) -> dict[str, Any]:
        """Read a configuration file, {} where there is none.

        Raises ConfigError, with the name that the file has on the Hub.
        """
        return read_json_object(self.path(name), name) if self.has(name) else {}

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the models, or `spec` with a reason to skip it.

        There is one model for each component of a pipeline, and one model for every other kind.
        Reviewed lines apply only where nothing else resolves the repository.
        """
        listed, path = self.listed, self.path_of_list
        if listed.problem is not None:
            return (self.spec,)
        if listed.config is not None and listed.revision is None:
            raise ConfigError(f"{path}: {listed.repository} has a config, but no revision")
        if listed.config is not None and not (path.parent / listed.config).is_file():
            return skipped(
                self.spec, "its configuration file is missing next to the list: pull again"
            )
        foreign = formats.foreign_format(listed.library, listed.tags, listed.files)
        if foreign is not None:
            return skipped(self.spec, f"not PyTorch: it has only {foreign} weights")
        try:
            specs = next(filter(None, (kind() for kind in self.kinds())), ())
        except ConfigError as error:
            specs = skipped(self.spec, f"invalid configuration: {error}")
        specs = specs or skipped(self.spec, self.why_none())
        if all(spec.skip_reason is not None for spec in specs):
            return reviewed_models(self.reviewed, self.spec, self.resolver) or specs
        return specs

    def kinds(self) -> Iterator[Callable[[], tuple[ModelSpec, ...]]]:
        """Yield the kind of the library that the Hub names, then those of the files."""
        library = self.listed.library
        if self.has("adapter_config.json") and (library == "peft" or not self.has("config.json")):
            yield self.adapter
        if self.has("model_index.json") or self.has(BASE_INDEX):
            yield self.pipeline
        of_libraries = {
            "sentence-transformers": self.sentence_transformers,
            "transformers": self.transformers,
            "diffusers": self.diffusers_model,
            "timm": self.timm,
            "open_clip": self.open_clip,
        }
        if library in of_libraries:
            yield of_libraries[library]
        yield from of_libraries.values()
        yield self.original

    def adapter(self) -> tuple[ModelSpec, ...]:
        """The base model of a PEFT adapter with the adapter on it."""
        adapter = self.read("adapter_config.json")
        base = adapter.get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            return skipped(self.spec, "PEFT adapter: it names no base model")
        if not self.has(BASE_CONFIG):
            reason = f"PEFT adapter: the configuration of its base model {base} is not available"
            return skipped(self.spec, reason)
        config = self.read(BASE_CONFIG)
        # The base has a commit of its own, which nobody listed for remote code.
        spec = self.resolver.resolve(self.spec, self.path(BASE_CONFIG), config, repo=base)
        spec = replaced(spec, config, part=Part.WHOLE)
        if spec.skip_reason is not None:
            return skipped(spec, f"PEFT adapter of {base}: {spec.skip_reason}")
        assert isinstance(spec.build, ConfigBuild)
        build = msgspec.structs.replace(
            spec.build,
            adapter_file=str(self.path("adapter_config.json").resolve()),
            adapter_sha256=digest(canonical_config(adapter)),
            packages=(*spec.build.packages, ADAPTERS),
        )
        return (msgspec.structs.replace(spec, build=build),)

    def pipeline(self) -> tuple[ModelSpec, ...]:
        """One model for each component of a pipeline of diffusers that may be a model.

        An adapter such as a LoRA stores its layers in its weights only, which are not read: its
        components are those of its base.
        """
        own = self.has("model_index.json")
        index, folder = ("model_index.json", "") if own else (BASE_INDEX, f"{BASE}/")
        part = Part.COMPONENT if own else Part.BASE_COMPONENT
        models = []
        for name, value in self.read(index).items():
            if not name.isidentifier() or not isinstance(value, list) or len(value) != 2:
                continue
            library, class_name = value
            named = isinstance(library, str) and isinstance(class_name, str)
            if named and not NO_MODELS.search(class_name):
                file = f"{folder}{name}/config.json"
                component = self.component(name, library, class_name, file)
                models.append(msgspec.structs.replace(component, part=part))
        reason = "pipeline of diffusers without a component that is a model"
        return tuple(models) or skipped(self.spec, reason)

    def component(self, name: str, library: str, class_name: str, file: str) -> ModelSpec:
        spec = msgspec.structs.replace(
            self.spec,
            name=f"{self.spec.name}#{name}",
            component=name,
            architecture=class_name,
            family=class_name,
        )
        if library not in ("diffusers", "transformers"):
            reason = f"component {name}: {class_name} belongs to the pipeline, not to the models "
            reason += "of diffusers"
            if {f"{name}.py", f"{library}.py"} & set(self.listed.files or ()):
                reason = f"remote code: component {name} is a class of the repository"
            return skipped(spec, reason)[0]
        if not self.has(file):
            reason = "its configuration is not in the repository's list: pull again"
            return skipped(spec, f"component {name}: {reason}")[0]
        config, path = self.read(file), self.path(file)
        if library == "diffusers":
            return built(spec, library, class_name, path, config, family=class_name)
        repo = self.spec.name
        spec = self.resolver.resolve(spec, path, config, class_name=class_name, repo=repo)
        return replaced(spec, config, part=Part.COMPONENT)

    def diffusers_model(self) -> tuple[ModelSpec, ...]:
        """A single model of diffusers, such as an autoencoder or a ControlNet."""
        config, path = self.read("config.json"), self.path("config.json")
        name = config.get("_class_name")
        if not isinstance(name, str):
            return ()
        return (built(self.spec, "diffusers", name, path, config, family=name),)

    def timm(self) -> tuple[ModelSpec, ...]:
        config, path = self.read("config.json"), self.path("config.json")
        name = config.get("architecture")
        if not isinstance(name, str) or "model_type" in config:
            return ()
        return (built(self.spec, "timm", name, path, config, family=name.partition("_")[0]),)

    def open_clip(self) -> tuple[ModelSpec, ...]:
        if not self.has(file := "open_clip_config.json"):
            return ()
        config, path = self.read(file), self.path(file)
        kind, task = "open_clip", "multimodal"
        return (built(self.spec, kind, self.spec.name, path, config, family=kind, task=task),)

    def sentence_transformers(self) -> tuple[ModelSpec, ...]:
        """The chain of `modules.json`, or its Transformers part where a module is remote code."""
        if self.folder is None or not self.has("modules.json"):
            return ()
        modules = read_modules(self.path("modules.json").read_bytes())
        own = [m.type for m in modules if not m.type.startswith("sentence_transformers.")]
        paths = [m.path for m in modules if m.type.endswith(("Transformer", "CLIPModel"))]
        files = (f"{path}/config.json" if path else "config.json" for path in paths)
        file = next(filter(self.has, files), None)
        config = self.read(file) if file is not None else {}
        spec = self.resolved(file, config) if file is not None else None
        if own or (spec is not None and self.needs_code(spec)):
            if spec is not None:
                return (replaced(spec, config, part=Part.TRANSFORMERS),)
            reason = f"remote code: {own[0]} is not a module of sentence-transformers"
            return skipped(self.spec, reason)
        if spec is not None and spec.skip_reason is not None:
            spec = skipped(spec, f"sentence-transformers: {spec.skip_reason}")[0]
        build = LibraryBuild(
            library="sentence-transformers",
            name=self.spec.name,
            configuration=str(self.folder.resolve()),
            configuration_sha256=folder_sha256(self.folder),
        )
        spec = spec or msgspec.structs.replace(self.spec, family="unknown")
        return (replaced(spec, config, build=build, task="text", part=Part.WHOLE),)

    def transformers(self) -> tuple[ModelSpec, ...]:
        """A class of Transformers; only a part, where the repository is of another library."""
        config = self.read("config.json")
        if not {"model_type", "architectures", "auto_map"} & config.keys():
            named = self.resolver.named_type(self.spec.name)
            if named is None or not config.keys() >= SIZES:
                return ()
            config["model_type"] = named
        spec = self.resolved("config.json", config)
        other = formats.other_library(self.listed.library, (), self.listed.files)
        if other and spec.skip_reason is not None and not self.needs_code(spec):
            return ()
        part = Part.WHOLE if other is None else Part.TRANSFORMERS
        stated = quantization(config, self.read("quantize_config.json"))
        return (msgspec.structs.replace(spec, part=part, quantization=stated),)

    def original(self) -> tuple[ModelSpec, ...]:
        if not (config := self.read(ORIGINAL_CONFIG)):
            return ()
        spec = self.resolver.resolve(self.spec, self.path(ORIGINAL_CONFIG), config)
        return (replaced(spec, config, part=Part.ORIGINAL),)

    def resolved(self, file: str, config: dict[str, Any]) -> ModelSpec:
        name, weights = self.spec.name, self.listed.weights
        return self.resolver.resolve(
            self.spec, self.path(file), config, repo=name, weights=weights, trust=self.trusted
        )

    def needs_code(self, spec: ModelSpec) -> bool:
        """Whether the class of a resolved model is in the repository."""
        trusted = isinstance(spec.build, ConfigBuild) and spec.build.trust_remote_code
        return trusted or spec.skip_reason == UNREVIEWED

    def why_none(self) -> str:
        library, tags, files = self.listed.library, self.listed.tags, self.listed.files
        other = formats.other_library(library, tags, files)
        if other is not None:
            return f"a model of {other}: only models of {BUILT_HERE} are built"
        if library == "diffusers":
            kind = "a LoRA" if "lora" in tags else "adapter or single-file weights"
            return f"{kind} for diffusers, without the configuration of a model"
        if self.has("config.json"):
            return "its config.json names no model_type"
        return formats.why_no_model(files)
