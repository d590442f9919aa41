from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compilewatch.data import PackageClass, package_classes
from compilewatch.errors import ConfigError
from compilewatch.files import read_json_object
from compilewatch.sources.transformers import Configured, Resolver, scan


@pytest.fixture
def resolver(miniature: Path) -> Resolver:
    return Resolver(scan(miniature))


def resolve(resolver: Resolver, config: dict[str, Any], trust: bool = False) -> Configured:
    return resolver.resolve(Path("config.json"), config, repo="o/m", trust_remote_code=trust)


def test_the_named_architecture_is_built(resolver: Resolver) -> None:
    found = resolve(
        resolver, {"model_type": "acorn", "architectures": ["AcornForSequenceClassification"]}
    )
    assert found.build.class_name == "AcornForSequenceClassification"
    assert (found.family, found.task, found.skip_reason) == ("acorn", "text", None)
    assert len(found.build.config_sha256) == 64


@pytest.mark.parametrize("architectures", [None, [], "AcornModel", [3]])
def test_without_one_the_primary_class_is_built(resolver: Resolver, architectures: Any) -> None:
    found = resolve(resolver, {"model_type": "acorn", "architectures": architectures})
    assert found.build.class_name == "AcornForCausalLM"
    assert found.skip_reason is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "its config.json names no model_type"),
        ({"model_type": ["acorn"]}, "its config.json names no model_type"),
        ({"model_type": "oak"}, "transformers 9.9.9 has no model type oak"),
        (
            {"model_type": "acorn", "architectures": ["LlavaAcorn"]},
            "transformers 9.9.9 has no class LlavaAcorn",
        ),
        ({"model_type": "acorn", "architectures": ["AcornPreTrainedModel"]}, "has no class"),
    ],
)
def test_what_transformers_cannot_build_is_a_reason(
    resolver: Resolver, config: dict[str, Any], reason: str
) -> None:
    assert reason in (resolve(resolver, config).skip_reason or "")


def test_remote_code_runs_only_where_it_is_needed_and_trusted(resolver: Resolver) -> None:
    own = {"model_type": "oak", "architectures": ["OakModel"], "auto_map": {"AutoModel": "m.Oak"}}
    refused = resolve(resolver, own)
    assert refused.skip_reason is not None
    assert refused.skip_reason.startswith("remote code")
    assert not refused.build.trust_remote_code
    trusted = resolve(resolver, own, trust=True)
    assert (trusted.skip_reason, trusted.build.trust_remote_code) == (None, True)
    assert trusted.build.class_name == "OakModel"
    # Where Transformers has the class itself, nothing foreign runs, trusted or not.
    native = own | {"model_type": "acorn", "architectures": ["AcornModel"]}
    for trust in (False, True):
        found = resolve(resolver, native, trust=trust)
        assert (found.skip_reason, found.build.trust_remote_code) == (None, False)


def test_a_class_of_another_type_is_not_taken_for_the_models_own(resolver: Resolver) -> None:
    borrowed = {"model_type": "acorn", "architectures": ["BEyeToolModel"], "auto_map": {"A": "b.C"}}
    assert (resolve(resolver, borrowed).skip_reason or "").startswith("remote code")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a":\n1 2}', "not JSON: .* line 2"),
        (b"[1]", "a configuration is a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (None, "cannot be read"),
    ],
)
def test_malformed_files_are_one_line(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"{path}: {says}") as caught:
        read_json_object(path)
    assert "\n" not in str(caught.value)


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
    resolver = Resolver(scan(miniature), elsewhere)

    found = resolve(resolver, {"model_type": "acorn", "architectures": ["LlavaAcorn"]})

    assert (found.skip_reason, found.family, found.architecture) == (None, "acorn", "LlavaAcorn")
    assert (found.build.class_module, found.build.packages) == ("nut.llava", ("nuts",))
    # A class of Transformers stays one.
    own = resolve(resolver, {"model_type": "acorn", "architectures": ["AcornModel"]})
    assert (own.build.class_module, own.build.packages) == (None, ())
    assert "LlavaAcorn" not in package_classes(tmp_path / "none")
