from __future__ import annotations

import random
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compilewatch import plan as identity
from compilewatch import records
from compilewatch.contract.targets import deadlines_of
from compilewatch.data import read_overrides
from compilewatch.errors import ConfigError, UsageError
from compilewatch.plan import (
    Expectations,
    load_expectations,
    missing_package,
    overrides_for,
    parse_shard,
    place,
    place_model,
    plan,
    request_key,
    targets_of,
)
from compilewatch.records import (
    ConfigBuild,
    Environment,
    Mode,
    ModelSpec,
    Options,
    Shard,
    Status,
    Target,
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
    renamed = {("dtype" if k == "torch_dtype" else k): v for k, v in reversed(BERT.items())}
    other = {
        **renamed,
        "_name_or_path": "someone/else",
        "id2label": {"0": "spam", "1": "ham"},
        "label2id": {"spam": 0, "ham": 1},
        "transformers_version": "5.1.0",
        "finetuning_task": "spam",
    }
    assert config_sha256(BERT) == config_sha256(renamed) == config_sha256(other)
    for change in (
        {"hidden_size": 1024},
        {"id2label": {"0": "a", "1": "b", "2": "c"}},
        {"torch_dtype": "bfloat16"},
        {"architectures": ["BertModel"]},
        {"new_option": True},
    ):
        assert config_sha256(BERT) != config_sha256({**BERT, **change})


@pytest.mark.parametrize(
    ("config", "canonical"),
    [
        ({"id2label": {"0": "a", "1": "b"}, "num_labels": 7}, {"num_labels": 2}),
        ({"num_labels": 7}, {"num_labels": 7}),
        ({"text": {"_name_or_path": "x", "hidden_size": 8}}, {"text": {"hidden_size": 8}}),
    ],
)
def test_labels_are_counted_and_sub_configurations_cleaned(
    config: dict[str, Any], canonical: dict[str, Any]
) -> None:
    assert records.canonical_config(config) == canonical


VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=4)
KEYS = st.sampled_from(sorted(records.METADATA)) | st.text(min_size=1, max_size=4)


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
    canonical = records.canonical_config(config)
    assert records.canonical_config(canonical) == canonical
    assert not records.METADATA & canonical.keys()


def _key(spec: ModelSpec | None = None, target: Target | None = None, **changes: Any) -> str:
    environment = changes.pop("environment", factories.environment())
    overrides = changes.pop("overrides", ())
    request = records.Request(
        model=spec or factories.spec(), target=target or Target(), key="", **changes
    )
    return request_key(request, environment, overrides)


def _configured(**fields: Any) -> ModelSpec:
    revision = fields.pop("revision", "r1")
    build = ConfigBuild(config_file=fields.pop("file", "/a"), config_sha256="c", **fields)
    return factories.spec("org/model", build=build, architecture=None, revision=revision)


def _made_by(path: str, source: str) -> ModelSpec:
    build = records.FactoryBuild(factory="m:f", path=path, source_sha256=source)
    return factories.spec("mine", build=build)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            factories.spec(),
            factories.spec(downloads=7, license="mit", gated=True, revision="abc", task="text"),
        ),
        # A configuration is its content, a factory its source.
        (_configured(file="/a"), _configured(file="/b", repo="org/other")),
        (_made_by("/ci/one", "s"), _made_by("/ci/two", "s")),
    ],
)
def test_what_cannot_change_a_result_is_not_in_the_key(one: ModelSpec, other: ModelSpec) -> None:
    assert _key(one) == _key(other)


