"""What the names of a repository's files, its library and its tags say: never the files' content.

A repository that has weights, but none that PyTorch loads, is not evaluated; the reason names its
format. File names are those that the libraries themselves write; `data/hub_formats.toml` has them.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

from compilewatch.data import HUB_FORMATS

PYTORCH = "PyTorch"

_TABLES: dict[str, Any] = tomllib.loads(HUB_FORMATS.read_text("utf-8"))
FORMATS: dict[str, list[str]] = _TABLES["formats"]
LIBRARY_FORMATS: dict[str, str] = _TABLES["library_formats"]
OTHER_LIBRARIES: dict[str, str] = _TABLES["other_libraries"]
NAMES: dict[str, list[str]] = _TABLES["names"]

CTRANSLATE2_VOCABULARY = re.compile(r"(shared_)?vocabulary\.(txt|json)|source_vocabulary\.txt")
SHARD = re.compile(r"-0*(\d+)-of-\d+(?=\.)")
MAX_FILES = 200
MAX_TAGS = 60


def kept_files(names: Iterable[str]) -> list[str]:
    """Return the file names that say what a repository is, in a bounded number.

    Of the shards of a file, the first is kept. What is near the root comes first.
    """
    kept = {
        name
        for name in names
        if not _is(name, NAMES["description"]) or _is(name, NAMES["tokenizer"])
        if (shard := SHARD.search(name)) is None or shard[1] == "1"
    }
    return sorted(kept, key=lambda name: (name.count("/"), name))[:MAX_FILES]


def kept_tags(tags: Iterable[str]) -> list[str]:
    """Return the tags without those that name data sets, papers, regions or licences."""
    return [tag for tag in tags if ":" not in tag][:MAX_TAGS]


def formats_of(files: Iterable[str]) -> set[str]:
    """Return the formats of all weights among these files."""
    formats = set()
    for name in files:
        if _is(name, NAMES["training"]):
            continue
        matching = [format_ for format_, patterns in FORMATS.items() if _is(name, patterns)]
        if matching:
            formats.add(matching[-1])
    return formats


def foreign_format(
    library: str | None, tags: Iterable[str], files: Iterable[str] | None
) -> str | None:
    """Return the format of a repository whose weights PyTorch cannot load; None for others."""
    named = [LIBRARY_FORMATS[name] for name in (library, *tags) if name in LIBRARY_FORMATS]
    if files is None:
        # A library decides; tags may be of several formats.
        if library not in LIBRARY_FORMATS and {"pytorch", "safetensors"} & set(tags):
            return None
        return named[0] if named else None
    names, formats = set(files), formats_of(files)
    if "MLX" in named:
        return "MLX"
    # CTranslate2 writes `model.bin` and vocabularies with names that no other library uses.
    vocabularies = any(map(CTRANSLATE2_VOCABULARY.fullmatch, names))
    if "model.bin" in names and ("CTranslate2" in named or vocabularies):
        return "CTranslate2"
    others = [name for name in FORMATS if name in formats and name != PYTORCH]
    return None if PYTORCH in formats or not others else others[0]


def other_library(
    library: str | None, tags: Iterable[str], files: Iterable[str] | None
) -> str | None:
    """Return the library of a repository whose models are not built here; None if it is unknown."""
    if library in OTHER_LIBRARIES:
        return OTHER_LIBRARIES[library]
    known: list[str] = _TABLES["known_libraries"]
    if library and library not in {*known, *LIBRARY_FORMATS}:
        return library
    tagged = next((OTHER_LIBRARIES[tag] for tag in tags if tag in OTHER_LIBRARIES), None)
    if tagged is not None:
        return tagged
    written_by: dict[str, str] = _TABLES["other_files"]
    libraries = (written_by[p] for name in files or () for p in written_by if _is(name, [p]))
    return next(libraries, None)


def why_no_model(files: Iterable[str] | None) -> str:
    """Return the reason why a repository without a configuration cannot be evaluated."""
    if files is None:
        return "it has no configuration file that names its model: pull again"
    names = list(files)
    rest = [name for name in names if not _is(name, NAMES["tokenizer"])]
    if not names:
        return "no model: the repository has no files but its description"
    if not rest:
        return "no model: the repository has only a tokenizer"
    if all(_is(name, NAMES["data"] + NAMES["tokenizer"]) for name in names):
        return "no model: the repository has only data files"
    original = [name for name in rest if PurePosixPath(name).name.startswith("consolidated.")]
    if original:
        return f"original weights ({original[0]}) without a configuration of a known form"
    weights = [name for name in rest if PYTORCH in formats_of([name])]
    if weights:
        return f"PyTorch weights ({weights[0]}) without a configuration that names their class"
    return "no model: the repository has neither weights nor a configuration of a known form"


def _is(name: str, patterns: Iterable[str]) -> bool:
    """Whether a file, or a folder that it is in, has a name of one of these patterns."""
    path = PurePosixPath(name)
    parts = (path, *(parent for parent in path.parents if parent.suffix in _PACKAGES))
    return any(part.match(pattern) for part in parts for pattern in patterns)


_PACKAGES = (".mlpackage", ".mlmodelc")
"""Suffixes of folders that are one file to their users."""
