"""The contents of the installed Transformers, read from its source text.

Importing Transformers takes ten seconds and imports torch, which the parent never does. All that is
needed (classes, their configurations, model types, reference checkpoints, parameters of `forward`,
auto mappings) is static text, so it is parsed. A scan takes some seconds and is cached in the
user's cache folder; its key is the text of this file and the path, size and time of every file that
it reads.
"""

import ast
import contextlib
import hashlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import msgspec

from compilewatch import extras
from compilewatch.config import Places, cache_folder
from compilewatch.data import POPULARITY, PackageClass
from compilewatch.environments import SUPPORTED_TRANSFORMERS
from compilewatch.errors import SourceError, StoreError
from compilewatch.files import read_if_whole, write_atomically
from compilewatch.records import ClassBuild, ConfigBuild, ModelSpec, Record, config_sha256
from compilewatch.sources.popularity import read_popularity

_ROOT_CLASS = "PreTrainedModel"
_CONFIGS = "CONFIG_MAPPING_NAMES"
_ROOT_CONFIGS = ("PreTrainedConfig", "PretrainedConfig")  # since 5.0, and before

# Models of other frameworks, which releases before 5.0 contain.
_FOREIGN = ("modeling_tf_", "modeling_flax_")

_HUB_LINK = re.compile(r"\(https://huggingface\.co/([\w.-]+/[\w.-]+?)\)")


class ModelClass(Record, frozen=True, kw_only=True):
    """One exported subclass of `PreTrainedModel`, including abstract ones.

    `model_type` is that of its configuration class, or of its folder under `models/` if the
    configuration has none; `parameters` are those of `forward`, without self; `modalities` are the
    declared inputs (`input_modalities`); `backends` are the optional packages without which
    Transformers replaces the class by a placeholder (`@requires`). A class is `concrete` if it, or
    an ancestor below `PreTrainedModel`, defines `__init__`, which makes its layers, and if its name
    is not that of a base class (`…PreTrainedModel`).
    """

    name: str
    model_type: str
    config_class: str | None = None
    checkpoint: str | None = None
    parameters: tuple[str, ...] = ()
    modalities: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    concrete: bool = True


class ScannedLibrary(Record, frozen=True, kw_only=True):
    """A scan. `mappings` maps `CONFIG_MAPPING_NAMES` and all `MODEL_FOR_…_MAPPING_NAMES` to model
    types to class names."""

    version: str
    classes: tuple[ModelClass, ...]
    mappings: dict[str, dict[str, tuple[str, ...]]]

    @property
    def model_types(self) -> dict[str, str]:
        """Model types with their configuration classes."""
        return {kind: names[0] for kind, names in self.mappings.get(_CONFIGS, {}).items()}


def installed_transformers() -> Path:
    """Return the package folder of the Transformers that this interpreter would import."""
    # find_spec finds a top-level package without importing it.
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"transformers is not installed here: {extras.install('transformers')}")
    return Path(spec.submodule_search_locations[0])


def transformers_version(root: Path) -> str:
    """Return `__version__` from the package folder's `__init__.py`."""
    try:
        text = (root / "__init__.py").read_text(encoding="utf-8")
    except OSError as exc:
        raise SourceError(f"{root} is not a transformers package: {exc.strerror}") from exc
    version = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    if version is None:
        raise SourceError(f"{root} is not a transformers package: no __version__ in __init__.py")
    return version[1]