def test_everything_that_can_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, others = tmp_path / "a.toml", tmp_path / "b.toml"
    inputs.write_text("a")
    others.write_text("b")
    environment = factories.environment
    specs = [
        factories.spec("GPT2Model"),
        factories.spec("x", build=records.FactoryBuild(factory="BertModel")),
        _made_by("/ci", "s"),
        _made_by("/ci", "t"),
        # Without a source, only the folder distinguishes them.
        _made_by("/ci/one", ""),
        _made_by("/ci/two", ""),
        _configured(),
        _configured(class_name="BertModel"),
        _configured(repo="org/a", weights=True),
        _configured(repo="org/b", weights=True),
        _configured(repo="org/a", weights=True, revision="r2"),
        _configured(repo="org/a", trust_remote_code=True),
        _configured(repo="org/a", trust_remote_code=True, revision="r2"),
        _configured(adapter_file="/a", adapter_sha256="a"),
        _configured(adapter_file="/a", adapter_sha256="b"),
    ]
    targets = [
        Target(name="export"),
        Target(name="xla"),
        Target(mode=Mode.TRAIN),
        Target(dynamic=True),
        Target(backend="inductor"),
        Target(device="cuda"),
        Target(device="cuda:A100"),
        Target(dtype=records.Dtype.BFLOAT16),
        Target(nested_graph_breaks=True),
        Target(nested_graph_breaks=False),
    ]
    environments = [
        environment(torch="2.14.0"),
        environment(torch_git="b" * 40),
        environment(transformers="5.24.0"),
        environment(digest="other packages"),
        # A launcher that forgets the digest must not make two torches one.
        environment(digest=""),
        environment(digest="", torch="2.14.0"),
        environment(digest="", torch="2.15.0"),
        environment(digest="", python="3.12.1"),
        environment(digest="", device="cuda"),
    ]
    keys = [
        _key(),
        *map(_key, specs),
        *(_key(target=target) for target in targets),
        *(_key(environment=environment) for environment in environments),
        _key(tier=records.Tier.REAL),
        _key(depth=records.Depth.REDUCED),
        _key(inputs_file=str(inputs)),
        _key(inputs_file=str(others)),
        _key(target=Target(name="xla"), neuron_operators=str(inputs)),
        _key(target=Target(name="xla"), inputs_file=str(inputs)),
        _key(overrides=[{"classes": ["BertModel"], "config": {"a": 1}}]),
    ]
    monkeypatch.setattr(records, "HARNESS_VERSION", 99)
    keys.append(_key())
    monkeypatch.undo()
    monkeypatch.setattr(identity, "worker_sha256", lambda: "edited")
    keys.append(_key())
    assert len(set(keys)) == len(keys)
    with pytest.raises(ConfigError, match="cannot be read"):
        _key(inputs_file=str(tmp_path / "none.toml"))


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


