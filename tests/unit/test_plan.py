from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch import plan as identity
from compilewatch.contract.targets import deadlines_of, target_label, target_label_value
from compilewatch.data import read_overrides
from compilewatch.errors import ConfigError, UsageError
from compilewatch.plan import (
    Expectation,
    Expectations,
    environments_of_targets,
    load_expectations,
    missing_package,
    needs,
    overrides_for,
    pairs,
    parse_shard,
    place,
    place_model,
    plan,
    possible_environments,
    request_key,
    stale_note,
    targets_of,
    without_adapter,
)
from compilewatch.records import (
    METADATA,
    ClassBuild,
    ConfigBuild,
    Deadlines,
    Depth,
    Dtype,
    Environment,
    FactoryBuild,
    LibraryBuild,
    Mode,
    ModelSpec,
    Options,
    Part,
    Phase,
    Plan,
    Request,
    Result,
    Shard,
    Status,
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


DEFAULT = factories.environment()
OLDER = factories.environment(name="torch-2.9", torch="2.9.0")
XLA = factories.environment(name="xla", packages={"torch-xla": "2.9.0"})
NEURON = factories.environment(name="neuron", packages={"neuronx-cc": "2", "torch-xla": "2.9.0"})
AGENT = factories.environment(packages={"neuronx-cc": "2"})
ALL = [Target(name=name) for name in ("dynamo", "xla", "neuron")]


def _placed(named: tuple[str, ...], *known: Environment) -> list[str]:
    return [f"{t.name} in {t.environment}" for t in place(ALL, named, known)]


@pytest.mark.parametrize(
    ("named", "known", "expected"),
    [
        ((), (DEFAULT, XLA, NEURON), ["dynamo in default", "xla in xla", "neuron in neuron"]),
        # Neither can run anywhere: at home, where what is missing is said.
        ((), (DEFAULT,), ["dynamo in default", "xla in xla", "neuron in neuron"]),
        # The capture that Neuron needs can be made in xla.
        ((), (DEFAULT, XLA), ["dynamo in default", "xla in xla", "neuron in xla"]),
        ((), (AGENT,), ["dynamo in default", "xla in xla", "neuron in default"]),
        (
            ("default", "xla"),
            (DEFAULT, XLA),
            ["dynamo in default", "dynamo in xla", "xla in xla", "neuron in xla"],
        ),
        (
            ("default", "torch-2.9"),
            (DEFAULT, OLDER),
            ["dynamo in default", "dynamo in torch-2.9", "xla in xla", "neuron in neuron"],
        ),
    ],
)
def test_where_each_target_is_evaluated(
    named: tuple[str, ...], known: tuple[Environment, ...], expected: list[str]
) -> None:
    assert _placed(named, *known) == expected


CPU_BUILD = factories.environment(torch="2.15.0+cpu", cuda=None)
CUDA_BUILD = factories.environment(name="cuda", torch="2.15.0+cu132", cuda="13.2")


@pytest.mark.parametrize("known", [(CPU_BUILD,), (CPU_BUILD, CUDA_BUILD)])
@pytest.mark.parametrize("name", ["dynamo", "export"])
def test_training_on_a_declared_device_needs_a_cuda_build(
    name: str, known: tuple[Environment, ...]
) -> None:
    cases = [
        Target(name=name, mode=mode, device=device)
        for device in ("cpu", "cuda:A100")
        for mode in (Mode.EVAL, Mode.TRAIN)
    ]
    placed = [target.environment for target in place(cases, (), known)]
    assert placed == ["default", "default", "default", "cuda"]
    own = factories.environment(cuda="13.2")
    assert {t.environment for t in place(cases, (), (own, CUDA_BUILD))} == {"default"}
    assert [t.environment for t in place(cases, ("default",), known)] == ["default"] * 4
    assert "compilewatch env create cuda" in needs(place(cases, (), known)[-1])


def test_an_environment_that_is_named_must_exist() -> None:
    with pytest.raises(UsageError, match=r"no environment 'tpu'; known: default; .*create tpu"):
        _placed(("tpu",), DEFAULT)


def test_one_label_never_stands_for_two_environments() -> None:
    known = (factories.environment(), factories.environment(name="vision"))
    with pytest.raises(UsageError, match="default and vision cannot be named together"):
        place([Target()], ("default", "vision"), known)
    assert [target.environment for target in place([Target()], ("vision",), known)] == ["vision"]


def test_only_what_is_needed_is_looked_at() -> None:
    assert environments_of_targets(["dynamo"], ()) == ("default",)
    assert environments_of_targets(["dynamo", "neuron"], ()) == ("default", "neuron", "xla")
    assert environments_of_targets(["neuron"], ("a", "a")) == ("a",)
    assert environments_of_targets(["dynamo"], (), ["cpu", "cuda"]) == ("default", "cuda")
    assert environments_of_targets(["dynamo"], ("a",), ["cuda"]) == ("a",)


def test_a_label_names_an_environment_that_is_not_the_default_one() -> None:
    labels = [target_label(t) for t in place(ALL, (), (DEFAULT, XLA))]
    assert labels == ["dynamo", "xla", "neuron@xla"]
    older = Target(mode=Mode.TRAIN, environment="torch-2.9")
    assert target_label(older) == "dynamo/train@torch-2.9"


TIMM = {"classes": ["XModel"], "packages": ["timm"]}


@pytest.mark.parametrize(
    ("line", "target", "environment", "expected"),
    [
        (TIMM, Target(), DEFAULT, "vision"),
        (TIMM, Target(device="cuda"), DEFAULT, "vision"),
        # The default environment has the package, or the release is another one.
        (TIMM, Target(), factories.environment(packages={"timm": "1"}), "default"),
        ({**TIMM, "transformers": ">=99"}, Target(), DEFAULT, "default"),
        ({**TIMM, "classes": ["OtherModel"]}, Target(), DEFAULT, "default"),
        # Nothing has it: the model runs where it would, and says what is missing.
        ({**TIMM, "packages": ["natten"]}, Target(), DEFAULT, "default"),
        # A person or a target chose the environment.
        (TIMM, Target(environment="torch-2.9"), DEFAULT, "torch-2.9"),
    ],
)
def test_a_model_is_placed_where_its_packages_are(
    line: dict[str, Any], target: Target, environment: Environment, expected: str
) -> None:
    spec = factories.spec("XModel", skip_reason="needs timm")

    found, placed = place_model(spec, target, [line], {"default": environment})

    assert placed.environment == expected
    assert found.skip_reason == (None if expected == "vision" else "needs timm")


@pytest.mark.parametrize("class_name", [None, "XModel"])
def test_a_reason_that_is_not_about_packages_is_kept(class_name: str | None) -> None:
    build = ConfigBuild(config_file="", config_sha256="", class_name=class_name)
    spec = factories.spec("org/x", build=build, architecture=None, skip_reason="gated: no token")

    placed = place_model(spec, Target(), [TIMM], {"default": DEFAULT})

    assert placed == (spec, Target())


def test_a_model_of_an_unknown_class_needs_no_packages() -> None:
    """Every override may be one of its class, so that none says which packages it needs."""
    build = ConfigBuild(config_file="/c", config_sha256="")
    spec = factories.spec("org/x", build=build, architecture=None)

    assert place_model(spec, Target(), [TIMM], {"default": DEFAULT}) == (spec, Target())


def test_an_environment_with_more_packages_is_not_named_by_the_label() -> None:
    assert target_label(Target(environment="vision")) == "dynamo"
    assert target_label(Target(name="xla", environment="vision")) == "xla@vision"


def test_environments_of_packages_are_looked_at_unless_others_are_named() -> None:
    assert possible_environments(["dynamo"], ()) == ("default", "vision", "libraries")
    assert possible_environments(["dynamo"], ("torch-2.9",)) == ("torch-2.9",)


VISION = factories.environment(name="vision", packages={"timm": "1"})
LIBRARIES = factories.environment(name="libraries", packages={"timm": "1", "diffusers": "1"})


@pytest.mark.parametrize(
    ("library", "known", "expected"),
    [
        ("timm", (VISION, LIBRARIES), "vision"),
        # An environment that exists comes before one that would have to be created.
        ("timm", (LIBRARIES,), "libraries"),
        ("timm", (), "vision"),
        ("diffusers", (VISION,), "libraries"),
    ],
)
def test_a_model_of_a_library_is_placed_where_the_library_is(
    library: str, known: tuple[Environment, ...], expected: str
) -> None:
    spec = factories.spec("m", build=LibraryBuild(library=library, name="m"))
    there = {environment.name: environment for environment in (DEFAULT, *known)}
    assert place_model(spec, Target(), [], there)[1].environment == expected


def test_an_environment_without_the_library_says_how_one_with_it_is_made() -> None:
    spec = factories.spec("m", build=LibraryBuild(library="open_clip", name="ViT-B-32"))
    why = missing_package(spec, OLDER)
    assert why is not None
    assert "'torch-2.9' lacks: compilewatch env create NAME --torch 2.9.0" in why
    assert why.endswith("--with open-clip-torch")
    there = factories.environment(packages={"open-clip-torch": "3"})
    assert missing_package(spec, there) is None
    assert missing_package(factories.spec("BertModel"), OLDER) is None


ADAPTED = factories.spec(
    "org/lora",
    build=ConfigBuild(
        config_file="/c",
        config_sha256="c",
        class_name="BertModel",
        adapter_file="/a",
        packages=("peft",),
    ),
    part=Part.WHOLE,
)
PEFT = factories.environment(name="libraries", packages={"peft": "0.21"})


def test_an_adapter_moves_its_model_to_the_environment_that_has_peft() -> None:
    there = {"default": DEFAULT, "libraries": PEFT}
    assert without_adapter(ADAPTED, Target(), there, named=False) == ADAPTED
    spec, target = place_model(ADAPTED, Target(), [], there)
    assert (spec, target.environment) == (ADAPTED, "libraries")


@pytest.mark.parametrize(
    ("target", "known", "named"),
    [
        (Target(), {"default": DEFAULT}, False),
        # It was created before PEFT was one of its packages.
        (Target(), {"default": DEFAULT, "libraries": LIBRARIES}, False),
        # A person named another one.
        (Target(), {"default": DEFAULT, "libraries": PEFT}, True),
        (Target(environment="torch-2.9"), {"torch-2.9": OLDER, "libraries": PEFT}, True),
    ],
)
def test_where_peft_is_not_only_the_base_is_evaluated(
    target: Target, known: dict[str, Environment], named: bool
) -> None:
    spec = without_adapter(ADAPTED, target, known, named=named)
    assert isinstance(spec.build, ConfigBuild)
    assert (spec.build.adapter_file, spec.part) == (None, Part.BASE)
    assert place_model(spec, target, [], known) == (spec, target)
    assert missing_package(spec, known[target.environment]) is None


def test_every_package_that_a_model_lacks_is_named() -> None:
    build = ConfigBuild(config_file="/c", config_sha256="c", packages=("timm", "peft"))
    spec = factories.spec("org/x", build=build)
    why = missing_package(spec, OLDER)
    assert why is not None
    assert "needs the packages peft and timm" in why
    assert why.endswith("--with peft,timm")


def test_a_named_environment_with_peft_gets_the_adapter() -> None:
    own = factories.environment(name="own", packages={"peft": "0.21"})
    target = Target(environment="own")
    assert without_adapter(ADAPTED, target, {"own": own}, named=True) == ADAPTED
    assert missing_package(ADAPTED, own) is None


FILE = """
schema_version = 1

[[expectation]]
model = "BertModel"
target = "dynamo"
status = "error"
phase = "create"
reason = "needs a package"
date = 2026-01-02
transformers = ">=5.20,<6"
"""

ENVIRONMENT = factories.environment()
FAILING = factories.result(status=Status.ERROR, phase=Phase.CREATE)


@pytest.fixture
def expectations(tmp_path: Path) -> Expectations:
    path = tmp_path / "expectations.toml"
    path.write_text(FILE)
    return load_expectations(path)


def test_a_result_that_meets_an_expectation_says_why(expectations: Expectations) -> None:
    judged = expectations.judge(FAILING, ENVIRONMENT)
    assert judged.expectation == "needs a package"
    assert expectations.stale([judged], [ENVIRONMENT]) == []


def test_the_class_counts_as_well_as_the_name(expectations: Expectations) -> None:
    build = ConfigBuild(config_file="/c", config_sha256="c", class_name="BertModel")
    named = factories.result("org/x", status=Status.ERROR, phase=Phase.CREATE, build=build)
    other = factories.result("org/x", status=Status.ERROR, phase=Phase.CREATE)
    assert expectations.judge(named, ENVIRONMENT).expectation == "needs a package"
    assert expectations.judge(other, ENVIRONMENT).expectation is None


@pytest.mark.parametrize(
    "result",
    [
        factories.result(),
        factories.result(breaks=(factories.graph_break(),)),
        factories.result(status=Status.ERROR, phase=Phase.COMPILE),
        factories.result(status=Status.TIMEOUT, phase=Phase.CREATE),
    ],
)
def test_an_expectation_that_no_longer_holds_is_reported(
    expectations: Expectations, result: Result
) -> None:
    assert expectations.judge(result, ENVIRONMENT).expectation is None
    ((expected, what),) = expectations.stale([result], [ENVIRONMENT])
    note = stale_note(expected, what)
    assert "expected error in create (needs a package, 2026-01-02)" in note
    assert f"but the result is {result.status.value} in {result.phase.value}" in note
    assert "\n" not in note


def test_what_was_not_run_says_nothing(expectations: Expectations) -> None:
    skipped = factories.result(status=Status.SKIPPED)
    assert expectations.stale([skipped], [ENVIRONMENT]) == []
    assert expectations.stale([factories.result("GPT2Model")], [ENVIRONMENT]) == []


def test_a_line_says_nothing_outside_of_its_versions(expectations: Expectations) -> None:
    newer = factories.environment(transformers="6.0.0")
    assert expectations.judge(FAILING, newer).expectation is None
    assert expectations.stale([factories.result()], [newer]) == []
    nightly = factories.environment(transformers="5.24.0.dev0")
    assert expectations.judge(FAILING, nightly).expectation == "needs a package"


def test_a_reused_result_loses_an_expectation_that_was_removed() -> None:
    remembered = factories.result(
        status=Status.ERROR, phase=Phase.CREATE, expectation="of an old file"
    )
    assert Expectations().judge(remembered, ENVIRONMENT).expectation is None


def test_a_target_may_be_named_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "expectations.toml"
    path.write_text(FILE.replace('"dynamo"', '"dynamo/train"'))
    expectations = load_expectations(path)
    train = factories.request(target=Target(mode=Mode.TRAIN))
    assert expectations.of(train, ENVIRONMENT) is not None
    assert expectations.of(factories.request(), ENVIRONMENT) is None


def test_without_an_own_file_the_shipped_one_remains_and_own_lines_come_first(
    tmp_path: Path,
) -> None:
    shipped = load_expectations(None).expectation
    assert load_expectations(tmp_path / "none.toml").expectation == shipped != ()
    path = tmp_path / "expectations.toml"
    path.write_text(FILE)
    own, *others = load_expectations(path).expectation
    assert tuple(others) == shipped
    assert own not in shipped


def test_the_shipped_file_is_valid() -> None:
    shipped = load_expectations(None)
    named = [(e.model, e.target, e.transformers, e.torch) for e in shipped.expectation]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("model =", "modle ="), "modle"),
        (('"error"', '"eror"'), "eror"),
        (('reason = "needs a package"', 'reason = " "'), "needs a `reason`"),
        (('reason = "needs a package"', ""), "reason"),
        (("date = 2026-01-02", ""), "date"),
        ((">=5.20", "=>5.20"), "not a version specifier"),
        (("schema_version = 1", "schema_version = 2"), "schema_version 2"),
        (("[[expectation]]", "[[expectation"), "expectations.toml"),
    ],
)
def test_a_malformed_file_is_one_line_that_names_it(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    path = tmp_path / "expectations.toml"
    path.write_text(FILE.replace(*change))
    with pytest.raises(ConfigError, match=message) as caught:
        load_expectations(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


OPTIONS = Options()
HERE = (factories.environment(),)
SPECS = [factories.spec(f"M{number}") for number in range(200)]
BOTH = targets_of(["dynamo"], [Mode.EVAL, Mode.TRAIN], dynamic=None)


def _plan(specs: list[ModelSpec] = SPECS, **given: Any) -> Plan:
    targets, options = given.pop("targets", BOTH), given.pop("options", OPTIONS)
    return plan(specs, targets, options, given.pop("environments", HERE), **given)


def _names(made: Plan) -> set[str]:
    return {request.model.name for request in made.requests}


def test_every_model_and_target_is_requested_once_in_order() -> None:
    made = _plan()
    asked = [(r.model.name, r.target) for r in made.requests]
    assert asked == [(s.name, t) for s in SPECS for t in BOTH]
    assert made.total == 400
    assert made.duplicates == 0


def test_requests_carry_how_they_are_evaluated() -> None:
    nightly = factories.environment(name="nightly")
    (request,) = _plan(
        SPECS[:1],
        targets=[Target(environment="nightly")],
        options=Options(memory_limit_bytes=5, depth=Depth.REDUCED),
        environments=[nightly],
    ).requests
    assert (request.target.environment, request.memory_limit_bytes, request.depth) == (
        "nightly",
        5,
        "reduced",
    )


def test_a_models_own_inputs_are_part_of_the_request(tmp_path: Path) -> None:
    own, given = tmp_path / "own.toml", tmp_path / "given.toml"
    own.write_text("own")
    given.write_text("given")
    plain = factories.spec("M")
    dressed = factories.spec("M", inputs_file=str(own))
    over = Options(inputs_file=str(given))
    asked = [
        _plan([spec], targets=[Target()], options=options).requests[0]
        for spec, options in ((plain, OPTIONS), (dressed, OPTIONS), (dressed, over))
    ]
    assert [r.inputs_file for r in asked] == [None, str(own), str(given)]
    assert len({r.key for r in asked}) == 3


def test_equal_requests_of_several_models_are_evaluated_once() -> None:
    build = ConfigBuild(config_file="/a", config_sha256="same")
    twins = [factories.spec(f"org/{n}", build=build, architecture="A") for n in "ab"]
    made = _plan([*twins, factories.spec("other")], targets=[Target()])
    questions = list(made.requests_by_key().values())
    assert [[r.model.name for r in group] for group in questions] == [["org/a", "org/b"], ["other"]]
    assert made.duplicates == 1
    assert made.total == 3


def test_a_model_whose_library_is_missing_is_skipped_and_never_an_error() -> None:
    older = factories.environment(name="torch-2.9")
    spec = factories.spec("timm/m", build=LibraryBuild(library="timm", name="m"))
    made = _plan(
        [spec],
        targets=[Target(environment="torch-2.9")],
        environments=[older],
        named=True,
    )
    (result,) = made.skipped
    assert (result.status, result.phase) == (Status.SKIPPED, Phase.SETUP)
    assert "--with timm" in (result.detail or "")


def test_a_model_with_a_skip_reason_has_a_result_without_a_request() -> None:
    made = _plan([factories.spec("org/gated", skip_reason="gated: ask for access")], targets=BOTH)
    assert made.requests == ()
    assert [r.status for r in made.skipped] == [Status.SKIPPED] * 2
    assert made.skipped[0].detail == "gated: ask for access"
    assert made.skipped[0].phase is Phase.SETUP
    assert made.total == 2


def test_a_target_whose_environment_is_not_there_is_unsupported_with_what_to_type() -> None:
    made = _plan(SPECS[:2], targets=[Target(), Target(name="export", environment="xla")])
    assert [r.target.environment for r in made.requests] == ["default", "default"]
    assert [r.status for r in made.skipped] == [Status.UNSUPPORTED] * 2
    assert made.skipped[0].detail == "needs the environment 'xla': compilewatch env create xla"
    assert not any(r.is_verdict for r in made.skipped)
    assert made.total == 4


def test_a_model_whose_packages_are_elsewhere_runs_there_or_says_what_to_type(
    tmp_path: Path,
) -> None:
    (tmp_path / "packages.toml").write_text(
        '[[override]]\nreason = "why"\ndate = 2026-11-23\nclasses = ["M1"]\npackages = ["timm"]\n'
    )
    vision = factories.environment(name="vision", packages={"timm": "1"})
    default = factories.environment()
    options = Options(overrides_dir=str(tmp_path))

    made = _plan(SPECS[:2], targets=[Target()], options=options, environments=[default, vision])
    assert [r.target.environment for r in made.requests] == ["default", "vision"]

    made = _plan(SPECS[:2], targets=[Target()], options=options, environments=[default])
    assert [r.model.name for r in made.requests] == ["M0"]
    (skipped,) = made.skipped
    assert skipped.status is Status.UNSUPPORTED
    assert skipped.detail == (
        "needs the environment 'vision', which has timm, torchvision: "
        "compilewatch env create vision"
    )

    made = _plan(
        SPECS[:2], targets=[Target()], options=options, environments=[default, vision], named=True
    )
    assert [r.target.environment for r in made.requests] == ["default", "default"]


def test_two_environments_are_two_requests_and_two_names_of_one_are_one() -> None:
    older = factories.environment(name="older", torch="2.9.0")
    alias = factories.environment(name="alias")
    environments = [factories.environment(), older, alias]
    targets = [Target(environment=name) for name in ("default", "older", "alias")]
    made = _plan(SPECS[:1], targets=targets, environments=environments)
    assert made.duplicates == 1
    assert len({r.key for r in made.requests}) == 2


def test_an_expectation_skips_only_where_it_says_so() -> None:
    def expecting(skip: bool) -> Plan:
        line = Expectation(
            model="M0", status=Status.OOM, reason="takes the machine down", date=date(2026, 1, 1),
            target="dynamo/train", skip=skip,
        )  # fmt: skip
        return _plan(SPECS[:2], expectations=Expectations(expectation=(line,)))

    assert expecting(skip=False).skipped == ()
    (skipped,) = expecting(skip=True).skipped
    assert skipped.request.target.mode is Mode.TRAIN
    assert skipped.detail == skipped.expectation == "takes the machine down"


def test_shards_are_a_partition_that_does_not_depend_on_order() -> None:
    shards = [_plan(shard=Shard(index=i, count=3)) for i in (1, 2, 3)]
    names = [_names(shard) for shard in shards]
    assert set.union(*names) == {s.name for s in SPECS}
    assert sum(map(len, names)) == len(SPECS)
    assert all(names)
    backwards = _plan(SPECS[::-1], shard=Shard(index=2, count=3))
    assert _names(backwards) == names[1]


@pytest.mark.parametrize("seed", range(20))
def test_shards_are_disjoint_complete_and_even(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"org{chance.random()}/m{n}" for n in range(chance.randrange(60))]
    count = chance.randrange(1, 12)
    parts = [Shard(index=i, count=count).holds(names) for i in range(1, count + 1)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_a_plan_that_changes_a_little_moves_few_models() -> None:
    names = [spec.name for spec in SPECS]
    for count in (2, 5):
        shards = [Shard(index=i, count=count) for i in range(1, count + 1)]
        before = {name: shard for shard in shards for name in shard.holds(names)}
        after = {name: shard for shard in shards for name in shard.holds([*names, "New"])}
        assert sum(after[name] != before[name] for name in names) <= 10


def test_a_shard_is_the_same_everywhere_and_forever() -> None:
    """Another hash would move models between the shards of machines that are half upgraded."""
    first = Shard(index=1, count=4).holds(spec.name for spec in SPECS)
    assert sorted(first)[:4] == ["M0", "M100", "M110", "M111"]


def test_all_shards_know_the_complete_plan() -> None:
    digests = {_plan(shard=Shard(index=i, count=3)).digest for i in (1, 2, 3)} | {_plan().digest}
    assert len(digests) == 1


def test_the_digest_follows_every_request() -> None:
    gated = msgspec.structs.replace(SPECS[0], skip_reason="gated")
    plans = [
        _plan(),
        _plan(SPECS[1:]),
        _plan(targets=[Target()]),
        _plan(environments=[factories.environment(torch="2.14.0")]),
        _plan([gated, *SPECS[1:]]),
    ]
    assert len({made.digest for made in plans}) == len(plans)
    assert _plan(SPECS[::-1]).digest == plans[0].digest


def test_a_small_plan_may_leave_a_shard_empty() -> None:
    made = [_plan(SPECS[:1], shard=Shard(index=i, count=2)) for i in (1, 2)]
    assert sorted(len(m.requests) for m in made) == [0, 2]


@pytest.mark.parametrize("text", ["0/3", "4/3", "1/0", "0/0"])
def test_an_impossible_shard_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match=f"no shard {text}: shards are numbered"):
        parse_shard(text)


@pytest.mark.parametrize("text", ["", "1", "1/", "a/b", "-1/3", "1/3/5", "1.5/3"])
def test_what_is_no_shard_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="not of the form I/N"):
        parse_shard(text)


def test_a_shard_reads_back_as_it_prints() -> None:
    assert str(parse_shard(" 2/5 ")) == "2/5"


def test_an_empty_plan_is_an_error() -> None:
    with pytest.raises(UsageError, match="no models"):
        _plan([])
    with pytest.raises(UsageError, match="no targets"):
        _plan(targets=[])


def test_an_unknown_target_is_rejected() -> None:
    with pytest.raises(UsageError, match="no target 'dynamite'; known: "):
        _plan(targets=[Target(name="dynamite")])


def test_a_name_that_stands_for_two_models_is_rejected() -> None:
    with pytest.raises(UsageError, match="two models are called 'M0'"):
        _plan([SPECS[0], SPECS[0]])


def test_targets_are_named_once() -> None:
    assert len(targets_of(["dynamo", "dynamo"], [Mode.EVAL, Mode.EVAL], dynamic=True)) == 1


def test_a_target_may_name_its_backend() -> None:
    plain, other = targets_of(["export", "export:non_strict"], [Mode.EVAL], dynamic=None)
    assert (plain.backend, other.name, other.backend) == (None, "export", "non_strict")
    assert target_label(other) == "export:non_strict"


@pytest.mark.parametrize(
    ("said", "field", "label"),
    [
        ("on", True, "dynamo+nested"),
        ("off", False, "dynamo+not-nested"),
        ("default", None, "dynamo"),
    ],
)
def test_nested_graph_breaks_are_of_dynamo_only_and_in_its_label(
    said: str, field: bool | None, label: str
) -> None:
    dynamo, export = targets_of(["dynamo", "export"], [Mode.EVAL], None, said)
    assert (dynamo.nested_graph_breaks, export.nested_graph_breaks) == (field, None)
    assert (target_label(dynamo), target_label_value(dynamo)) == (label, label)


def test_results_with_and_without_nested_graph_breaks_do_not_stand_for_each_other() -> None:
    keys = {
        _plan(targets=targets_of(["dynamo"], [Mode.EVAL], None, said)).requests[0].key
        for said in ("on", "off", "default")
    }
    assert len(keys) == 3


def test_a_plan_comes_back_from_json() -> None:
    made = _plan(SPECS[:3], shard=Shard(index=1, count=2))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Plan) == made


