"""Sources by their names, and downloads by architecture."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from compilewatch import plugins, sources
from compilewatch.config import Places
from compilewatch.data import POPULARITY
from compilewatch.errors import ConfigError, SourceError, UsageError
from compilewatch.sources.hub.pulled import PulledList, PulledModel, PulledQuery, write_pulled
from compilewatch.sources.libraries import PackageSource
from compilewatch.sources.popularity import read_popularity
from compilewatch.sources.transformers import read_library
from tests import factories


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
    library, sentence = sources.choose_source("auto", factories.places())
    assert library.name == "library"
    assert sentence.startswith("Models of the installed Transformers")
    write_list(inputs / "pulled" / "models.toml")
    source, sentence = sources.choose_source("auto", factories.places())
    assert source.name == "hub"
    assert [spec.name for spec in source.models()] == ["a/b"]
    assert "pulled 2025-01-31" in sentence
    assert sources.choose_source("library", factories.places())[0].name == "library"
    # It says of another file which one it is, and that a list was cut short.
    own = inputs / "models.toml"
    places = Places(settings=factories.settings(pulled_dir=str(inputs), models_file=str(own)))
    write_list(own, "1 of 9 models pulled, then: interrupted")
    sentence = sources.choose_source("hub", places)[1]
    assert "incomplete (1 of 9 models pulled, then: interrupted)" in sentence
    source, sentence = sources.choose_source("manifest", places)
    assert (source.name, sentence) == ("manifest", f"Models of {own}.")


def test_a_source_asked_for_by_name_must_be_there() -> None:
    with pytest.raises(SourceError, match="run `compilewatch pull`"):
        sources.choose_source("hub", factories.places())
    known = "no source 'papyrus'; known: auto, all-libraries, diffusers, hub,"
    with pytest.raises(UsageError, match=known):
        sources.make_source("papyrus")


class Theirs:
    name = "theirs"


def test_other_packages_may_offer_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {
        "theirs": EntryPoint("theirs", "tests.unit.sources.test_sources:Theirs", "g"),
        "broken": EntryPoint("broken", "no_such_package:Source", "g"),
    }

    def entry_points(group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "compilewatch.sources"
        return [e for e in offered.values() if name in (None, e.name)]

    monkeypatch.setattr(plugins, "entry_points", entry_points)
    assert set(sources.source_names()) == {*sources.SOURCES, "theirs", "broken"}
    assert sources.choose_source("theirs", factories.places())[0].name == "theirs"
    with pytest.raises(UsageError, match=r"broken .* cannot be loaded: No module named"):
        sources.make_source("broken")


@pytest.mark.parametrize("chosen", ["auto", "timm"])
def test_other_sources_reach_every_head_and_first_all_of_a_chosen_library(chosen: str) -> None:
    """`resnet18` is a model of torchvision too, and none that timm selects by default."""
    places = Places(settings=factories.settings())
    others: list[Any] = [load() for load in sources.other_sources(places, chosen)]
    first = ["timm"] if chosen == "timm" else []
    names = [*first, "manifest", "hub", "library", "all-libraries"]
    assert [source.name for source in others] == names
    assert {s.settings.heads for s in others if hasattr(s, "settings")} == {"all"}


def test_a_pipeline_is_the_row_of_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"PaintPipeline": ("diffusers/Codec", "TextTower")}
    monkeypatch.setattr(PackageSource, "pipelines", lambda _: parts)
    places = Places(settings=factories.settings(cache=str(tmp_path)))
    named = sources.with_parts(["BertModel", "PaintPipeline", "OtherPipeline"], places)
    assert named == ["BertModel", "diffusers/Codec", "TextTower", "OtherPipeline"]
    assert sources.with_parts(["BertModel"], places) == ["BertModel"]
    assert sources.with_parts(None, places) is None


HEADER = "model_type,downloads_30d,models,top_model,top_model_downloads_30d\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n", "the columns must be model_type,"),
        (f"# c\n{HEADER}bert,many,1,x,1\n", "line 3: invalid literal"),
        (f"# c\n{HEADER}t5,1,1,x,1\nbert,1\n", "line 4: not enough values"),
    ],
)
def test_malformed_files_name_the_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "popularity.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"{path}.*{says}"):
        read_popularity(path)


def test_the_reviewed_file_says_where_and_when_and_fits_the_library(scans: Path) -> None:
    text = POPULARITY.read_text()
    assert "# source: " in text
    assert "# date: 2" in text
    figures = read_popularity(POPULARITY)
    assert [*figures.values()] == sorted(figures.values(), reverse=True)
    assert set(figures) <= {c.model_type for c in read_library(cache=scans).classes}
