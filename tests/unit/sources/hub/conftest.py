"""Repositories on disk, as a pull stores them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from compilewatch.errors import ConfigError
from compilewatch.records import ModelSpec
from compilewatch.sources.hub.formats import kept_files
from compilewatch.sources.hub.pull import fetch_configurations
from compilewatch.sources.hub.pulled import PulledList, PulledModel, PulledQuery, write_pulled
from compilewatch.sources.hub.repositories import HubSource

NAME = "org/model"
COMMIT = "0123456789" * 4

Files = Mapping[str, Any]
"""Names of files -> their content (JSON, text), None for weights and the like."""

Read = Callable[..., tuple[ModelSpec, ...]]


@pytest.fixture
def read(tmp_path: Path, miniature: Path) -> Read:
    """Write a repository and its list, and return what the source makes of them.

    `base` are the files of the model or the pipeline that an adapter is for; further arguments are
    what the list says.
    """

    def run(
        files: Files,
        base: Files | None = None,
        *,
        name: str = NAME,
        trusted: bool = False,
        **more: Any,
    ) -> tuple[ModelSpec, ...]:
        folder = tmp_path / "configs" / "org--model"
        shutil.rmtree(folder, ignore_errors=True)
        texts = {
            file: content if isinstance(content, str) else json.dumps(content)
            for file, content in files.items()
            if content is not None
        }
        main = None
        if "problem" not in more and texts:
            try:
                main = fetch_configurations(files, texts.__getitem__, folder)
            except ConfigError:  # the file is stored all the same, as a damaged one is
                main = "config.json"
                folder.mkdir(parents=True)
                (folder / main).write_text(texts[main])
        if base is not None:
            of_base = {file: json.dumps(content) for file, content in base.items()}
            index = fetch_configurations(of_base, of_base.__getitem__, folder / "base")
            main = main or f"base/{index}"
        listed = PulledModel(
            repository=name,
            revision=COMMIT,
            config=f"configs/org--model/{main}" if main else None,
            files=kept_files(files),
            downloads=7,
            **more,
        )
        path = tmp_path / "models.toml"
        query = PulledQuery(top=1)
        write_pulled(path, PulledList(endpoint="e", pulled_at="t", query=query, model=[listed]))
        reviewed = tmp_path / "remote_code.toml"
        if trusted:
            reviewed.write_text(
                f'[[allow]]\nrepository = "{NAME}"\nrevision = "{COMMIT}"\n'
                'reason = "reviewed"\ndate = "2026-01-01"\n'
            )
        return HubSource(path=path, transformers=miniature, remote_code=reviewed).models()

    return run
