from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

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
from compilewatch.sources.hub.pulled import PulledList, PulledModel, PulledQuery, write_pulled
from compilewatch.sources.libraries import PackageSource


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
    library: Any
    library, sentence = choose_source("auto", heads="all")
    assert (library.name, library.heads) == ("library", "all")
    assert sentence.startswith("Models of the installed Transformers")
    write_list(inputs / "pulled" / "models.toml")
    source, sentence = choose_source("auto")
    assert source.name == "hub"
    assert [spec.name for spec in source.models()] == ["a/b"]
    assert "pulled 2025-01-31" in sentence
    assert choose_source("library")[0].name == "library"


def test_the_sentence_names_the_file_and_says_that_a_list_was_cut_short(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    write_list(own, "1 of 9 models pulled, then: interrupted")
    sentence = choose_source("hub", places=Places(pulled=own))[1]
    assert "incomplete (1 of 9 models pulled, then: interrupted)" in sentence
    source, sentence = choose_source("manifest", places=Places(manifest=own))
    assert (source.name, sentence) == ("manifest", f"Models of {own}.")


def test_a_source_asked_for_by_name_must_be_there() -> None:
    with pytest.raises(SourceError, match="run `compilewatch pull`"):
        choose_source("hub")
    known = "no source 'papyrus'; known: auto, all-libraries, diffusers, hub,"
    with pytest.raises(UsageError, match=known):
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


@pytest.mark.parametrize("chosen", ["auto", "timm"])
def test_other_sources_reach_every_head_and_first_all_of_a_chosen_library(chosen: str) -> None:
    """`resnet18` is a model of torchvision too, and none that timm selects by default."""
    others: list[Any] = [load() for load in other_sources(Places(), chosen)]
    first = ["timm"] if chosen == "timm" else []
    names = [*first, "manifest", "hub", "library", "all-libraries"]
    assert [source.name for source in others] == names
    assert {source.heads for source in others if hasattr(source, "heads")} == {"all"}


def test_a_pipeline_is_the_row_of_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"PaintPipeline": ("diffusers/Codec", "TextTower")}
    monkeypatch.setattr(PackageSource, "pipelines", lambda _: parts)
    places = Places(cache=tmp_path)
    named = with_parts(["BertModel", "PaintPipeline", "OtherPipeline"], places)
    assert named == ["BertModel", "diffusers/Codec", "TextTower", "OtherPipeline"]
    assert with_parts(["BertModel"], places) == ["BertModel"]
    assert with_parts(None, places) is None
