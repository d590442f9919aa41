"""Reviewed lines say what users run of a repository whose files do not say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.config import inputs_folder
from compilewatch.data import MODELS, REPOSITORIES
from compilewatch.errors import ConfigError
from compilewatch.records import ConfigBuild, LibraryBuild, ModelSpec, Part
from compilewatch.sources.hub.repositories import Reviewed, read_reviewed
from compilewatch.sources.transformers import Resolver, read_library, scan
from tests import factories
from tests.unit.sources.hub.conftest import Kind, Read

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
@pytest.mark.parametrize("name", ["org/tagger", "org/any-copy"])
def test_a_repository_with_a_line_is_the_model_that_it_names(name: str, read: Read) -> None:
    (spec,) = read(Kind(files=WEIGHTS, name=name))
    assert isinstance(spec.build, LibraryBuild)
    assert (spec.build.library, spec.build.name) == ("open_clip", "tagger")
    assert Path(spec.build.configuration or "").is_file()
    assert (spec.name, spec.part, spec.skip_reason) == (name, Part.WHOLE, None)
    assert spec.family == "tagger"


@pytest.mark.usefixtures("inputs")
def test_models_of_several_libraries_are_components(read: Read) -> None:
    tagger, embeddings = sorted(
        read(Kind(files=WEIGHTS, name="org/pipeline")), key=lambda spec: spec.name, reverse=True
    )
    assert tagger.name == "org/pipeline#tagger"
    assert (tagger.part, tagger.component) == (Part.COMPONENT, "tagger")
    assert isinstance(embeddings.build, ConfigBuild)
    assert (embeddings.build.class_name, embeddings.part) == ("AcornModel", Part.COMPONENT)
    assert {tagger.repository, embeddings.repository} == {"org/pipeline"}


@pytest.mark.usefixtures("inputs")
def test_a_line_says_which_part_is_evaluated_or_why_nothing_is(read: Read) -> None:
    (ported,) = read(Kind(files=WEIGHTS, name="org/ported"))
    assert isinstance(ported.build, LibraryBuild)
    assert (ported.build.name, ported.part) == ("Denoiser", Part.PORT)
    (words,) = read(Kind(files={}, name="org/words"))
    assert words.skip_reason == "no model: lists of words"


@pytest.mark.usefixtures("inputs")
@pytest.mark.parametrize(
    "kind",
    [
        # Its own files say it.
        Kind(files={"config.json": {"model_type": "acorn"}, **WEIGHTS}, name="org/tagger"),
        # PyTorch does not load it, and it is not there.
        Kind(files={"model.gguf": None}, name="org/tagger"),
        Kind(files={}, name="org/tagger", problem="gated"),
        Kind(files=WEIGHTS, name="org/other"),
    ],
)
def test_a_line_applies_only_where_nothing_else_resolves_a_repository(
    kind: Kind, read: Read
) -> None:
    for spec in read(kind):
        assert not isinstance(spec.build, LibraryBuild)


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
    found = read_reviewed([inputs / "repositories.toml"])
    with pytest.raises(ConfigError, match=r"tagger\.json: cannot be read"):
        found.models(spec_of("org/tagger"), Resolver(scan(miniature)))


def test_a_file_that_does_not_exist_has_no_lines(tmp_path: Path) -> None:
    assert read_reviewed([tmp_path / "repositories.toml"]) == Reviewed(())


def test_all_shipped_lines_resolve_and_all_configurations_are_used() -> None:
    assert not inputs_folder().joinpath(REPOSITORIES.name).exists()
    shipped = read_reviewed([REPOSITORIES])
    resolver = Resolver(read_library())
    used: set[Path] = set()
    for line, _ in shipped.lines:
        for spec in shipped.models(spec_of(line.names[0].replace("*", "any")), resolver):
            assert line.skip is not None or spec.skip_reason is None, (spec.name, spec.skip_reason)
            if isinstance(spec.build, ConfigBuild | LibraryBuild) and line.skip is None:
                path = _configuration(spec)
                assert path.is_file()
                used.add(path.relative_to(MODELS.resolve()))
    there = {path.relative_to(MODELS) for path in MODELS.rglob("*.json")}
    assert used == there


def _configuration(spec: ModelSpec) -> Path:
    if isinstance(spec.build, LibraryBuild):
        return Path(spec.build.configuration or "")
    assert isinstance(spec.build, ConfigBuild)
    return Path(spec.build.config_file)


def spec_of(name: str) -> ModelSpec:
    return factories.spec(name, source="hub", checkpoint=name)
