"""What is read from the text of Transformers, and the class that a configuration names."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from compilewatch.data import PackageClass, package_classes
from compilewatch.errors import SourceError
from compilewatch.records import ModelSpec
from compilewatch.sources import transformers
from compilewatch.sources.transformers import Resolver, scan
from tests import factories


@pytest.fixture
def root(miniature: Path, tmp_path: Path) -> Path:
    """A miniature that the test may change."""
    return shutil.copytree(miniature, tmp_path / "transformers")


def classes(library: transformers.ScannedLibrary) -> dict[str, transformers.ModelClass]:
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
    first = transformers.read_library(root, cache)
    with monkeypatch.context() as patch:
        patch.setattr("compilewatch.sources.transformers.scan", lambda _: pytest.fail("again"))
        assert transformers.read_library(root, cache) == first
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    assert transformers.read_library(root, cache) == first
    (tmp_path / "file").touch()
    assert transformers.read_library(root, tmp_path / "file") == first
    changed = root / "models/acorn/modeling_acorn.py"
    changed.write_text(changed.read_text().replace('"AcornModel",', ""))
    os.utime(changed, ns=(1, 1))
    assert "AcornModel" not in classes(transformers.read_library(root, cache))


def test_a_folder_that_is_no_transformers_or_too_old_is_rejected(
    root: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "__init__.py").write_text('__version__ = "5.0.0"\n')
    for folder in (root / "models", root / "__init__.py", empty):
        with pytest.raises(SourceError, match=str(folder)) as caught:
            transformers.read_library(folder, tmp_path / "cache")
        assert "\n" not in str(caught.value)
    for version in ("4.56.2", "4.57.0.dev0", "3.0"):
        (root / "__init__.py").write_text(f'__version__ = "{version}"\n')
        with pytest.raises(SourceError, match=f"transformers {version} .* reads >=4.57 only"):
            transformers.read_library(root, tmp_path / "cache")


@pytest.fixture
def resolver(miniature: Path) -> Resolver:
    return Resolver(scan(miniature))


def resolve(
    resolver: Resolver, model_type: Any = None, named: Any = None, trust: bool = False, **more: Any
) -> tuple[ModelSpec, Any]:
    config = {"model_type": model_type, "architectures": named, **more}
    spec = factories.spec("o/m")
    found = resolver.resolve(spec, Path("config.json"), config, repo="o/m", trust=trust)
    return found, found.build


@pytest.mark.parametrize(
    ("model_type", "named", "expected"),
    [
        ("acorn", ["AcornForSequenceClassification"], "AcornForSequenceClassification"),
        # Without one, the primary class.
        *(("acorn", without, "AcornForCausalLM") for without in (None, [], "AcornModel", [3])),
        (None, None, "its config.json names no model_type"),
        (["acorn"], None, "its config.json names no model_type"),
        ("oak", None, "transformers 9.9.9 has no model type oak"),
        ("acorn", ["LlavaAcorn"], "transformers 9.9.9 has no class LlavaAcorn"),
        ("acorn", ["AcornPreTrainedModel"], "transformers 9.9.9 has no class AcornPreTrainedModel"),
    ],
)
def test_the_named_architecture_is_built_or_a_reason_given(
    resolver: Resolver, model_type: Any, named: Any, expected: str
) -> None:
    found, build = resolve(resolver, model_type, named)
    assert (found.skip_reason or build.class_name) == expected
    if found.skip_reason is None:
        assert (found.family, found.task, len(build.config_sha256)) == ("acorn", "text", 64)


def test_remote_code_runs_only_where_it_is_needed_and_trusted(resolver: Resolver) -> None:
    own: Any = {"auto_map": {"AutoModel": "m.Oak"}}
    # The second names a class of another type.
    for model_type, name in (("oak", "OakModel"), ("acorn", "BEyeToolModel")):
        refused, build = resolve(resolver, model_type, [name], **own)
        assert (refused.skip_reason or "").startswith("remote code")
        assert not build.trust_remote_code
    trusted, build = resolve(resolver, "oak", ["OakModel"], trust=True, **own)
    assert (trusted.skip_reason, build.trust_remote_code) == (None, True)
    assert build.class_name == "OakModel"
    # Where Transformers has the class itself, nothing foreign runs, trusted or not.
    for trust in (False, True):
        found, build = resolve(resolver, "acorn", ["AcornModel"], trust, **own)
        assert (found.skip_reason, build.trust_remote_code) == (None, False)


LINE = """[[override]]
classes = ["LlavaAcorn"]
module = "nut.llava"
packages = ["nuts"]
reason = "It derives from a class of Transformers."
date = 2026-01-01
"""


def test_a_class_that_a_reviewed_line_names_is_of_its_package(
    miniature: Path, tmp_path: Path
) -> None:
    (tmp_path / "packages.toml").write_text(LINE)
    elsewhere = package_classes(tmp_path)
    assert elsewhere["LlavaAcorn"] == PackageClass(module="nut.llava", packages=("nuts",))
    assert "LlavaAcorn" not in package_classes(tmp_path / "none")
    resolver = Resolver(scan(miniature), elsewhere)
    found, build = resolve(resolver, "acorn", ["LlavaAcorn"])
    assert (found.skip_reason, found.family, found.architecture) == (None, "acorn", "LlavaAcorn")
    assert (build.class_module, build.packages) == ("nut.llava", ("nuts",))
    # A class of Transformers stays one.
    _, build = resolve(resolver, "acorn", ["AcornModel"])
    assert (build.class_module, build.packages) == (None, ())
