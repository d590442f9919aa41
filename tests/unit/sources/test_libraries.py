"""Which models of a library are selected, in which order, and where its package is found."""

import contextvars
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import environments
from compilewatch.contract.libraries import (
    LIBRARIES,
    PACKAGE_ENVIRONMENTS,
    LibraryModel,
    ListedModels,
)
from compilewatch.environments import Environments, Interpreter
from compilewatch.errors import InterpreterError, SourceError, UsageError
from compilewatch.records import LibraryBuild, ModelSpec
from compilewatch.sources import SOURCES, libraries, make_source
from compilewatch.sources.libraries import KNOWN_ONLY, AllLibraries, PackageSource
from compilewatch.sources.select import in_pool
from tests import factories

PACKAGES = [row for row in LIBRARIES.values() if row.implementation]

HEADER = "library,name,downloads_30d,models,top_model,top_model_downloads_30d\n"

MODELS = {
    "timm": (
        LibraryModel(name="elm", family="elm"),
        LibraryModel(name="oak_untrained", family="oak", published=False),
        LibraryModel(name="oak_small", family="oak"),
        LibraryModel(name="oak_large", family="oak"),
    ),
    "torchvision": (LibraryModel(name="oak18", family="oak"),),
    "diffusers": (
        LibraryModel(name="Codec", family="codec", task="autoencoders"),
        LibraryModel(name="Paint", family="pipeline", parts=("diffusers/Codec", "TextTower")),
    ),
    "open_clip": (
        LibraryModel(name="RN5", family="resnet", task="multimodal"),
        LibraryModel(name="RN5:text", family="resnet", task="text", selected=False),
    ),
}
"""What a worker lists."""


