from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch import plan as identity
from compilewatch.data import read_overrides
from compilewatch.errors import ConfigError
from compilewatch.plan import overrides_for, request_key
from compilewatch.records import (
    METADATA,
    ClassBuild,
    ConfigBuild,
    Depth,
    Dtype,
    FactoryBuild,
    Mode,
    ModelSpec,
    Request,
    Target,
    Tier,
    canonical_config,
    config_sha256,
)
from tests import factories

BERT = {
    "_name_or_path": "org/base",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 768,
    "id2label": {"0": "bad", "1": "good"},
    "label2id": {"bad": 0, "good": 1},
    "model_type": "bert",
    "torch_dtype": "float32",
    "transformers_version": "4.30.0",
}


def test_two_fine_tunes_of_one_model_have_one_configuration() -> None:
    other = {
        **BERT,
        "_name_or_path": "someone/else",
        "id2label": {"0": "spam", "1": "ham"},
        "label2id": {"spam": 0, "ham": 1},
        "transformers_version": "5.1.0",
        "finetuning_task": "spam",
    }
    assert config_sha256(BERT) == config_sha256(other)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 1024},
        {"id2label": {"0": "a", "1": "b", "2": "c"}},
        {"torch_dtype": "bfloat16"},
        {"architectures": ["BertModel"]},
        {"new_option": True},
    ],
)
def test_what_may_change_a_result_stays(change: dict[str, Any]) -> None:
    assert config_sha256(BERT) != config_sha256({**BERT, **change})


def test_order_and_spelling_do_not_matter() -> None:
    renamed = {("dtype" if k == "torch_dtype" else k): v for k, v in reversed(BERT.items())}
    assert config_sha256(BERT) == config_sha256(renamed)


def test_the_number_of_labels_stays_whichever_way_it_is_said() -> None:
    assert canonical_config({"id2label": {"0": "a", "1": "b"}, "num_labels": 7}) == {
        "num_labels": 2
    }
    assert canonical_config({"num_labels": 7}) == {"num_labels": 7}


def test_sub_configurations_are_cleaned_too() -> None:
    inner = {"text_config": {"_name_or_path": "x", "hidden_size": 8}}
    assert canonical_config(inner) == {"text_config": {"hidden_size": 8}}


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
KEYS = st.sampled_from(sorted(METADATA)) | st.text(min_size=1, max_size=4)


