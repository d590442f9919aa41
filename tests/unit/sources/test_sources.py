from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from compilewatch import plugins
from compilewatch.config import Places
from compilewatch.errors import SourceError, UsageError
from compilewatch.sources import (
    SOURCES,
    choose_source,
    make_source,
    other_sources,
    source_names,
    with_parts,
)
from compilewatch.sources.hub.pulled import (
    PulledList,
    PulledModel,
    PulledQuery,
    write_pulled,
)
from compilewatch.sources.libraries import PackageSource
from compilewatch.sources.own import ManifestSource
from compilewatch.sources.transformers import LibrarySource


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COMPILEWATCH_INPUTS", str(tmp_path / "inputs"))
    return tmp_path / "inputs"


def write_list(path: Path, message: str | None = None) -> None:
    pulled = PulledList(
        endpoint="e",
        pulled_at="2025-01-31T00:00:00Z",
        query=PulledQuery(top=1),
        partial=message is not None,
        message=message,
        model=[PulledModel(repository="a/b", problem="p")],
    )
    write_pulled(path, pulled)


def test_auto_is_the_pulled_list_if_there_is_one(inputs: Path) -> None:
    source, sentence = choose_source("auto", heads="all")
    assert isinstance(source, LibrarySource)
    assert source.heads == "all"
    assert sentence.startswith("Models of the installed Transformers")
    write_list(inputs / "pulled" / "models.toml")
    source, sentence = choose_source("auto")
    assert source.name == "hub"
    assert [spec.name for spec in source.models()] == ["a/b"]
    assert "pulled 2025-01-31" in sentence
    assert isinstance(choose_source("library")[0], LibrarySource)


def test_a_list_that_was_cut_short_says_so(tmp_path: Path) -> None:
    write_list(tmp_path / "own.toml", "1 of 9 models pulled, then: interrupted")
    sentence = choose_source("hub", places=Places(pulled=tmp_path / "own.toml"))[1]
    assert "incomplete (1 of 9 models pulled, then: interrupted)" in sentence


def test_a_source_asked_for_by_name_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="run `compilewatch pull`"):
        choose_source("hub")
    source, sentence = choose_source("manifest", places=Places(manifest=tmp_path / "ours.toml"))
    assert isinstance(source, ManifestSource)
    assert str(tmp_path / "ours.toml") in sentence


def test_unknown_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UsageError,
        match="no source 'papyrus'; known: auto, all-libraries, diffusers, hub,",
    ):
        make_source("papyrus")


def test_other_packages_may_offer_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {
        "theirs": EntryPoint("theirs", "compilewatch.sources.own:ManifestSource", "g"),
        "broken": EntryPoint("broken", "no_such_package:Source", "g"),
    }

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "compilewatch.sources"
        return [e for e in offered.values() if name in (None, e.name)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    assert set(source_names()) == {*SOURCES, "theirs", "broken"}
    assert choose_source("theirs")[0].name == "manifest"
    with pytest.raises(UsageError, match=r"broken .* cannot be loaded: No module named"):
        make_source("broken")


def test_other_sources_reach_every_head(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [load() for load in other_sources(Places(), "auto")]
    names = ["manifest", "hub", "library", "all-libraries"]
    assert [source.name for source in found] == names
    assert [s.heads for s in found if isinstance(s, LibrarySource)] == ["all"]


def test_a_chosen_library_has_precedence_with_all_its_models() -> None:
    """`resnet18` is a model of torchvision too, and none that timm selects by default."""
    first = other_sources(Places(), "timm")[0]()
    assert (first.name, getattr(first, "heads", "")) == ("timm", "all")


def test_a_pipeline_is_the_row_of_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"PaintPipeline": ("diffusers/Codec", "TextTower")}
    monkeypatch.setattr(PackageSource, "pipelines", lambda _: parts)
    places = Places(cache=tmp_path)
    named = ["BertModel", "PaintPipeline", "OtherPipeline"]
    assert with_parts(named, places) == [
        "BertModel",
        "diffusers/Codec",
        "TextTower",
        "OtherPipeline",
    ]
    assert with_parts(["BertModel"], places) == ["BertModel"]
    assert with_parts(None, places) is None
