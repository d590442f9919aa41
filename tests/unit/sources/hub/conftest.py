"""Repositories on disk, as a pull stores them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import ConfigError
from compilewatch.records import ModelSpec
from compilewatch.sources.hub.formats import kept_files
from compilewatch.sources.hub.pull import fetch_configurations
from compilewatch.sources.hub.pulled import (
    HubSource,
    PulledList,
    PulledModel,
    PulledQuery,
    write_pulled,
)

NAME = "org/model"
COMMIT = "0123456789" * 4


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A repository. `files` maps names to content (JSON, text), None for weights and the like.

    `base` is the configuration of an adapter's base model, and `base_pipeline` the files of the
    pipeline that an adapter of diffusers is for.
    """

    files: Mapping[str, Any]
    library: str | None = None
    tags: tuple[str, ...] = ()
    problem: str | None = None
    gated: bool = False
    base: dict[str, Any] | None = None
    base_pipeline: Mapping[str, Any] | None = None
    trusted: bool = False
    name: str = NAME


Read = Callable[[Kind], tuple[ModelSpec, ...]]


@pytest.fixture
def read(tmp_path: Path, miniature: Path) -> Read:
    """Write a repository and its list, and return what the source makes of them."""

    def run(kind: Kind) -> tuple[ModelSpec, ...]:
        folder = tmp_path / "configs" / "org--model"
        shutil.rmtree(folder, ignore_errors=True)
        texts = {
            name: content if isinstance(content, str) else json.dumps(content)
            for name, content in kind.files.items()
            if content is not None
        }
        main = None
        if kind.problem is None and texts:
            try:
                main = fetch_configurations(kind.files, texts.__getitem__, folder)
            except ConfigError:  # the file is stored all the same, as a damaged one is
                main = "config.json"
                folder.mkdir(parents=True)
                (folder / main).write_text(texts[main])
        if kind.base is not None:
            (folder / "base").mkdir()
            (folder / "base" / "config.json").write_text(json.dumps(kind.base))
        if kind.base_pipeline is not None:
            of_base = {name: json.dumps(content) for name, content in kind.base_pipeline.items()}
            index = fetch_configurations(of_base, of_base.__getitem__, folder / "base")
            main = f"base/{index}"
        model = PulledModel(
            repository=kind.name,
            revision=COMMIT,
            config=f"configs/org--model/{main}" if main else None,
            problem=kind.problem,
            library=kind.library,
            tags=list(kind.tags),
            files=kept_files(kind.files),
            gated=kind.gated,
            downloads=7,
        )
        path = tmp_path / "models.toml"
        query = PulledQuery(top=1)
        write_pulled(path, PulledList(endpoint="e", pulled_at="t", query=query, model=[model]))
        reviewed = tmp_path / "remote_code.toml"
        if kind.trusted:
            reviewed.write_text(
                f'[[allow]]\nrepository = "{NAME}"\nrevision = "{COMMIT}"\n'
                'reason = "reviewed"\ndate = "2026-01-01"\n'
            )
        return HubSource(path=path, transformers=miniature, remote_code=reviewed).models()

    return run