def test_only_overrides_that_may_apply_enter_a_key_and_no_prose(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(OVERRIDES)
    overrides = read_overrides(tmp_path)
    for class_name, family, count in (
        ("BertModel", "bert", 1),
        ("GPT2Model", "gpt2", 0),
        ("CLIPTextModel", "clip", 1),
    ):
        assert len(overrides_for(factories.spec(class_name, family=family), overrides)) == count
    (tmp_path / "one.toml").write_text(OVERRIDES.replace('"why"', '"better said"'))
    assert read_overrides(tmp_path) == overrides


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


@pytest.mark.parametrize("text", ["[[override", "override = 3", "override = [1]"])
def test_malformed_overrides_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "one.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"one\.toml") as caught:
        read_overrides(tmp_path)
    assert "\n" not in str(caught.value)


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
def test_training_on_a_declared_device_needs_a_cuda_build(known: tuple[Environment, ...]) -> None:
    cases = [
        Target(mode=mode, device=device)
        for device in ("cpu", "cuda:A100")
        for mode in (Mode.EVAL, Mode.TRAIN)
    ]
    placed = place(cases, (), known)
    assert [target.environment for target in placed] == ["default", "default", "default", "cuda"]
    own = factories.environment(cuda="13.2")
    assert {t.environment for t in place(cases, (), (own, CUDA_BUILD))} == {"default"}
    assert [t.environment for t in place(cases, ("default",), known)] == ["default"] * 4
    assert "compilewatch env create cuda" in identity.needs(placed[-1])


def test_an_environment_that_is_named_exists_and_shares_no_label() -> None:
    with pytest.raises(UsageError, match=r"no environment 'tpu'; known: default; .*create tpu"):
        _placed(("tpu",), DEFAULT)
    known = (DEFAULT, factories.environment(name="vision"))
    with pytest.raises(UsageError, match="default and vision cannot be named together"):
        place([Target()], ("default", "vision"), known)
    assert [target.environment for target in place([Target()], ("vision",), known)] == ["vision"]


@pytest.mark.parametrize(
    ("targets", "named", "devices", "expected"),
    [
        (["dynamo"], (), (), ("default",)),
        (["dynamo", "neuron"], (), (), ("default", "neuron", "xla")),
        (["neuron"], ("a", "a"), (), ("a",)),
        (["dynamo"], (), ["cpu", "cuda"], ("default", "cuda")),
        (["dynamo"], ("a",), ["cuda"], ("a",)),
    ],
)
def test_only_the_environments_that_targets_need_are_looked_at(
    targets: list[str], named: tuple[str, ...], devices: list[str], expected: tuple[str, ...]
) -> None:
    assert identity.environments_of_targets(targets, named, devices) == expected
    packages = () if named else ("vision", "libraries")
    assert identity.possible_environments(targets, named, devices) == (*expected, *packages)


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


@pytest.mark.parametrize(
    ("class_name", "reason"),
    # Every override may be one of an unknown class, so that none says which packages it needs.
    [(None, "gated: no token"), ("XModel", "gated: no token"), (None, None)],
)
def test_a_model_that_needs_no_packages_stays_as_it_is(
    class_name: str | None, reason: str | None
) -> None:
    build = ConfigBuild(config_file="", config_sha256="", class_name=class_name)
    spec = factories.spec("org/x", build=build, architecture=None, skip_reason=reason)
    assert place_model(spec, Target(), [TIMM], {"default": DEFAULT}) == (spec, Target())


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
    spec = factories.spec("m", build=records.LibraryBuild(library=library, name="m"))
    there = {environment.name: environment for environment in (DEFAULT, *known)}
    assert place_model(spec, Target(), [], there)[1].environment == expected


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (records.LibraryBuild(library="open_clip", name="ViT-B-32"), ["open-clip-torch"]),
        (
            ConfigBuild(config_file="/c", config_sha256="c", packages=("timm", "peft")),
            ["peft", "timm"],
        ),
    ],
)
def test_every_package_that_a_model_lacks_is_named(build: records.Build, names: list[str]) -> None:
    spec = factories.spec("m", build=build)
    why = missing_package(spec, OLDER)
    assert why is not None
    assert f"the package{'s'[: len(names) - 1]} {' and '.join(names)}, which" in why
    assert "'torch-2.9' lacks: compilewatch env create NAME --torch 2.9.0" in why
    assert why.endswith(f"--with {','.join(names)}")
    having = factories.environment(packages=dict.fromkeys(names, "3"))
    assert missing_package(spec, having) is None


ADAPTED = factories.spec(
    "org/lora",
    build=ConfigBuild(
        config_file="/c",
        config_sha256="c",
        class_name="BertModel",
        adapter_file="/a",
        packages=("peft",),
    ),
    part=records.Part.WHOLE,
)
PEFT = factories.environment(name="libraries", packages={"peft": "0.21"})


def test_an_adapter_is_evaluated_where_peft_is() -> None:
    there = {"default": DEFAULT, "libraries": PEFT}
    assert identity.without_adapter(ADAPTED, Target(), there, named=False) == ADAPTED
    spec, target = place_model(ADAPTED, Target(), [], there)
    assert (spec, target.environment) == (ADAPTED, "libraries")
    own = {"own": factories.environment(name="own", packages={"peft": "0.21"})}
    target = Target(environment="own")
    assert identity.without_adapter(ADAPTED, target, own, named=True) == ADAPTED
    assert missing_package(ADAPTED, own["own"]) is None


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
    spec = identity.without_adapter(ADAPTED, target, known, named=named)
    assert isinstance(spec.build, ConfigBuild)
    assert (spec.build.adapter_file, spec.part) == (None, records.Part.BASE)
    assert place_model(spec, target, [], known) == (spec, target)
    assert missing_package(spec, known[target.environment]) is None


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
FAILING = factories.result(status=Status.ERROR, phase=records.Phase.CREATE)


