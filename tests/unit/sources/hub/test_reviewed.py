"""Reviewed lines say what users run of a repository whose files do not say it."""

from pathlib import Path
from typing import Any

import pytest

from compilewatch.config import inputs_folder
from compilewatch.data import MODELS, REPOSITORIES
from compilewatch.errors import ConfigError
from compilewatch.records import LibraryBuild, ModelSpec, Part
from compilewatch.sources.hub.repositories import read_reviewed, reviewed_models
from compilewatch.sources.transformers import Resolver, read_library, scan
from tests import factories
from tests.unit.sources.hub.conftest import Read

HEAD = 'reason = "Its documentation says so."\ndate = 2026-11-24\n'
WEIGHTS = {"model.pt": None}


def line(names: str, *models: str, more: str = "") -> str:
    """A line for repositories with these names; a model is its library, file and component."""
    text = f'[[repository]]\nnames = ["{names}"]\n{more}\n{HEAD}'
    for model in models:
        library, configuration, *component = model.split()
        text += f'[[repository.model]]\nlibrary = "{library}"\nconfiguration = "{configuration}"\n'
        text += f'component = "{component[0]}"\n' if component else ""
    return text


TAGGER = line("org/*-tagger", "open_clip tagger")
LINES = (
    TAGGER,
    line("org/pipeline", "open_clip tagger tagger", "transformers acorn embeddings"),
    line("org/ported", "diffusers denoiser", more='part = "port"'),
    line("org/words", more='skip = "no model: lists of words"'),
)


@pytest.fixture(autouse=True)
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
    (folder / "repositories.toml").write_text("".join(LINES))
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(folder))
    return folder


def test_a_repository_with_a_line_is_what_it_names(read: Read) -> None:
    def models(name: str) -> list[tuple[str, Any, Part | None]]:
        specs = read(WEIGHTS, name=name)
        assert {spec.repository for spec in specs} == {name}
        assert not any(spec.skip_reason for spec in specs)
        builds: list[Any] = [spec.build for spec in specs]
        names = [getattr(b, "name", None) or b.class_name for b in builds]
        return [(s.name, n, s.part) for s, n in zip(specs, names, strict=True)]

    assert models("org/any-tagger") == [("org/any-tagger", "tagger", Part.WHOLE)]
    assert models("org/pipeline") == [
        ("org/pipeline#embeddings", "AcornModel", Part.COMPONENT),
        ("org/pipeline#tagger", "tagger", Part.COMPONENT),
    ]
    assert models("org/ported") == [("org/ported", "Denoiser", Part.PORT)]
    assert read({}, name="org/words")[0].skip_reason == "no model: lists of words"


@pytest.mark.parametrize(
    ("files", "more"),
    [
        # Its own files say it.
        ({"config.json": {"model_type": "acorn"}, **WEIGHTS}, {"name": "org/a-tagger"}),
        # PyTorch does not load it, and it is not there.
        ({"model.gguf": None}, {"name": "org/a-tagger"}),
        ({}, {"name": "org/a-tagger", "problem": "gated"}),
        (WEIGHTS, {"name": "org/other"}),
    ],
)
def test_a_line_applies_only_where_nothing_else_resolves_a_repository(
    files: dict[str, Any], more: dict[str, Any], read: Read
) -> None:
    assert not any(isinstance(spec.build, LibraryBuild) for spec in read(files, **more))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (line("a"), "write either"),
        (line("a", "open_clip tagger", more='skip = "x"'), "write either"),
        (line("a", "oak b"), "no library 'oak'; known: transformers, timm"),
        (line("a", "open_clip tagger", "open_clip tagger"), "needs a component"),
        ('[[repository]]\nnames = ["a"]\nskip = "x"', "missing required field `reason`"),
    ],
)
def test_a_line_that_says_too_little_or_too_much_is_rejected(
    text: str, expected: str, inputs: Path
) -> None:
    path = inputs / "repositories.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_reviewed([path])


def spec_of(name: str) -> ModelSpec:
    return factories.spec(name, source="hub", checkpoint=name)


def test_a_configuration_that_is_not_there_is_named(inputs: Path, miniature: Path) -> None:
    (inputs / "models" / "open_clip" / "tagger.json").unlink()
    lines = read_reviewed([inputs / "repositories.toml", inputs / "none.toml"])
    with pytest.raises(ConfigError, match=r"tagger\.json: cannot be read"):
        reviewed_models(lines, spec_of("org/a-tagger"), Resolver(scan(miniature)))


def test_all_shipped_lines_resolve_and_all_configurations_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COMPILEWATCH_INPUTS")
    assert not inputs_folder().joinpath(REPOSITORIES.name).exists()
    shipped = read_reviewed([REPOSITORIES])
    resolver = Resolver(read_library())
    used: set[Path] = set()
    for reviewed, _ in shipped:
        spec = spec_of(reviewed.names[0].replace("*", "any"))
        for model in reviewed_models(shipped, spec, resolver):
            if reviewed.skip is None:
                assert model.skip_reason is None, model.name
                build: Any = model.build
                file = Path(getattr(build, "configuration", None) or build.config_file)
                used.add(file.relative_to(MODELS.resolve()))
    assert used == {path.relative_to(MODELS) for path in MODELS.rglob("*.json")}
