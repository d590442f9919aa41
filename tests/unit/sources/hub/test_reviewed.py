"""Reviewed lines say what users run of a repository whose files do not say it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compilewatch.config import inputs_folder
from compilewatch.data import MODELS, REPOSITORIES
from compilewatch.errors import ConfigError
from compilewatch.records import ConfigBuild, LibraryBuild, ModelSpec, Part
from compilewatch.sources.hub.repositories import read_reviewed, reviewed_models
from compilewatch.sources.transformers import Resolver, read_library, scan
from tests import factories
from tests.unit.sources.hub.conftest import Read

HEAD = 'reason = "Its documentation says so."\ndate = 2026-11-24\n'
WEIGHTS = {"model.pt": None}

LINES = f"""
[[repository]]
names = ["org/tagger", "org/*-copy"]
{HEAD}
[[repository.model]]
library = "open_clip"
configuration = "tagger"

[[repository]]
names = ["org/pipeline"]
{HEAD}
[[repository.model]]
library = "open_clip"
configuration = "tagger"
component = "tagger"
[[repository.model]]
library = "transformers"
configuration = "acorn"
component = "embeddings"

[[repository]]
names = ["org/ported"]
part = "port"
{HEAD}
[[repository.model]]
library = "diffusers"
configuration = "denoiser"

[[repository]]
names = ["org/words"]
skip = "no model: lists of words"
{HEAD}
"""


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's inputs with reviewed lines and the configurations that they name."""
    folder = tmp_path / "inputs"
    for name, text in {
        "open_clip/tagger": '{"embed_dim": 8}',
        "transformers/acorn": '{"model_type": "acorn", "architectures": ["AcornModel"]}',
        "diffusers/denoiser": '{"_class_name": "Denoiser"}',
    }.items():
        path = folder / "models" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "repositories.toml").write_text(LINES)
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(folder))
    return folder


@pytest.mark.usefixtures("inputs")
def test_a_repository_with_a_line_is_what_it_names(read: Read) -> None:
    for name in ("org/tagger", "org/any-copy"):
        (spec,) = read(WEIGHTS, name=name)
        assert isinstance(spec.build, LibraryBuild)
        assert (spec.build.library, spec.build.name) == ("open_clip", "tagger")
        assert Path(spec.build.configuration or "").is_file()
        assert (spec.name, spec.part, spec.skip_reason) == (name, Part.WHOLE, None)
    embeddings, tagger = sorted(read(WEIGHTS, name="org/pipeline"), key=lambda spec: spec.name)
    assert (tagger.name, tagger.component) == ("org/pipeline#tagger", "tagger")
    assert isinstance(embeddings.build, ConfigBuild)
    assert (embeddings.build.class_name, embeddings.part) == ("AcornModel", Part.COMPONENT)
    assert {tagger.repository, embeddings.repository} == {"org/pipeline"}
    (ported,) = read(WEIGHTS, name="org/ported")
    assert isinstance(ported.build, LibraryBuild)
    assert (ported.build.name, ported.part) == ("Denoiser", Part.PORT)
    assert read({}, name="org/words")[0].skip_reason == "no model: lists of words"


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    ("files", "more"),
    [
        # Its own files say it.
        ({"config.json": {"model_type": "acorn"}, **WEIGHTS}, {"name": "org/tagger"}),
        # PyTorch does not load it, and it is not there.
        ({"model.gguf": None}, {"name": "org/tagger"}),
        ({}, {"name": "org/tagger", "problem": "gated"}),
        (WEIGHTS, {"name": "org/other"}),
    ],
)
def test_a_line_applies_only_where_nothing_else_resolves_a_repository(
    files: dict[str, Any], more: dict[str, Any], read: Read
) -> None:
    assert not any(isinstance(spec.build, LibraryBuild) for spec in read(files, **more))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f'names = ["a"]\n{HEAD}', "write either"),
        (
            f'names = ["a"]\nskip = "x"\n{HEAD}[[repository.model]]\nlibrary = "open_clip"\n'
            'configuration = "tagger"',
            "write either",
        ),
        (
            f'names = ["a"]\n{HEAD}[[repository.model]]\nlibrary = "oak"\nconfiguration = "b"',
            "no library 'oak'; known: transformers, timm",
        ),
        (
            f'names = ["a"]\n{HEAD}'
            + 2 * '[[repository.model]]\nlibrary = "open_clip"\nconfiguration = "tagger"\n',
            "needs a component",
        ),
        ('names = ["a"]\nskip = "x"', "missing required field `reason`"),
    ],
)
def test_a_line_that_says_too_little_or_too_much_is_rejected(
    line: str, expected: str, inputs: Path
) -> None:
    path = inputs / "repositories.toml"
    path.write_text(f"[[repository]]\n{line}\n")
    with pytest.raises(ConfigError, match=expected):
        read_reviewed([path])


def test_a_configuration_that_is_not_there_is_named(inputs: Path, miniature: Path) -> None:
    (inputs / "models" / "open_clip" / "tagger.json").unlink()
    lines = read_reviewed([inputs / "repositories.toml", inputs / "none.toml"])
    with pytest.raises(ConfigError, match=r"tagger\.json: cannot be read"):
        reviewed_models(lines, spec_of("org/tagger"), Resolver(scan(miniature)))


def test_all_shipped_lines_resolve_and_all_configurations_are_used() -> None:
    assert not inputs_folder().joinpath(REPOSITORIES.name).exists()
    shipped = read_reviewed([REPOSITORIES])
    resolver = Resolver(read_library())
    used: set[Path] = set()
    for line, _ in shipped:
        spec = spec_of(line.names[0].replace("*", "any"))
        for model in reviewed_models(shipped, spec, resolver):
            assert line.skip is not None or model.skip_reason is None, (
                model.name,
                model.skip_reason,
            )
            if line.skip is None:
                used.add(_configuration(model).relative_to(MODELS.resolve()))
    assert used == {path.relative_to(MODELS) for path in MODELS.rglob("*.json")}


def _configuration(spec: ModelSpec) -> Path:
    if isinstance(spec.build, LibraryBuild):
        return Path(spec.build.configuration or "")
    assert isinstance(spec.build, ConfigBuild)
    return Path(spec.build.config_file)


def spec_of(name: str) -> ModelSpec:
    return factories.spec(name, source="hub", checkpoint=name)