@pytest.fixture
def expectations(tmp_path: Path) -> Expectations:
    (tmp_path / "expectations.toml").write_text(FILE)
    return load_expectations(tmp_path / "expectations.toml")


def test_a_result_that_meets_an_expectation_says_why(expectations: Expectations) -> None:
    build = ConfigBuild(config_file="/c", config_sha256="c", class_name="BertModel")
    failed: dict[str, Any] = {"status": Status.ERROR, "phase": records.Phase.CREATE}
    nightly = factories.environment(transformers="5.24.0.dev0")
    for result, environment, reason in (
        (FAILING, ENVIRONMENT, "needs a package"),
        # The class counts as well as the name.
        (factories.result("org/x", build=build, **failed), ENVIRONMENT, "needs a package"),
        (factories.result("org/x", **failed), ENVIRONMENT, None),
        (FAILING, nightly, "needs a package"),
        (FAILING, factories.environment(transformers="6.0.0"), None),
    ):
        judged = expectations.judge(result, environment)
        assert judged.expectation == reason
        assert expectations.stale([judged], [environment]) == []
    train = factories.request(target=Target(mode=Mode.TRAIN))
    of_train = msgspec.structs.replace(expectations.expectation[0], target="dynamo/train")
    assert of_train.concerns(train, ENVIRONMENT)
    assert not of_train.concerns(factories.request(), ENVIRONMENT)


@pytest.mark.parametrize(
    "result",
    [
        factories.result(),
        factories.result(breaks=(factories.graph_break(),)),
        factories.result(status=Status.ERROR, phase=records.Phase.COMPILE),
        factories.result(status=Status.TIMEOUT, phase=records.Phase.CREATE),
    ],
)
def test_an_expectation_that_no_longer_holds_is_reported(
    expectations: Expectations, result: records.Result
) -> None:
    assert expectations.judge(result, ENVIRONMENT).expectation is None
    ((expected, what),) = expectations.stale([result], [ENVIRONMENT])
    note = identity.stale_note(expected, what)
    assert "expected error in create (needs a package, 2026-01-02)" in note
    assert f"but the result is {result.status.value} in {result.phase.value}" in note
    assert "\n" not in note


def test_what_was_not_run_says_nothing(expectations: Expectations) -> None:
    others = [factories.result(status=Status.SKIPPED), factories.result("GPT2Model")]
    assert expectations.stale(others, [ENVIRONMENT]) == []
    newer = factories.environment(transformers="6.0.0")
    assert expectations.stale([factories.result()], [newer]) == []


def test_own_lines_come_before_the_shipped_ones(tmp_path: Path, expectations: Expectations) -> None:
    shipped = load_expectations(None).expectation
    assert load_expectations(tmp_path / "none.toml").expectation == shipped != ()
    assert expectations.expectation[1:] == shipped
    named = [(e.model, e.target, e.transformers, e.torch) for e in shipped]
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


HERE = (factories.environment(),)
SPECS = [factories.spec(f"M{number}") for number in range(200)]
BOTH = targets_of(["dynamo"], [Mode.EVAL, Mode.TRAIN], dynamic=None)


def _plan(specs: list[ModelSpec] = SPECS, **given: Any) -> records.Plan:
    targets, options = given.pop("targets", BOTH), given.pop("options", Options())
    return plan(specs, targets, options, given.pop("environments", HERE), **given)


def _names(planned: records.Plan) -> list[str]:
    return [request.model.name for request in planned.requests]


