from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compilewatch.errors import ConfigError, SourceError, UnknownModelError, UsageError
from compilewatch.records import ClassBuild, ModelSpec, Part
from compilewatch.sources.select import Models
from compilewatch.sources.select import select as select_from


def spec(name: str, family: str = "unknown", source: str = "library", **more: Any) -> ModelSpec:
    build = ClassBuild(class_name=name)
    return ModelSpec(source=source, name=name, family=family, build=build, **more)


LIBRARY = (
    spec("BertModel", "bert"),
    spec("BertLMHeadModel", "bert"),
    spec("ViTModel", "vit"),
    spec("LlamaForCausalLM", "llama"),
    spec("LlamaModel", "llama"),
)
HUB = (spec("org/a", "bert", "hub"), spec("org/b", "bert", "hub"))
PIPELINE = tuple(
    spec(f"org/pipe#{c}", source="hub", checkpoint="org/pipe", part=Part.COMPONENT, component=c)
    for c in ("text_encoder", "unet")
)


def select(models: tuple[ModelSpec, ...] | Models, **chosen: Any) -> tuple[ModelSpec, ...]:
    return select_from(models if callable(models) else lambda: models, **chosen)


def names(specs: Iterable[ModelSpec]) -> list[str]:
    return [s.name for s in specs]


def test_top_counts_architectures_in_the_library_and_models_elsewhere() -> None:
    assert names(select(LIBRARY, top=2)) == ["BertModel", "ViTModel"]
    assert names(select(LIBRARY, top=99)) == ["BertModel", "ViTModel", "LlamaForCausalLM"]
    assert names(select(HUB, top=2)) == ["org/a", "org/b"]
    assert select(LIBRARY, all=True) == LIBRARY
    assert names(select(LIBRARY, families=["llama"])) == ["LlamaForCausalLM", "LlamaModel"]
    assert names(select(LIBRARY, families=["llama", "vit"], top=1)) == ["ViTModel"]
    # The components of a repository are selected together.
    pool = (HUB[0], *PIPELINE, HUB[1])
    assert names(select(pool, top=2)) == ["org/a", "org/pipe#text_encoder", "org/pipe#unet"]
    assert select(pool, names=["org/pipe"]) == PIPELINE
    assert select(pool, names=["org/pipe#unet", "org/pipe"]) == PIPELINE[::-1]


def test_names_are_classes_families_and_models_in_the_order_given() -> None:
    chosen = select((*LIBRARY, *HUB), names=["vit", "org/b", "bertmodel", "bert", " LlamaModel "])
    assert names(chosen) == ["ViTModel", "org/b", "BertModel", "LlamaModel"]


def test_other_sources_are_read_only_for_names_that_are_not_known() -> None:
    asked: list[str] = []

    def other(tag: str, *specs: ModelSpec) -> Callable[[], Any]:
        def load() -> Any:
            asked.append(tag)
            if not specs:
                raise SourceError("there is none")
            return SimpleNamespace(models=lambda: specs)

        return load

    others = [other("broken"), other("one", spec("Far")), other("two", spec("Farther"))]
    assert names(select(LIBRARY, names=["bert"], others=others)) == ["BertModel"]
    assert asked == []
    assert names(select(LIBRARY, names=["Far"], others=others)) == ["Far"]
    assert asked == ["broken", "one"]
    with pytest.raises(UnknownModelError, match="similar names: Farther"):
        select(LIBRARY, names=["Farthr"], others=others)
    assert asked == ["broken", "one", "broken", "one", "two"]


def test_a_folder_with_a_configuration(
    tmp_path: Path, miniature: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "config.json").write_text('{"model_type": "acorn"}')
    for name in (str(tmp_path), str(tmp_path / "config.json")):
        (found,) = select(LIBRARY, names=[name], transformers=miniature)
        build: Any = found.build
        assert build.config_file == str(tmp_path / "config.json")
        assert (build.class_name, found.name) == ("AcornForCausalLM", name)
    with pytest.raises(ConfigError, match=r"the folder .*elsewhere does not exist"):
        select(LIBRARY, names=[str(tmp_path / "elsewhere")])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"top": 0}, "must be 1 or more"),
        ({"top": 2, "all": True}, "either the top models or all"),
        ({"names": ["bert"], "top": 1}, "either by name, or by top"),
        ({"names": []}, "no model is named"),
        ({"names": ["BretModel"]}, "similar names: BertModel"),
        ({"names": ["someone/something-else"]}, "`compilewatch pull`"),
        ({"families": ["lama"]}, "no family 'lama'; did you mean 'llama'"),
    ],
)
def test_what_selects_nothing_is_rejected(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        select(LIBRARY, **arguments)
    assert caught.value.exit_status == 2


def test_a_file_needs_no_source_and_a_source_that_cannot_be_read_is_said_for_other_names(
    tmp_path: Path,
) -> None:
    own = tmp_path / "net.py"
    own.write_text("class Net(Module): ...\ndef build():\n    return Net()\n")
    read: list[str] = []

    def models() -> tuple[ModelSpec, ...]:
        read.append("!")
        raise SourceError("transformers is not installed here")

    assert names(select(models, names=[str(own)])) == [str(own)]
    assert read == []
    for arguments in ({"names": [str(own), "BertModel"]}, {"top": 3}):
        with pytest.raises(SourceError, match="transformers is not installed"):
            select(models, **arguments)
