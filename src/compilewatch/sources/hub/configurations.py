"""Which configuration files a pull fetches of a repository, and where it stores them.

Every file is JSON, is named by the repository's own list of files, and is limited in size and in
number. Weights and code are never fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from compilewatch.errors import ConfigError
from compilewatch.files import write_atomically
from compilewatch.sources.configs import parse_config
from compilewatch.sources.hub.original import ORIGINAL_CONFIG, converted, converted_mamba

CONFIG_FILES = frozenset(
    {
        "adapter_config.json",
        "config.json",
        "config_sentence_transformers.json",
        "model_index.json",
        "modules.json",
        "open_clip_config.json",
        "params.json",
        "quantize_config.json",
        "sentence_bert_config.json",
    }
)
"""The only names of files that are ever downloaded from a repository."""

MAIN_FILES = (
    *("config.json", "model_index.json", "modules.json"),
    *("open_clip_config.json", "adapter_config.json", "params.json"),
)
"""The first of these that a repository has is the `config` of the pulled list."""

MAX_FILES = 24
MAX_FILE_BYTES = 2 * 2**20
"""The largest published configurations, with the names of 20,000 labels, have about 1 MB."""

BASE_TAG = "base_model"

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Fetch = Callable[[str], str]
"""Returns the text of a file of the repository."""


def fetch_configurations(files: Iterable[str] | None, fetch: Fetch, folder: Path) -> str | None:
    """Fetch the configuration files of a repository into `folder`; return the name of the main one.

    `files` are the names of the repository's files; without a list only `config.json` is tried. A
    repository may have none, for which None is returned. Raises ConfigError for a malformed one,
    and what `fetch` raises.
    """
    names = set(files) if files is not None else {"config.json"}
    texts: dict[str, str] = {}
    for name in (*MAIN_FILES, *sorted(CONFIG_FILES)):
        if name in names and name not in texts:
            texts[name] = fetch(name)
    main = next((name for name in MAIN_FILES if name in texts), None)
    if main is None:
        return None
    for name in list(_nested(texts, names))[: MAX_FILES - len(texts)]:
        texts[name] = fetch(name)
    for name, text in texts.items():
        if name != "modules.json":
            parse_config(text, name)
    if (original := _original(texts)) is not None:
        texts[ORIGINAL_CONFIG] = json.dumps(original, indent=1)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return main


def _original(texts: Mapping[str, str]) -> dict[str, Any] | None:
    """The configuration of Transformers for files in the form of a model's own code."""
    if "config.json" in texts:
        return converted_mamba(parse_config(texts["config.json"], "config.json"))
    if "params.json" in texts:
        return converted(parse_config(texts["params.json"], "params.json"))
    return None


def base_pipeline(library: str | None, tags: Iterable[str]) -> str | None:
    """Return the repository that an adapter of diffusers is for, as its tags say.

    The Hub makes such a tag from `base_model` in the description, and a second one that says how
    the repository is related to it, such as `base_model:adapter:org/name`.
    """
    if library != "diffusers":
        return None
    bases = [tag.split(":")[1:] for tag in tags if tag.startswith(f"{BASE_TAG}:")]
    related = [base[1] for base in bases if len(base) == 2 and base[0] == "adapter"]
    plain = [base[0] for base in bases if len(base) == 1]
    return next(iter([*related, *plain]), None)


def base_model(folder: Path) -> str | None:
    """Return the base model of an adapter whose configuration was fetched into `folder`."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        return None
    base = parse_config(path.read_text(encoding="utf-8"), path.name).get("base_model_name_or_path")
    return base if isinstance(base, str) and base else None


def _nested(texts: dict[str, str], files: set[str]) -> Iterator[str]:
    """Yield the configurations of the components or modules that the main files name."""
    folders: list[str] = []
    if "model_index.json" in texts:
        index = parse_config(texts["model_index.json"], "model_index.json")
        folders += [name for name, value in index.items() if isinstance(value, list)]
    if "modules.json" in texts:
        folders += _module_folders(texts["modules.json"])
    for folder in folders:
        parts = folder.split("/")
        if not all(_PART.fullmatch(part) for part in parts):
            continue
        for name in ("config.json", "sentence_bert_config.json"):
            if (path := f"{folder}/{name}") in files:
                yield path


def _module_folders(text: str) -> list[str]:
    try:
        modules: Any = json.loads(text)
        return [str(module.get("path", "")) for module in modules]
    except (ValueError, AttributeError, TypeError) as error:
        raise ConfigError(f"modules.json: not a list of modules: {error}") from error
