from __future__ import annotations

import os
from pathlib import Path

import pytest

from compilewatch.errors import SourceError
from compilewatch.sources.transformers import ModelClass, ScannedLibrary, read_library, scan


def classes(library: ScannedLibrary) -> dict[str, ModelClass]:
    return {found.name: found for found in library.classes}


def test_exported_descendants_of_the_root_class_are_found(miniature: Path) -> None:
    library = scan(miniature)
    assert list(classes(library)) == [
        "AcornForCausalLM",
        "AcornForSequenceClassification",
        "AcornModel",
        "AcornPlainModel",
        "AcornPreTrainedModel",
        "AcornTextModel",
        "BEyeModel",
        "BEyePreTrainedModel",
        "BEyeToolModel",
        "PretrainedAcornModel",
    ]
    assert library.version == "9.9.9"


def test_bases_without_layers_are_not_concrete(miniature: Path) -> None:
    abstract = {name for name, found in classes(scan(miniature)).items() if not found.concrete}
    assert abstract == {"AcornPreTrainedModel", "BEyePreTrainedModel", "PretrainedAcornModel"}


def test_configuration_facts_follow_inheritance(miniature: Path) -> None:
    found = classes(scan(miniature))
    facts = {n: (c.config_class, c.model_type, c.checkpoint) for n, c in found.items()}
    assert facts["AcornModel"] == ("AcornConfig", "acorn", "org/acorn-base")
    assert facts["AcornTextModel"] == ("AcornTextConfig", "acorn_text", "org/acorn-text")
    # The type is inherited; the checkpoint documents one configuration only.
    assert facts["AcornPlainModel"] == ("AcornPlainConfig", "acorn", None)
    # A configuration that is not found leaves the type of the folder.
    assert facts["BEyeToolModel"] == ("NowhereConfig", "b-eye", None)


def test_forward_parameters_modalities_and_backends(miniature: Path) -> None:
    found = classes(scan(miniature))
    assert found["AcornTextModel"].parameters == ("input_ids", "attention_mask")
    assert found["AcornForSequenceClassification"].parameters == ("input_ids", "labels")
    # The root's own default says nothing about a model.
    assert found["AcornModel"].modalities == ()
    assert found["BEyeModel"].modalities == ("image",)
    assert found["BEyeModel"].backends == ("no_such_backend",)
    assert found["BEyeToolModel"].backends == ()


def test_auto_mappings_and_model_types(miniature: Path) -> None:
    library = scan(miniature)
    assert library.model_types == {
        "acorn": "AcornConfig",
        "b-eye": "BEyeConfig",
        "acorn_text": "AcornTextConfig",
    }
    assert library.mappings["MODEL_MAPPING_NAMES"]["b-eye"] == ("BEyeModel", "Other")
    assert library.mappings["MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"] == {"c": ("C",)}


def test_a_scan_is_kept_until_a_file_changes(
    miniature: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = read_library(miniature, cache)
    monkeypatch.setattr(
        "compilewatch.sources.transformers.scan", lambda _root: pytest.fail("scanned again")
    )
    assert read_library(miniature, cache) == first
    monkeypatch.undo()
    changed = miniature / "models/acorn/modeling_acorn.py"
    changed.write_text(changed.read_text().replace('"AcornModel",', ""))
    os.utime(changed, ns=(1, 1))
    assert "AcornModel" not in classes(read_library(miniature, cache))


def test_a_damaged_or_unwritable_cache_costs_time_only(miniature: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = read_library(miniature, cache)
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert read_library(miniature, cache) == first
    file_in_the_way = tmp_path / "file"
    file_in_the_way.touch()
    assert read_library(miniature, file_in_the_way) == first


@pytest.mark.parametrize("missing", ["", "__init__.py", "models"])
def test_a_folder_that_is_no_transformers_is_rejected(
    miniature: Path, tmp_path: Path, missing: str
) -> None:
    if missing == "models":
        root = tmp_path / "empty"
        root.mkdir()
        (root / "__init__.py").write_text('__version__ = "5.0.0"\n')
    else:
        root = miniature / (missing or "models")
    with pytest.raises(SourceError) as caught:
        read_library(root, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert str(root) in str(caught.value)


@pytest.mark.parametrize("version", ["4.56.2", "4.57.0.dev0", "3.0"])
def test_a_release_that_is_too_old_is_rejected_in_one_line(
    miniature: Path, tmp_path: Path, version: str
) -> None:
    (miniature / "__init__.py").write_text(f'__version__ = "{version}"\n')
    with pytest.raises(SourceError, match=f"transformers {version} .* reads >=4.57 only") as caught:
        read_library(miniature, tmp_path / "cache")
    assert "\n" not in str(caught.value)


def test_a_release_without_the_newer_file_of_mappings_is_read(miniature: Path) -> None:
    (miniature / "models" / "auto" / "auto_mappings.py").unlink(missing_ok=True)
    assert "AcornModel" in classes(scan(miniature))


def test_models_of_other_frameworks_are_not_read(miniature: Path) -> None:
    text = "class TFAcornModel(PreTrainedModel):\n    pass\n\n__all__ = ['TFAcornModel']\n"
    (miniature / "models" / "acorn" / "modeling_tf_acorn.py").write_text(text)
    assert "TFAcornModel" not in classes(scan(miniature))
