import os
import shutil
from pathlib import Path

import pytest

from compilewatch.errors import SourceError
from compilewatch.sources.transformers import ModelClass, ScannedLibrary, read_library, scan


@pytest.fixture
def root(miniature: Path, tmp_path: Path) -> Path:
    """A miniature that the test may change."""
    return shutil.copytree(miniature, tmp_path / "transformers")


def classes(library: ScannedLibrary) -> dict[str, ModelClass]:
    return {found.name: found for found in library.classes}


def test_exported_descendants_of_the_root_class_are_found(root: Path) -> None:
    text = "class TFAcornModel(PreTrainedModel):\n    pass\n\n__all__ = ['TFAcornModel']\n"
    (root / "models" / "acorn" / "modeling_tf_acorn.py").write_text(text)
    library = scan(root)
    concrete = [name for name, cls in classes(library).items() if cls.concrete]
    assert concrete == [
        *("AcornForCausalLM", "AcornForSequenceClassification", "AcornModel", "AcornPlainModel"),
        *("AcornTextModel", "BEyeModel", "BEyeToolModel"),
    ]
    # Bases without layers.
    bases = {"AcornPreTrainedModel", "BEyePreTrainedModel", "PretrainedAcornModel"}
    assert classes(library).keys() - set(concrete) == bases
    types = {"acorn": "AcornConfig", "b-eye": "BEyeConfig", "acorn_text": "AcornTextConfig"}
    assert (library.version, library.model_types) == ("9.9.9", types)
    assert library.mappings["MODEL_MAPPING_NAMES"]["b-eye"] == ("BEyeModel", "Other")
    assert library.mappings["MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES"] == {"c": ("C",)}
    # Releases before 5.6 have no such file.
    (root / "models" / "auto" / "auto_mappings.py").unlink()
    assert "AcornModel" in classes(scan(root))


def test_facts_follow_inheritance(miniature: Path) -> None:
    found = classes(scan(miniature))
    facts = {n: (c.config_class, c.model_type, c.checkpoint) for n, c in found.items()}
    assert facts["AcornModel"] == ("AcornConfig", "acorn", "org/acorn-base")
    assert facts["AcornTextModel"] == ("AcornTextConfig", "acorn_text", "org/acorn-text")
    # The type is inherited; the checkpoint documents one configuration only.
    assert facts["AcornPlainModel"] == ("AcornPlainConfig", "acorn", None)
    # A configuration that is not found leaves the type of the folder.
    assert facts["BEyeToolModel"] == ("NowhereConfig", "b-eye", None)
    assert found["AcornTextModel"].parameters == ("input_ids", "attention_mask")
    assert found["AcornForSequenceClassification"].parameters == ("input_ids", "labels")
    # The root's own default says nothing about a model.
    assert (found["AcornModel"].modalities, found["BEyeModel"].modalities) == ((), ("image",))
    assert found["BEyeModel"].backends == ("no_such_backend",)
    assert found["BEyeToolModel"].backends == ()


def test_a_scan_is_kept_until_a_file_changes_and_a_bad_cache_costs_time_only(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = read_library(root, cache)
    with monkeypatch.context() as patch:
        patch.setattr("compilewatch.sources.transformers.scan", lambda _: pytest.fail("again"))
        assert read_library(root, cache) == first
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert read_library(root, cache) == first
    (tmp_path / "file").touch()
    assert read_library(root, tmp_path / "file") == first
    changed = root / "models/acorn/modeling_acorn.py"
    changed.write_text(changed.read_text().replace('"AcornModel",', ""))
    os.utime(changed, ns=(1, 1))
    assert "AcornModel" not in classes(read_library(root, cache))


def test_a_folder_that_is_no_transformers_or_too_old_is_rejected(
    root: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "__init__.py").write_text('__version__ = "5.0.0"\n')
    for folder in (root / "models", root / "__init__.py", empty):
        with pytest.raises(SourceError, match=str(folder)) as caught:
            read_library(folder, tmp_path / "cache")
        assert "\n" not in str(caught.value)
    for version in ("4.56.2", "4.57.0.dev0", "3.0"):
        (root / "__init__.py").write_text(f'__version__ = "{version}"\n')
        with pytest.raises(SourceError, match=f"transformers {version} .* reads >=4.57 only"):
            read_library(root, tmp_path / "cache")