def read_library(root: Path | None = None, cache: Path | None = None) -> ScannedLibrary:
    """Return the scan of the Transformers at `root`, from the cache if nothing changed.

    A cache that cannot be read or written is ignored, since it only saves time.
    """
    root = root or installed_transformers()
    version = transformers_version(root)
    if version not in SUPPORTED_TRANSFORMERS:
        raise SourceError(
            f"transformers {version} in {root} is not supported: compilewatch reads "
            f"{SUPPORTED_TRANSFORMERS} only"
        )
    files = sorted(_files(root))
    if not files:
        raise SourceError(f"{root} contains no models/*/modeling_*.py: reinstall transformers")
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in files:
        stat = path.stat()
        digest.update(f"{path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    cached = (cache or cache_folder()) / f"library-{version}-{digest.hexdigest()[:16]}.json"
    library = read_if_whole(cached, ScannedLibrary)
    if library is None:
        library = scan(root)
        with contextlib.suppress(StoreError):
            write_atomically(cached, msgspec.json.encode(library), durable=False)
    return library


def _files(root: Path) -> Iterator[Path]:
    modeling = root.glob("models/*/modeling_*.py")
    yield from (path for path in modeling if not path.name.startswith(_FOREIGN))
    yield from root.glob("models/*/configuration_*.py")
    yield from root.glob("models/auto/auto_mappings.py")
    yield from root.glob("modeling_layers.py")
    yield from root.glob("modeling_utils.py")


class _Class:
    """The relevant parts of a class statement; bases are as written."""

    def __init__(self, node: ast.ClassDef) -> None:
        assigned: dict[str | None, ast.expr | None] = {}
        annotated: dict[str | None, ast.expr] = {}
        functions: dict[str, ast.FunctionDef] = {}
        for item in node.body:
            if isinstance(item, ast.Assign):
                assigned |= {_last_name(target): item.value for target in item.targets}
            elif isinstance(item, ast.AnnAssign):
                assigned[_last_name(item.target)] = item.value
                annotated[_last_name(item.target)] = item.annotation
            elif isinstance(item, ast.FunctionDef):
                functions[item.name] = item
        decorated = {
            (_last_name(call.func), keyword.arg): keyword.value
            for call in node.decorator_list
            if isinstance(call, ast.Call)
            for keyword in call.keywords
        }
        self.bases = [name for base in node.bases if (name := _last_name(base))]
        self.model_type = _strings(assigned.get("model_type"))
        self.modalities = _strings(assigned.get("input_modalities"))
        self.backends = _strings(decorated.get(("requires", "backends")))
        self.makes_layers = "__init__" in functions
        self.forward: tuple[str, ...] = ()
        if "forward" in functions:
            arguments = functions["forward"].args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            self.forward = tuple(a.arg for a in every if a.arg != "self")
        # The configuration class is stated as `config_class = X` or `config: X`; the annotation of
        # `PreTrainedModel` itself is not specific to a model.
        self.config = _last_name(assigned.get("config_class"))
        if self.config is None and "config" in annotated:
            names = (n.id for n in ast.walk(annotated["config"]) if isinstance(n, ast.Name))
            name = next(names, None)
            self.config = None if name in _ROOT_CONFIGS else name
        # `checkpoint` of `@auto_docstring`, or else the first Hub link of the docstring.
        link = _HUB_LINK.search(ast.get_docstring(node) or "")
        stated = _strings(decorated.get(("auto_docstring", "checkpoint")))
        self.checkpoint = stated[0] if stated else link and link[1]


class _Module:
    """A parsed file: its classes, its imports from sibling modules, and its exports."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.folder = path.parent.name
        self.classes = {n.name: _Class(n) for n in tree.body if isinstance(n, ast.ClassDef)}
        self.imports: dict[str, tuple[str, str]] = {}
        self.exports: tuple[str, ...] = ()
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                stem = node.module.rpartition(".")[2]
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (stem, alias.name)
            elif isinstance(node, ast.Assign) and _last_name(node.targets[0]) == "__all__":
                self.exports = tuple(ast.literal_eval(node.value))


_Modules = dict[str, _Module]
"""All parsed files by stem (`modeling_bert`)."""


def _lineage(modules: _Modules, stem: str, name: str) -> Iterator[tuple[str, _Class]]:
    """Yield the class and its ancestors, depth first as written, without `PreTrainedModel`."""
    module = modules.get(stem)
    if module is None or name == _ROOT_CLASS:
        return
    cls = module.classes.get(name)
    if cls is not None:
        yield stem, cls
        for base in cls.bases:
            if base != name:
                yield from _lineage(modules, stem, base)
    elif name in module.imports and module.imports[name][0] != stem:
        yield from _lineage(modules, *module.imports[name])


def scan(root: Path) -> ScannedLibrary:
    """Parse the Transformers at `root`; takes some seconds. See `read_library`."""
    modules = {path.stem: _Module(path) for path in sorted(_files(root))}
    auto = root / "models" / "auto"
    named = _mappings(auto / "modeling_auto.py")
    configs = _mappings(auto / "auto_mappings.py", auto / "configuration_auto.py")
    model_types = configs.get(_CONFIGS, {})
    type_of_folder = {
        module.folder: model_type
        for model_type, (config, *_) in sorted(model_types.items(), reverse=True)
        for module in modules.values()
        if config in module.classes and model_type.replace("-", "_") == module.folder
    }
    classes: list[ModelClass] = []
    for stem, module in modules.items():
        for name in module.exports if stem.startswith("modeling_") else ():
            lineage = list(_lineage(modules, stem, name)) if name in module.classes else []
            if not any(_ROOT_CLASS in cls.bases for _, cls in lineage):
                continue
            # Where the configuration class is defined.
            config = next(
                (
                    modules[where].imports.get(cls.config, (where, cls.config))
                    for where, cls in lineage
                    if cls.config is not None
                ),
                None,
            )
            of_config = [cls for _, cls in _lineage(modules, *config)] if config else []
            folder_type = type_of_folder.get(module.folder, module.folder)
            layers = any(cls.makes_layers for _, cls in lineage)
            model_class = ModelClass(
                name=name,
                config_class=config[1] if config else None,
                model_type=next((c.model_type[0] for c in of_config if c.model_type), folder_type),
                checkpoint=of_config[0].checkpoint if of_config else None,
                parameters=next((c.forward for _, c in lineage if c.forward), ()),
                modalities=next((c.modalities for _, c in lineage if c.modalities), ()),
                backends=lineage[0][1].backends,
                concrete=not name.endswith(_ROOT_CLASS) and layers,
            )
            classes.append(model_class)
    return ScannedLibrary(
        version=transformers_version(root),
        classes=tuple(sorted(classes, key=lambda c: c.name)),
        mappings={k: v for k, v in named.items() if k.startswith("MODEL_")}
        | {_CONFIGS: model_types},
    )


def _last_name(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _strings(node: ast.expr | None) -> tuple[str, ...]:
    """Return a literal string or sequence of strings as a tuple, otherwise an empty tuple."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        return (node.value,)
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(text for element in node.elts for text in _strings(element))
    return ()


def _mappings(*paths: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Read every `NAME = OrderedDict([(key, value), …])` and `NAME.update({key: value, …})`.

    A file that does not exist has none: releases before 5.6 have no auto_mappings.py.
    A value is a class name or a tuple of class names. Entries that a mapping copies from another
    one (`*OTHER.items()`) are skipped, because the other mapping is read too.
    """
    mappings: dict[str, dict[str, tuple[str, ...]]] = {}
    for path in filter(Path.exists, paths):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, (ast.Assign, ast.Expr)) or not isinstance(node.value, ast.Call):
                continue
            call = node.value
            target: ast.expr = node.targets[0] if isinstance(node, ast.Assign) else call.func
            if isinstance(target, ast.Attribute) and target.attr == "update":
                target = target.value
            name = _last_name(target)
            if name is None or not name.endswith("_NAMES") or not call.args:
                continue
            pairs: list[tuple[str, Any]] = []
            if isinstance(call.args[0], ast.Dict):
                pairs += ast.literal_eval(call.args[0]).items()
            elif isinstance(call.args[0], ast.List):
                pairs += (
                    ast.literal_eval(e) for e in call.args[0].elts if isinstance(e, ast.Tuple)
                )
            mappings.setdefault(name, {}).update(
                {key: (value,) if isinstance(value, str) else tuple(value) for key, value in pairs}
            )
    return mappings


DEFAULT_HEADS = ("Model", "ForCausalLM", "ForConditionalGeneration")
"""Suffixes of the class names that `heads="default"` selects."""

_GENERATION = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
)
_VIDEO = "MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES"

# Prefixes of the parameters of `forward` that take pixels or sound.
_VISUAL = ("pixel_values", "flattened_patches", "visual_feats", "visual_embeds", "images")
_AUDIBLE = ("input_features", "input_values", "audio_values", "waveform", "spectrogram")

# Optional backends in `@requires` whose name differs from their module's.
_BACKEND_MODULES = {"vision": "PIL"}


class LibrarySource:
    """The classes of Transformers; by default base, causal and conditional-generation classes.

    The setting `heads="all"` adds all other heads.
    """

    name = "library"

    def __init__(self, places: Places) -> None:
        self.settings = places.settings
        self._root = places.transformers

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the most used architecture first, and its primary class before the others."""
        library = read_library(self._root, self.settings.cache_folder)
        downloads = read_popularity(POPULARITY, Path(self.settings.popularity_file))
        primaries = set(primary_classes(library).values())
        specs = [
            ModelSpec(
                source="library",
                name=cls.name,
                build=ClassBuild(class_name=cls.name),
                architecture=cls.name,
                family=cls.model_type,
                task=task_group(cls, library),
                downloads=downloads.get(cls.model_type),
                checkpoint=cls.checkpoint,
                skip_reason=self._missing_backends(cls),
            )
            for cls in concrete_classes(library)
            if self.settings.heads == "all" or cls.name.endswith(DEFAULT_HEADS)
        ]
        specs.sort(key=lambda s: (-(s.downloads or 0), s.family, s.name not in primaries, s.name))
        return tuple(specs)

    def _missing_backends(self, cls: ModelClass) -> str | None:
        """The reason to skip a class if one of its optional packages is not installed."""
        missing = []
        for backend in cls.backends:
            module = _BACKEND_MODULES.get(backend, backend)
            if self._root is None:
                module_spec = importlib.util.find_spec(module)
            else:
                module_spec = PathFinder.find_spec(module, [str(self._root.parent)])
            missing += [backend] if module_spec is None else []
        return f"needs {', '.join(missing)}, which is not installed" if missing else None


def concrete_classes(library: ScannedLibrary) -> tuple[ModelClass, ...]:
    """Return the classes that can be instantiated: all except abstract bases."""
    return tuple(cls for cls in library.classes if cls.concrete)


def primary_classes(library: ScannedLibrary) -> dict[str, str]:
    """Map each model type to the class that people usually load.

    This is the class for conditional generation if an auto class has one for the type, otherwise
    the causal language model unless the type is an encoder (which also has a masked language
    model), otherwise the base model.
    """
    members: dict[str, dict[str, ModelClass]] = {}
    for cls in concrete_classes(library):
        if cls.name.endswith(DEFAULT_HEADS):
            members.setdefault(cls.model_type, {})[cls.name] = cls

    def plainness(name: str) -> tuple[int, int, str]:
        """For classes in no auto mapping: generating ones first, then the shortest name."""
        endings = ("ForConditionalGeneration", "ForCausalLM", "Model")
        return next(i for i, end in enumerate(endings) if name.endswith(end)), len(name), name

    primaries = {}
    for model_type, classes in members.items():
        encoder = model_type in library.mappings.get("MODEL_FOR_MASKED_LM_MAPPING_NAMES", {})
        causal = () if encoder else ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",)
        ranked = [
            name
            for mapping in (*_GENERATION, *causal, "MODEL_MAPPING_NAMES")
            for name in library.mappings.get(mapping, {}).get(model_type, ())
        ]
        ranked += sorted(classes, key=plainness)
        primaries[model_type] = next(name for name in ranked if name in classes)
    return primaries


def task_group(cls: ModelClass, library: ScannedLibrary) -> str:
    """Return a group for a class.

    One of text, encoder-decoder, document, vision, video, audio, multimodal, time-series, other.

    Derived from the inputs that the class declares (`input_modalities`) and corrected by the
    parameters of its `forward`: declarations are inherited, so that a text tower may declare
    images.
    """
    takes = set(cls.parameters)
    sees = any(name.startswith(_VISUAL) for name in takes)
    hears = any(name.startswith(_AUDIBLE) for name in takes)
    modalities = set(cls.modalities)
    if "bbox" in takes:
        return "document"
    if "past_values" in takes or "time" in modalities:
        return "time-series"
    if "input_ids" in takes:
        modalities -= set() if sees else {"image", "video"}
        modalities -= set() if hears else {"audio"}
    if sees and not modalities & {"image", "video"}:
        modalities.add("image")
    if hears:
        modalities.add("audio")
    # For a class without forward (it only generates), the declaration counts.
    reads = "input_ids" in takes or (not takes and "text" in modalities)
    decodes = "decoder_input_ids" in takes
    senses = modalities - {"text"}
    if not senses:
        if decodes:
            return "encoder-decoder"
        return "text" if reads or "inputs_embeds" in takes else "other"
    if reads or {"audio"} < senses or ("audio" not in senses and decodes):
        return "multimodal"
    if senses == {"audio"}:
        return "audio"
    is_video = "image" not in senses or cls.model_type in library.mappings.get(_VIDEO, {})
    return "video" if is_video else "vision"


TIMM = "timm"
TIMM_TYPES = ("timm_backbone", "timm_wrapper")
"""Types of models of Transformers that timm builds."""


UNREVIEWED = "remote code: its repository and revision are not in remote_code.toml"
"""The reason to skip a model of a class that neither Transformers nor a reviewed package has."""


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
        self._types = library.model_types

    def resolve(
        self,
        spec: ModelSpec,
        config_file: Path,
        config: dict[str, Any],
        *,
        class_name: str | None = None,
        repo: str | None = None,
        weights: bool = False,
        trust: bool = False,
    ) -> ModelSpec:
        """Return `spec` with the class that this configuration names, or the reason to skip it.

        A model's remote code is needed only if its class, or the class of its model type, is not in
        Transformers. Otherwise the class from Transformers is built and no remote code runs, also
        with `trust`. `class_name` is the class, if something else than the configuration names it.
        Where only the class is named, its model type is taken, as its `from_pretrained` does.
        """
        architectures = config.get("architectures")
        first = architectures[0] if isinstance(architectures, list) and architectures else None
        named = class_name or (first if isinstance(first, str) else None)
        family = config.get("model_type")
        if not isinstance(family, str) or not family:
            family = self._classes[named].model_type if named in self._classes else "unknown"
        known = family in self._types
        model_class = self._classes.get(named or self._primaries.get(family, "")) if known else None
        foreign = model_class is None or model_class.model_type != family
        other = self._elsewhere.get(named or "") if model_class is None else None
        needs_code = bool(config.get("auto_map")) and foreign and other is None
        reason = None
        if needs_code:
            reason = None if trust else UNREVIEWED
        elif model_class is None and other is None:
            reason = f"transformers {self._library.version} has no model type {family}"
            if family == "unknown":
                reason = "its config.json names no model_type"
            elif known:
                missing = named or f"to build a {family} with"
                reason = f"transformers {self._library.version} has no class {missing}"
        name = named if needs_code or model_class is None else model_class.name
        packages = other.packages if other is not None else ()
        build = ConfigBuild(
            config_file=str(config_file.resolve()),
            config_sha256=config_sha256(config),
            class_name=name,
            repo=repo,
            weights=weights,
            trust_remote_code=needs_code and trust,
            packages=(TIMM, *packages) if _has_timm_backbone(config) else packages,
            class_module=other.module if other is not None else None,
        )
        return msgspec.structs.replace(
            spec,
            build=build,
            family=family,
            architecture=name,
            task=task_group(model_class, self._library) if model_class else "unknown",
            skip_reason=reason,
        )

    def named_type(self, name: str) -> str | None:
        """Return the longest model type in a repository's name, as Transformers did before 5.

        Configurations of 2019 and 2020 have no `model_type`. Types of three letters occur in too
        many words.
        """
        words = name.rpartition("/")[2].lower()
        types = [t for t in self._types if len(t) > 3 and t in words]
        return max(types, key=len, default=None)


def _has_timm_backbone(value: Any) -> bool:
    """Whether a configuration or a part of it names a backbone of timm."""
    if not isinstance(value, dict):
        return False
    if value.get("use_timm_backbone") is True or value.get("model_type") in TIMM_TYPES:
        return True
    return any(map(_has_timm_backbone, value.values()))
