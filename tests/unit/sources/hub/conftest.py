"""Repositories on disk, as a pull stores them."""

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
from tests import factories

NAME = "org/model"
COMMIT = "0123456789" * 4

Read = Callable[..., tuple[ModelSpec, ...]]


@pytest.fixture
def read(tmp_path: Path, miniature: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Write a repository and its list, and return what the source makes of them.

    `files` are names -> content (JSON, text), None for weights and the like; `base` are those of
    the model or pipeline that an adapter is for. Further arguments are what the list says.
    """
    inputs = tmp_path / "inputs"
    inputs.mkdir(exist_ok=True)
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(inputs))

    def run(
        files: Mapping[str, Any],
        base: Mapping[str, Any] | None = None,
        *,
        name: str = NAME,
        trusted: bool = False,
        **more: Any,
    ) -> tuple[ModelSpec, ...]:
        folder = tmp_path / "configs" / "org--model"
        shutil.rmtree(folder, ignore_errors=True)

        def fetch(served: Mapping[str, Any], into: Path) -> str | None:
            known = {n: content for n, content in served.items() if content is not None}
            texts = {n: c if isinstance(c, str) else json.dumps(c) for n, c in known.items()}
            try:
                return fetch_configurations(served, texts.__getitem__, into) if texts else None
            except ConfigError:  # the file is stored all the same, as a damaged one is
                into.mkdir(parents=True)
                (into / "config.json").write_text(texts["config.json"])
                return "config.json"

        main = fetch(files, folder) if "problem" not in more else None
        if base is not None:
            index = fetch(base, folder / "base")
            main = main or f"base/{index}"
        listed = PulledModel(
            repository=name,
            revision=COMMIT,
            config=f"configs/org--model/{main}" if main else None,
            files=kept_files(files),
            downloads=7,
            **more,
        )
        pulled = PulledList(endpoint="e", pulled_at="t", query=PulledQuery(top=1), model=[listed])
        write_pulled(tmp_path / "models.toml", pulled)
        line = f'repository = "{NAME}"\nrevision = "{COMMIT}"\nreason = "r"\ndate = 2026-11-24\n'
        (inputs / "remote_code.toml").write_text(f"[[allow]]\n{line}" if trusted else "")
        return HubSource(factories.places(miniature, pulled_dir=str(tmp_path))).models()

    return run
