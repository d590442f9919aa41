"""What every row keeps to, and what each library's files say."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from compilewatch import plugins
from compilewatch.contract.targets import PACKAGE_ENVIRONMENTS
from compilewatch.errors import SourceError, UsageError
from compilewatch.records import LibraryBuild, ModelSpec
from compilewatch.sources import SOURCES, Source
from compilewatch.sources.libraries import LIBRARIES, package_of
from compilewatch.sources.libraries.source import (
    AllLibraries,
    PackageSource,
    installed_package,
    library_version,
    package_in,
)
from compilewatch.sources.select import in_pool

ROWS = [name for name in LIBRARIES if name != "transformers"]

HEADER = "library,name,downloads_30d,models,top_model,top_model_downloads_30d\n"


def source_of(packages: Path, library: str, heads: str = "default") -> PackageSource:
    row = LIBRARIES[library]
    found = plugins.load(row.implementation)(heads=heads, package=packages / row.module)
    assert isinstance(found, PackageSource)
    return found


def names(packages: Path, library: str, heads: str = "default") -> list[str]:
    return [spec.name.partition("/")[2] for spec in source_of(packages, library, heads).models()]


@pytest.mark.parametrize("library", ROWS)
def test_every_row_is_a_source_with_an_environment(packages: Path, library: str) -> None:
    row = LIBRARIES[library]
    assert SOURCES[row.source] == row.implementation
    assert row.environments[0] in PACKAGE_ENVIRONMENTS
    assert package_of(library) == row.package
    for heads in ("default", "all"):
        source: Source = source_of(packages, library, heads)
        assert source.name == row.source
        specs = source.models()
        assert specs
        assert len({spec.name for spec in specs}) == len(specs)
        for spec in specs:
            assert isinstance(spec.build, LibraryBuild)
            assert spec.build.library == library
            assert spec.name == f"{library}/{spec.build.name}"
            assert spec.source == row.source
            assert spec.family
            assert spec.task
            assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec
        assert source.models() == specs


@pytest.mark.parametrize("library", ROWS)
def test_unknown_heads_are_rejected(packages: Path, library: str) -> None:
    with pytest.raises(UsageError, match="unknown heads 'most'"):
        source_of(packages, library, "most")


def test_timm_offers_one_architecture_of_each_module_that_has_weights(packages: Path) -> None:
    assert names(packages, "timm") == ["elm", "oak_small"]
    every = ["elm", "oak_untrained", "oak_small", "oak_large"]
    assert names(packages, "timm", "all") == every


def test_the_most_used_variant_comes_first_and_stands_for_its_module(packages: Path) -> None:
    figures = packages.parent / "inputs" / "library_popularity.csv"
    figures.write_text(f"# date: 2025\n{HEADER}timm,oak_large,7,1,t/oak,7\nopen_clip,RN5,9,1,o,9\n")
    assert names(packages, "timm") == ["oak_large", "elm"]
    assert source_of(packages, "timm").models()[0].downloads == 7
    assert names(packages, "open_clip")[0] == "RN5"


def test_torchvision_leaves_quantised_models_out(packages: Path) -> None:
    assert names(packages, "torchvision") == ["oak18", "quantised_name", "finder_oak"]
    assert [s.task for s in source_of(packages, "torchvision").models()][-1] == "detection"


def test_diffusers_offers_what_is_exported_and_can_run(packages: Path) -> None:
    assert names(packages, "diffusers") == ["Codec", "Denoiser", "LargeDenoiser"]
    assert source_of(packages, "diffusers").pipelines() == {
        "PaintPipeline": ("diffusers/Codec", "TextTower", "diffusers/Denoiser")
    }


def test_open_clip_offers_towers_with_all_heads(packages: Path) -> None:
    assert names(packages, "open_clip") == ["RN5", "ViT-S", "named"]
    assert names(packages, "open_clip", "all")[:3] == ["RN5", "RN5:visual", "RN5:text"]
    families = {s.name: s.family for s in source_of(packages, "open_clip").models()}
    assert families == {
        "open_clip/RN5": "resnet",
        "open_clip/ViT-S": "vit",
        "open_clip/named": "oak",
    }


def test_a_chain_of_sentence_transformers_is_its_folder(packages: Path) -> None:
    def tiny() -> ModelSpec:
        found = source_of(packages, "sentence-transformers").models()
        assert len(found) > 1  # those that are shipped
        return next(spec for spec in found if spec.architecture == "tiny")

    spec = tiny()
    assert isinstance(spec.build, LibraryBuild)
    folder = packages.parent / "inputs" / "sentence-transformers" / "tiny"
    assert spec.build.configuration == str(folder)
    (folder / "config.json").write_text('{"model_type": "t5"}')
    changed = tiny()
    assert isinstance(changed.build, LibraryBuild)
    assert changed.family == "t5"
    assert changed.build.configuration_sha256 != spec.build.configuration_sha256


def test_a_changed_file_is_read_again(packages: Path) -> None:
    assert "oak_new" not in names(packages, "timm", "all")
    with (packages / "timm" / "models" / "oak.py").open("a") as file:
        file.write("\n@register_model\ndef oak_new(): ...\n")
    assert "oak_new" in names(packages, "timm", "all")


def test_a_package_is_found_in_the_environment_that_is_named(packages: Path) -> None:
    row = LIBRARIES["timm"]
    found = package_in(packages, row, "other")
    assert found == packages / "timm"
    assert library_version(found, row) == "9.8.7"
    with pytest.raises(SourceError, match=r"'other' has no timm: .*--with timm"):
        package_in(packages / "timm", row, "other")


def test_a_package_that_is_nowhere_says_what_to_type(packages: Path) -> None:
    with pytest.raises(SourceError, match="compilewatch env create libraries"):
        installed_package(LIBRARIES["diffusers"], packages / "cache")


def test_all_libraries_leave_out_what_is_missing_and_put_the_most_used_first(
    packages: Path,
) -> None:
    figures = packages.parent / "inputs" / "library_popularity.csv"
    figures.write_text(f"{HEADER}timm,elm,7,1,t,7\nopen_clip,RN5,9,1,o,9\n")

    def missing() -> PackageSource:
        return source_of(packages.parent, "diffusers")

    found = AllLibraries(
        [lambda: source_of(packages, "timm"), missing, lambda: source_of(packages, "open_clip")]
    ).models()
    assert [spec.name for spec in found][:2] == ["open_clip/RN5", "timm/elm"]
    assert {spec.source for spec in found} == {"timm", "open_clip"}


def test_a_name_of_one_library_is_found_and_of_several_is_ambiguous(packages: Path) -> None:
    pool = source_of(packages, "timm", "all").models()
    found = in_pool("oak_small", pool)
    assert found is not None
    assert found.name == "timm/oak_small"
    twin = msgspec.structs.replace(
        found,
        name="torchvision/oak_small",
        build=LibraryBuild(library="torchvision", name="oak_small"),
    )
    with pytest.raises(UsageError, match="name timm/oak_small or torchvision/oak_small"):
        in_pool("oak_small", (*pool, twin))
    assert in_pool("torchvision/oak_small", (*pool, twin)) == twin