def answer(monkeypatch: pytest.MonkeyPatch, listed: ListedModels) -> None:
    """Let a worker list these models."""
    monkeypatch.setattr(environments, "answer", lambda *_: listed)


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Inputs with one chain of sentence-transformers, and a worker that lists `MODELS`."""
    chain = tmp_path / "inputs" / "sentence-transformers" / "tiny"
    chain.mkdir(parents=True)
    (chain / "modules.json").write_text("[]")
    (chain / "config.json").write_text('{"model_type": "bert"}')
    described = {
        "libraries": {row.distribution: "9.8.7" for row in PACKAGES},
        "other": {"torchvision": "1.0"},
    }

    def describe(_: Any, name: str) -> Any:
        if name not in described:
            raise InterpreterError(f"no environment {name!r}")
        return factories.environment(name=name, packages=described[name])

    answer(monkeypatch, ListedModels(models=MODELS, problems={}))
    monkeypatch.setattr(Environments, "interpreter", lambda *_: Interpreter())
    monkeypatch.setattr(Environments, "describe", describe)
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(tmp_path / "inputs"))
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "inputs"


def source_of(library: str, *, environment: str = "", **settings: Any) -> PackageSource:
    folder = Path("its transformers") if environment else None
    return PackageSource(library, factories.places(folder, environment, **settings))


def names(library: str, heads: str = "default") -> list[str]:
    return [spec.name.partition("/")[2] for spec in source_of(library, heads=heads).models()]


@pytest.mark.parametrize("row", PACKAGES, ids=lambda row: row.name)
@pytest.mark.parametrize("heads", ["default", "all"])
def test_every_row_is_a_source_with_an_environment(row: Any, heads: str) -> None:
    assert row.source in SOURCES
    assert all(row.distribution in PACKAGE_ENVIRONMENTS[name] for name in row.environments)
    source = make_source(row.source, factories.places(heads=heads))
    assert source.name == row.source
    specs = source.models()
    assert len({spec.name for spec in specs}) == len(specs) > 0
    for spec in specs:
        build: Any = spec.build
        assert (spec.source, spec.name) == (row.source, f"{build.library}/{build.name}")
        assert build.library == row.name
        assert spec.family
        assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec


def test_one_of_each_family_is_the_most_used_or_first_that_has_weights(inputs: Path) -> None:
    assert names("timm") == ["elm", "oak_small"]
    assert names("timm", "all") == ["elm", "oak_untrained", "oak_small", "oak_large"]
    # Parts are selected with all heads only, and a pipeline is no model.
    assert names("open_clip") == ["RN5"]
    assert names("open_clip", "all") == ["RN5", "RN5:text"]
    assert names("diffusers", "all") == ["Codec"]
    assert source_of("diffusers").pipelines() == {"Paint": ("diffusers/Codec", "TextTower")}
    figures = inputs / "library_popularity.csv"
    figures.write_text(f"# date: 2025\n{HEADER}timm,oak_large,7,1,t/oak,7\n")
    assert names("timm") == ["oak_large", "elm"]
    assert source_of("timm").models()[0].downloads == 7


def test_a_chain_of_sentence_transformers_is_its_folder(inputs: Path) -> None:
    def tiny() -> tuple[ModelSpec, Any]:
        specs = source_of("sentence-transformers").models()
        assert len(specs) > 1  # those that are shipped
        spec = next(spec for spec in specs if spec.architecture == "tiny")
        return spec, spec.build

    _, build = tiny()
    folder = inputs / "sentence-transformers" / "tiny"
    assert build.configuration == str(folder)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    changed, other = tiny()
    assert changed.family == "t5"
    assert other.configuration_sha256 != build.configuration_sha256


def test_a_package_is_found_in_the_environment_that_is_named() -> None:
    assert source_of("torchvision", environment="other").installed() == ("other", "1.0")
    assert source_of("torchvision").installed() == ("libraries", "9.8.7")
    with pytest.raises(SourceError, match=r"'other' has no timm: .*--with timm"):
        source_of("timm", environment="other").models()


def test_a_list_is_kept_and_a_completion_reads_it_only(monkeypatch: pytest.MonkeyPatch) -> None:
    completion = contextvars.copy_context()
    completion.run(KNOWN_ONLY.set, True)
    with pytest.raises(SourceError, match="no list of models yet"):
        completion.run(source_of("timm").models)
    specs = source_of("timm").models()
    monkeypatch.setattr(environments, "answer", lambda *_: pytest.fail("asked again"))
    assert completion.run(source_of("timm").models) == specs


def test_a_library_that_lists_nothing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, ListedModels(models={}, problems={"timm": "no module named oak"}))
    with pytest.raises(SourceError, match=r"^timm in the environment 'libraries' .*: no module na"):
        source_of("timm").models()


def test_all_libraries_leave_out_what_is_missing_and_put_the_most_used_first(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = inputs / "library_popularity.csv"
    figures.write_text(f"{HEADER}timm,elm,7,1,t,7\nopen_clip,RN5,9,1,o,9\n")
    made = {"timm": source_of("timm"), "open_clip": source_of("open_clip")}
    missing = source_of("diffusers", environment="other")
    monkeypatch.setattr(libraries, "make_source", lambda name, _: made.get(name, missing))
    specs = AllLibraries(factories.places()).models()
    assert [spec.name for spec in specs][:2] == ["open_clip/RN5", "timm/elm"]
    assert {spec.source for spec in specs} == {"timm", "open_clip"}


def test_a_name_of_one_library_is_found_and_of_several_is_ambiguous() -> None:
    pool = source_of("timm", heads="all").models()
    oak = in_pool("oak_small", pool)
    assert oak is not None
    assert oak.name == "timm/oak_small"
    build = LibraryBuild(library="torchvision", name="oak_small")
    twin = msgspec.structs.replace(oak, name="torchvision/oak_small", build=build)
    with pytest.raises(UsageError, match="name timm/oak_small or torchvision/oak_small"):
        in_pool("oak_small", (*pool, twin))
    assert in_pool("torchvision/oak_small", (*pool, twin)) == twin