def test_every_model_and_target_is_requested_once_in_order() -> None:
    made = _plan(options=Options(memory_limit_bytes=5, depth=records.Depth.REDUCED))
    asked = [(r.model.name, r.target) for r in made.requests]
    assert asked == [(s.name, t) for s in SPECS for t in BOTH]
    assert (made.total, made.duplicates) == (400, 0)
    assert {(r.memory_limit_bytes, r.depth) for r in made.requests} == {(5, "reduced")}
    few = _plan(SPECS[:3], shard=Shard(index=1, count=2))
    assert msgspec.json.decode(msgspec.json.encode(few), type=records.Plan) == few


def test_a_models_own_inputs_are_part_of_the_request(tmp_path: Path) -> None:
    own, given = tmp_path / "own.toml", tmp_path / "given.toml"
    own.write_text("own")
    given.write_text("given")
    plain = factories.spec("M")
    dressed = factories.spec("M", inputs_file=str(own))
    over = Options(inputs_file=str(given))
    asked = [
        _plan([spec], targets=[Target()], options=options).requests[0]
        for spec, options in ((plain, Options()), (dressed, Options()), (dressed, over))
    ]
    assert [r.inputs_file for r in asked] == [None, str(own), str(given)]
    assert len({r.key for r in asked}) == 3


WRONG = "models.toml: model 'M': there is no folder /x"


@pytest.mark.parametrize(
    ("spec", "target", "status", "detail"),
    [
        ({"skip_reason": "gated: ask"}, Target(), Status.SKIPPED, "gated: ask"),
        ({"error": WRONG}, Target(), Status.ERROR, WRONG),
        (
            {},
            Target(name="export", environment="xla"),
            Status.UNSUPPORTED,
            "needs the environment 'xla': compilewatch env create xla",
        ),
        (
            {"build": records.LibraryBuild(library="timm", name="m")},
            Target(),
            Status.SKIPPED,
            "needs the package timm, which the environment 'default' lacks: "
            "compilewatch env create NAME --torch 2.13.0 --with timm",
        ),
    ],
)
def test_what_cannot_run_has_a_result_that_says_why_and_no_request(
    spec: dict[str, Any], target: Target, status: Status, detail: str
) -> None:
    made = _plan([factories.spec("M", **spec), *SPECS[:1]], targets=[target], named=True)
    result = made.skipped[0]
    assert (result.status, result.phase, result.detail) == (status, records.Phase.SETUP, detail)
    assert not result.is_verdict
    code = result.error.code if result.error is not None else None
    assert code == ("configuration_error" if status is Status.ERROR else None)
    assert made.total == 2
    assert _names(made) == ([] if status is Status.UNSUPPORTED else ["M0"])


def test_a_model_whose_packages_are_elsewhere_runs_there_or_says_what_to_type(
    tmp_path: Path,
) -> None:
    (tmp_path / "packages.toml").write_text(
        '[[override]]\nreason = "why"\ndate = 2026-11-23\nclasses = ["M1"]\npackages = ["timm"]\n'
    )
    given: dict[str, Any] = {"targets": [Target()], "options": Options(overrides_dir=str(tmp_path))}
    both = [*HERE, factories.environment(name="vision", packages={"timm": "1"})]
    for named, expected in ((False, ["default", "vision"]), (True, ["default", "default"])):
        made = _plan(SPECS[:2], environments=both, named=named, **given)
        assert [r.target.environment for r in made.requests] == expected
    made = _plan(SPECS[:2], **given)
    assert _names(made) == ["M0"]
    (skipped,) = made.skipped
    assert skipped.status is Status.UNSUPPORTED
    assert skipped.detail == (
        "needs the environment 'vision', which has timm, torchvision: "
        "compilewatch env create vision"
    )


def test_two_environments_are_two_requests_and_two_names_of_one_are_one() -> None:
    older = factories.environment(name="older", torch="2.9.0")
    alias = factories.environment(name="alias")
    environments = [factories.environment(), older, alias]
    targets = [Target(environment=name) for name in ("default", "older", "alias")]
    made = _plan(SPECS[:1], targets=targets, environments=environments)
    assert made.duplicates == 1
    assert len({r.key for r in made.requests}) == 2


