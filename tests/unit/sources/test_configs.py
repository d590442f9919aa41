from pathlib import Path
from typing import Any

import pytest

from compilewatch.data import PackageClass, package_classes
from compilewatch.records import ModelSpec
from compilewatch.sources.transformers import Resolver, scan
from tests import factories


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
    ("named", "expected"),
    [
        (["AcornForSequenceClassification"], "AcornForSequenceClassification"),
        # Without one, the primary class.
        *((without, "AcornForCausalLM") for without in (None, [], "AcornModel", [3])),
    ],
)
def test_the_named_architecture_is_built(resolver: Resolver, named: Any, expected: str) -> None:
    found, build = resolve(resolver, "acorn", named)
    assert build.class_name == expected
    assert (found.family, found.task, found.skip_reason) == ("acorn", "text", None)
    assert len(build.config_sha256) == 64


@pytest.mark.parametrize(
    ("model_type", "named", "reason"),
    [
        (None, None, "its config.json names no model_type"),
        (["acorn"], None, "its config.json names no model_type"),
        ("oak", None, "transformers 9.9.9 has no model type oak"),
        ("acorn", ["LlavaAcorn"], "transformers 9.9.9 has no class LlavaAcorn"),
        ("acorn", ["AcornPreTrainedModel"], "has no class"),
    ],
)
def test_what_transformers_cannot_build_is_a_reason(
    resolver: Resolver, model_type: Any, named: Any, reason: str
) -> None:
    assert reason in (resolve(resolver, model_type, named)[0].skip_reason or "")


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
