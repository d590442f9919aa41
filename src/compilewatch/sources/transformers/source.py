"""The source `library`: every concrete model class of the installed Transformers."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path

from compilewatch.config import inputs_folder
from compilewatch.data import POPULARITY
from compilewatch.errors import UsageError
from compilewatch.records import ClassBuild, ModelSpec
from compilewatch.sources.popularity import Figure, read_popularity
from compilewatch.sources.transformers.scan import ModelClass, ScannedLibrary, read_library

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

    `heads="all"` adds all other heads. `package` is the package folder to read (default: the
    installed one), `popularity` a project's own figures by architecture, `cache` the folder that
    stores the scan.
    """

    name = "library"

    def __init__(
        self,
        *,
        heads: str = "default",
        package: Path | None = None,
        popularity: Path | None = None,
        cache: Path | None = None,
    ) -> None:
        if heads not in ("default", "all"):
            raise UsageError(f"unknown heads {heads!r}: use default or all")
        self.heads = heads
        self._root = package
        self._popularity = popularity
        self._cache = cache

    def library(self) -> ScannedLibrary:
        """Return the scan; fast after the first call on a machine."""
        return read_library(self._root, self._cache)

    def models(self) -> tuple[ModelSpec, ...]:
        """Return the most used architecture first, and its primary class before the others."""
        library = self.library()
        own = self._popularity or inputs_folder() / "popularity.csv"
        figures = read_popularity(POPULARITY, own)
        chosen = [c for c in concrete_classes(library) if self.heads == "all" or _is_default(c)]
        primaries = set(primary_classes(library).values())
        packages = self._root.parent if self._root is not None else None
        specs = [_spec(library, cls, figures, packages) for cls in chosen]
        return tuple(
            sorted(
                specs,
                key=lambda s: (-(s.downloads or 0), s.family, s.name not in primaries, s.name),
            )
        )


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
        if _is_default(cls):
            members.setdefault(cls.model_type, {})[cls.name] = cls
    primaries = {}
    for model_type, classes in members.items():
        ranked = (*_ranked(library.mappings, model_type), *sorted(classes, key=_plainness))
        primaries[model_type] = next(name for name in ranked if name in classes)
    return primaries


def _ranked(mappings: Mapping[str, Mapping[str, tuple[str, ...]]], model_type: str) -> list[str]:
    def offered(mapping: str) -> tuple[str, ...]:
        return mappings.get(mapping, {}).get(model_type, ())

    ranked = [name for mapping in _GENERATION for name in offered(mapping)]
    if not offered("MODEL_FOR_MASKED_LM_MAPPING_NAMES"):
        ranked += offered("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    return ranked + list(offered("MODEL_MAPPING_NAMES"))


def _plainness(name: str) -> tuple[int, int, str]:
    """Sort key for classes in no auto mapping: generating ones first, then the shortest name."""
    endings = ("ForConditionalGeneration", "ForCausalLM", "Model")
    return next(i for i, end in enumerate(endings) if name.endswith(end)), len(name), name


def _is_default(cls: ModelClass) -> bool:
    return cls.name.endswith(DEFAULT_HEADS)


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
    return _group(cls, library, modalities)


def _group(cls: ModelClass, library: ScannedLibrary, modalities: set[str]) -> str:
    takes = set(cls.parameters)
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


def _spec(
    library: ScannedLibrary, cls: ModelClass, figures: Mapping[str, Figure], packages: Path | None
) -> ModelSpec:
    figure = figures.get(cls.model_type)
    return ModelSpec(
        source="library",
        name=cls.name,
        build=ClassBuild(class_name=cls.name),
        architecture=cls.name,
        family=cls.model_type,
        task=task_group(cls, library),
        downloads=figure.downloads if figure else None,
        checkpoint=cls.checkpoint,
        skip_reason=missing_backends(cls.backends, packages),
    )


def missing_backends(backends: Iterable[str], packages: Path | None = None) -> str | None:
    """Return the reason to skip a class if one of its optional packages is not installed.

    `packages` is the package folder of the environment to run in (default: this one).
    """

    def installed(module: str) -> bool:
        if packages is None:
            return importlib.util.find_spec(module) is not None
        return PathFinder.find_spec(module, [str(packages)]) is not None

    missing = [b for b in backends if not installed(_BACKEND_MODULES.get(b, b))]
    return f"needs {', '.join(missing)}, which is not installed" if missing else None
