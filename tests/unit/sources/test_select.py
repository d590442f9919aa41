from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compilewatch.errors import ConfigError, SourceError, UnknownModelError, UsageError
from compilewatch.records import ClassBuild, ConfigBuild, ModelSpec, Part
from compilewatch.sources import Source
from compilewatch.sources.select import select


def spec(name: str, family: str, source: str = "library") -> ModelSpec:
    return ModelSpec(source=source, name=name, family=family, build=ClassBuild(class_name=name))


LIBRARY = (
    spec("BertModel", "bert"),
    spec("BertLMHeadModel", "bert"),
    spec("ViTModel", "vit"),
    spec("LlamaForCausalLM", "llama"),
    spec("LlamaModel", "llama"),
)
HUB = (spec("org/a", "bert", "hub"), spec("org/b", "bert", "hub"))


class Other:
    name = "other"

    def __init__(self, *specs: ModelSpec) -> None:
        self.specs = specs

    def models(self) -> tuple[ModelSpec, ...]:
        return self.specs


def names(specs: tuple[ModelSpec, ...]) -> list[str]:
    return [s.name for s in specs]


def test_top_counts_architectures_in_the_library_and_models_elsewhere() -> None:
    assert names(select(LIBRARY, top=2)) == ["BertModel", "ViTModel"]
    assert names(select(LIBRARY, top=99)) == ["BertModel", "ViTModel", "LlamaForCausalLM"]
    assert names(select(HUB, top=2)) == ["org/a", "org/b"]


PIPELINE = tuple(
    ModelSpec(
        source="hub",
        name=f"org/pipe#{name}",
        checkpoint="org/pipe",
        part=Part.COMPONENT,
        component=name,
        build=ClassBuild(class_name=name),
    )
    for name in ("text_encoder", "unet")
)


def test_the_components_of_a_repository_are_selected_together() -> None:
    pool = (HUB[0], *PIPELINE, HUB[1])
    assert names(select(pool, top=2)) == ["org/a", "org/pipe#text_encoder", "org/pipe#unet"]
    assert select(pool, names=["org/pipe"]) == PIPELINE
    assert select(pool, names=["org/pipe#unet", "org/pipe"]) == PIPELINE[::-1]


def test_all_and_families() -> None:
    assert select(LIBRARY, all=True) == LIBRARY
    assert names(select(LIBRARY, families=["llama"])) == ["LlamaForCausalLM", "LlamaModel"]
    assert names(select(LIBRARY, families=["llama", "vit"], top=1)) == ["ViTModel"]
    with pytest.raises(UnknownModelError, match="no family 'lama'; similar names: llama"):
        select(LIBRARY, families=["lama"])


def test_names_are_classes_families_and_models_in_the_order_given() -> None:
    chosen = select((*LIBRARY, *HUB), names=["vit", "org/b", "bertmodel", "bert", " LlamaModel "])
    assert names(chosen) == ["ViTModel", "org/b", "BertModel", "LlamaModel"]


def test_other_sources_are_read_only_for_names_that_are_not_known() -> None:
    asked: list[str] = []

    def other(tag: str, *specs: ModelSpec) -> Callable[[], Source]:
        def load() -> Source:
            asked.append(tag)
            return Other(*specs)

        return load

    def broken() -> Source:
        asked.append("broken")
        raise SourceError("there is none")

    others = [broken, other("one", spec("Far", "far")), other("two", spec("Farther", "x"))]
    assert names(select(LIBRARY, names=["bert"], others=others)) == ["BertModel"]
    assert asked == []
    assert names(select(LIBRARY, names=["Far"], others=others)) == ["Far"]
    assert asked == ["broken", "one"]
    asked.clear()
    with pytest.raises(UnknownModelError, match="similar names: Farther"):
        select(LIBRARY, names=["Farthr"], others=others)
    assert asked == ["broken", "one", "two"]


def test_near_names_are_said_for_unknown_ones() -> None:
    with pytest.raises(UnknownModelError) as caught:
        select(LIBRARY, names=["BretModel"])
    assert "BertModel" in str(caught.value)
    assert caught.value.exit_status == 2
    with pytest.raises(UnknownModelError, match="`compilewatch pull`"):
        select(LIBRARY, names=["someone/something-else"])


def test_a_folder_with_a_configuration(
    tmp_path: Path, miniature: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        "compilewatch.sources.transformers.installed_transformers", lambda: miniature
    )
    (tmp_path / "config.json").write_text('{"model_type": "acorn"}')
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        (found,) = select(LIBRARY, names=[name])
        assert isinstance(found.build, ConfigBuild)
        assert found.build.config_file == str(tmp_path / "config.json")
        assert found.build.class_name == "AcornForCausalLM"
        assert found.name == name
    with pytest.raises(ConfigError, match=r"the folder .*elsewhere does not exist"):
        select(LIBRARY, names=[str(tmp_path / "elsewhere")])


@pytest.mark.parametrize(
    "arguments",
    [{"top": 0}, {"top": 2, "all": True}, {"names": ["bert"], "top": 1}, {"names": []}],
)
def test_contradictions_are_rejected(arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        select(LIBRARY, **arguments)  # type: ignore[arg-type]


def test_a_file_needs_no_source_and_a_source_that_cannot_be_read_is_said_for_other_names(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text("class Net(Module): ...\ndef build():\n    return Net()\n")
    own = str(tmp_path / "net.py")
    read: list[str] = []

    def models() -> tuple[ModelSpec, ...]:
        read.append("!")
        raise SourceError("transformers is not installed here")

    assert [spec.name for spec in select(models, names=[own])] == [own]
    assert read == []
    with pytest.raises(SourceError, match="transformers is not installed"):
        select(models, names=[own, "BertModel"])
    with pytest.raises(SourceError, match="transformers is not installed"):
        select(models, top=3)