def configurations(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A config.json: known keys of the types that they have, metadata, and any others."""
    labels = st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=3)
    known = st.fixed_dictionaries(
        {},
        optional={
            "id2label": labels | st.none(),
            "num_labels": st.integers(0, 9),
            "torch_dtype": st.sampled_from(["float32", "bfloat16"]),
            "dtype": st.sampled_from(["float32", "bfloat16"]),
        },
    )
    others = st.dictionaries(KEYS, inner, max_size=4)
    return st.tuples(known, others).map(lambda two: {**two[1], **two[0]})


CONFIGURATIONS = configurations(st.recursive(VALUES, configurations, max_leaves=4))


@given(CONFIGURATIONS, st.randoms(use_true_random=False))
def test_no_order_of_any_configuration_matters(config: dict[str, Any], random: Random) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key]) for key in keys}

    assert config_sha256(shuffled(config)) == config_sha256(config)


@given(CONFIGURATIONS)
def test_a_canonical_configuration_stays_as_it_is(config: dict[str, Any]) -> None:
    canonical = canonical_config(config)
    assert canonical_config(canonical) == canonical
    assert not METADATA & canonical.keys()


def _key(spec: ModelSpec | None = None, target: Target | None = None, **changes: Any) -> str:
    environment = changes.pop("environment", factories.environment())
    overrides = changes.pop("overrides", ())
    request = Request(model=spec or factories.spec(), target=target or Target(), key="", **changes)
    return request_key(request, environment, overrides)


def test_what_cannot_change_a_result_is_not_in_the_key() -> None:
    plain = factories.spec("BertModel")
    dressed = factories.spec(
        "BertModel", downloads=7, license="mit", gated=True, revision="abc", task="text"
    )
    assert _key(plain) == _key(dressed)


def test_everything_that_can_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, others = tmp_path / "a.toml", tmp_path / "b.toml"
    inputs.write_text("a")
    others.write_text("b")
    keys = [
        _key(),
        _key(factories.spec("GPT2Model")),
        _key(target=Target(name="export")),
        _key(target=Target(mode=Mode.TRAIN)),
        _key(target=Target(dynamic=True)),
        _key(target=Target(backend="inductor")),
        _key(target=Target(device="cuda")),
        _key(target=Target(device="cuda:A100")),
        _key(target=Target(dtype=Dtype.BFLOAT16)),
        _key(tier=Tier.REAL),
        _key(depth=Depth.REDUCED),
        _key(environment=factories.environment(torch="2.14.0")),
        _key(environment=factories.environment(torch_git="b" * 40)),
        _key(environment=factories.environment(transformers="5.24.0")),
        _key(environment=factories.environment(digest="other packages")),
        # A launcher that forgets the digest must not make two torches one.
        _key(environment=factories.environment(digest="")),
        _key(environment=factories.environment(digest="", torch="2.14.0")),
        _key(environment=factories.environment(digest="", torch="2.15.0")),
        _key(environment=factories.environment(digest="", python="3.12.1")),
        _key(environment=factories.environment(digest="", device="cuda")),
        _key(inputs_file=str(inputs)),
        _key(inputs_file=str(others)),
        _key(target=Target(name="xla")),
        _key(target=Target(name="xla"), neuron_operators=str(inputs)),
        _key(target=Target(name="xla"), inputs_file=str(inputs)),
        _key(overrides=[{"classes": ["BertModel"], "config": {"a": 1}}]),
    ]
    monkeypatch.setattr(identity, "HARNESS_VERSION", 99)
    keys.append(_key())
    monkeypatch.undo()
    monkeypatch.setattr(identity, "worker_sha256", lambda: "edited")
    keys.append(_key())
    assert len(set(keys)) == len(keys)


def test_a_configuration_is_its_content_not_its_place() -> None:
    def build(**fields: Any) -> ModelSpec:
        made = ConfigBuild(config_file=fields.pop("file", "/a"), config_sha256="c", **fields)
        return factories.spec("org/model", build=made, architecture=None, revision="r1")

    assert _key(build(file="/a")) == _key(build(file="/b", repo="org/other"))
    different = [
        build(),
        build(class_name="BertModel"),
        build(repo="org/a", weights=True),
        build(repo="org/b", weights=True),
        build(repo="org/a", trust_remote_code=True),
        build(adapter_file="/a", adapter_sha256="a"),
        build(adapter_file="/a", adapter_sha256="b"),
    ]
    assert len({_key(spec) for spec in different}) == len(different)


@pytest.mark.parametrize("what", ["weights", "trust_remote_code"])
def test_weights_and_remote_code_are_those_of_a_revision(what: str) -> None:
    given: dict[str, Any] = {"config_file": "/a", "config_sha256": "c", "repo": "org/a"}
    build = ConfigBuild(**{**given, what: True})
    one, two = (factories.spec("org/a", build=build, revision=r) for r in ("r1", "r2"))
    assert _key(one) != _key(two)


def test_a_factory_is_its_source_or_its_folder() -> None:
    def build(path: str, source: str) -> ModelSpec:
        made = FactoryBuild(factory="m:f", path=path, source_sha256=source)
        return factories.spec("mine", build=made)

    assert _key(build("/ci/one", "s")) == _key(build("/ci/two", "s"))
    assert _key(build("/ci/one", "s")) != _key(build("/ci/one", "t"))
    assert _key(build("/ci/one", "")) != _key(build("/ci/two", ""))


def test_factories_and_classes_do_not_meet() -> None:
    factory = factories.spec("x", build=FactoryBuild(factory="BertModel"))
    assert _key(factory) != _key(factories.spec("x", build=ClassBuild(class_name="BertModel")))


@pytest.mark.parametrize(
    ("edited", "voids"),
    [
        ("worker/targets/xla/module.py", True),
        ("worker/model/module.py", True),
        ("neuron/module.py", True),
        ("extras/profiles/worker/module.py", False),
        ("report/html.py", False),
        ("worker/model/__pycache__/module.pyc", False),
    ],
)
def test_an_edit_of_what_can_change_a_result_voids_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str, voids: bool
) -> None:
    monkeypatch.setattr(identity, "__file__", str(tmp_path / "plan.py"))
    digest = identity.worker_sha256.__wrapped__
    first = digest()
    file = tmp_path / edited
    file.parent.mkdir(parents=True)
    file.write_text("new")
    second = digest()
    assert (second != first) is voids
    file.write_text("edited")
    third = digest()
    file.rename(file.with_stem("renamed"))
    assert len({first, second, third, digest()}) == (4 if voids else 1)


OVERRIDES = """
[[override]]
reason = "why"
date = 2026-01-01
classes = ["BertModel"]
config = {a = 1}

[[override]]
reason = "why"
date = 2026-01-01
model_types = ["clip_text_model"]
"""


def test_only_overrides_that_may_apply_enter_a_key(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(OVERRIDES)
    overrides = read_overrides(tmp_path)
    assert len(overrides_for(factories.spec("BertModel", family="bert"), overrides)) == 1
    assert len(overrides_for(factories.spec("GPT2Model", family="gpt2"), overrides)) == 0
    assert len(overrides_for(factories.spec("CLIPTextModel", family="clip"), overrides)) == 1


@pytest.mark.parametrize(
    ("model_type", "family", "class_name"),
    [
        ("clip_text_model", "clip", "CLIPTextModel"),
        ("xclip", "x_clip", "XCLIPModel"),
        ("coarse_acoustics", "bark", "BarkCoarseModel"),
        ("florence_vision", "florence2", "Florence2VisionBackbone"),
        ("kosmos-2.5", "kosmos2_5", "Kosmos2_5Model"),
        ("mbart", "our-team", "MBartModel"),
        ("xlm-roberta", "our-team", "XLMRobertaModel"),
        ("anything", "unknown", "SomeModel"),
    ],
)
def test_a_type_that_may_be_a_models_own_counts(
    model_type: str, family: str, class_name: str
) -> None:
    override = {"model_types": [model_type]}
    assert overrides_for(factories.spec(class_name, family=family), [override]) == [override]


def test_prose_does_not_change_the_key(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(OVERRIDES)
    before = read_overrides(tmp_path)
    (tmp_path / "one.toml").write_text(OVERRIDES.replace('"why"', '"better said"'))
    assert read_overrides(tmp_path) == before


@pytest.mark.parametrize("text", ["[[override", "override = 3", "override = [1]"])
def test_malformed_overrides_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"one\.toml") as caught:
        read_overrides(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_inputs_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        _key(inputs_file=str(tmp_path / "none.toml"))