def test_shards_are_a_partition_that_does_not_depend_on_order() -> None:
    shards = [_plan(shard=Shard(index=i, count=3)) for i in (1, 2, 3)]
    names = [set(_names(shard)) for shard in shards]
    assert set.union(*names) == {s.name for s in SPECS}
    assert sum(map(len, names)) == len(SPECS)
    assert all(names)
    backwards = _plan(SPECS[::-1], shard=Shard(index=2, count=3))
    assert set(_names(backwards)) == names[1]
    assert len({shard.digest for shard in (*shards, _plan())}) == 1
    small = [_plan(SPECS[:1], shard=Shard(index=i, count=2)) for i in (1, 2)]
    assert sorted(len(part.requests) for part in small) == [0, 2]


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


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["0/3", "4/3", "1/0", "0/0"], "shards are numbered"),
        (["", "1", "1/", "a/b", "-1/3", "1/3/5", "1.5/3"], "not of the form I/N"),
    ],
)
def test_what_is_no_shard_is_rejected(texts: list[str], message: str) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=message):
            parse_shard(text)
    assert str(parse_shard(" 2/5 ")) == "2/5"


@pytest.mark.parametrize(
    ("specs", "targets", "message"),
    [
        ([], BOTH, "no models"),
        (SPECS, [], "no targets"),
        (SPECS, [Target(name="dynamite")], "no target 'dynamite'; known: "),
        (SPECS, [Target(name="export", backend="foo")], "has no backend"),
        (SPECS, [Target(name="neuron", backend="trn9")], "has no backend"),
        (SPECS, [Target(name="xla", backend="cpu")], "has no backend"),
        ([SPECS[0], SPECS[0]], BOTH, "two models are called 'M0'"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_rejected(
    specs: list[ModelSpec], targets: list[Target], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        _plan(specs, targets=targets)


@pytest.mark.parametrize(("said", "field"), [("on", True), ("off", False), ("default", None)])
def test_targets_have_the_options_that_are_theirs_and_are_named_once(
    said: str, field: bool | None
) -> None:
    names = ["dynamo", "dynamo", "export", "export:non_strict"]
    dynamo, export, other = targets_of(names, [Mode.EVAL, Mode.EVAL], None, said)
    assert (dynamo.nested_graph_breaks, export.nested_graph_breaks) == (field, None)
    assert (export.backend, other.name, other.backend) == (None, "export", "non_strict")


def test_neuron_has_a_longer_deadline_for_compiling() -> None:
    targets = targets_of(("dynamo", "neuron"), (Mode.EVAL,), None)
    made = _plan(
        SPECS[:1], targets=targets, options=Options(deadlines=records.Deadlines(compile_seconds=60))
    )
    usual, neuron = (request.deadlines for request in made.requests)
    assert (usual.compile_seconds, usual.total_seconds) == (60, 1200)
    assert (neuron.compile_seconds, neuron.total_seconds) == (7200, 1200 + 7140)
    assert deadlines_of("neuron", neuron) == neuron


def test_an_environment_with_models_of_its_own_is_planned_for_those_it_has() -> None:
    old, new = (Target(environment=name) for name in ("old", "new"))
    both, added = factories.spec("Both"), factories.spec("Added")
    other = factories.spec("Both", checkpoint="of the old one")
    environments = tuple(factories.environment(name=name) for name in ("old", "new"))
    own = {"old": [other], "new": [both, added]}
    made = plan([both, added], [old, new], Options(), environments, own=own)
    assert [(r.model, r.target) for r in made.requests] == [(other, old), (both, new), (added, new)]
    assert len(list(identity.pairs([both, added], [old, new], own))) == made.total
    assert len(list(identity.pairs([both, added], [old, new], {"new": [both]}))) == 3