def test_neuron_has_a_longer_deadline_for_compiling() -> None:
    targets = targets_of(("dynamo", "neuron"), (Mode.EVAL,), None)
    made = _plan(
        SPECS[:1], targets=targets, options=Options(deadlines=Deadlines(compile_seconds=60))
    )
    usual, neuron = (request.deadlines for request in made.requests)
    assert (usual.compile_seconds, usual.total_seconds) == (60, 1200)
    assert (neuron.compile_seconds, neuron.total_seconds) == (7200, 1200 + 7140)
    assert deadlines_of("neuron", neuron) == neuron


@pytest.mark.parametrize("name", ["export:foo", "neuron:trn9", "xla:cpu"])
def test_a_backend_that_a_target_has_not_is_rejected(name: str) -> None:
    with pytest.raises(UsageError, match="has no backend"):
        _plan(targets=targets_of([name], [Mode.EVAL], dynamic=None))


def test_a_model_whose_entry_is_wrong_is_an_error_and_the_others_are_evaluated() -> None:
    wrong = factories.spec("Wrong", error="models.toml: model 'Wrong': there is no folder /x")
    made = plan([wrong, factories.spec("Good")], [Target()], OPTIONS, HERE)
    assert [request.model.name for request in made.requests] == ["Good"]
    (refused,) = made.skipped
    assert (refused.status, refused.phase) == (Status.ERROR, Phase.SETUP)
    assert refused.detail == wrong.error
    assert refused.error is not None
    assert refused.error.code == "configuration_error"


def test_an_environment_with_models_of_its_own_is_planned_for_those_it_has() -> None:
    old, new = (Target(environment=name) for name in ("old", "new"))
    both, added = factories.spec("Both"), factories.spec("Added")
    other = factories.spec("Both", checkpoint="of the old one")
    environments = tuple(factories.environment(name=name) for name in ("old", "new"))
    own = {"old": [other], "new": [both, added]}
    made = plan([both, added], [old, new], OPTIONS, environments, own=own)
    assert [(r.model, r.target) for r in made.requests] == [(other, old), (both, new), (added, new)]
    assert len(list(pairs([both, added], [old, new], own))) == made.total
    assert len(list(pairs([both, added], [old, new], {"new": [both]}))) == 3
