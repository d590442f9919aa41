from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch import plan as planning
from compilewatch import records
from compilewatch.config import Settings
from compilewatch.contract.targets import deadlines_of
from compilewatch.data import read_overrides
from compilewatch.errors import ConfigError, UsageError
from compilewatch.plan import load_expectations, place, place_model, targets_of
from compilewatch.records import ConfigBuild, Mode, Shard, Status, Target, config_sha256
from tests import factories
from tests.factories import environment, spec

DEFAULT = environment()
OLDER = environment(name="torch-2.9", torch="2.9.0")
VISION = environment(name="vision", packages={"timm": "1"})
LIBRARIES = environment(name="libraries", packages={"timm": "1", "diffusers": "1"})
PEFT = environment(name="libraries", packages={"peft": "0.21"})


def configured(**fields: Any) -> ConfigBuild:
    return ConfigBuild(**{"config_file": "/a", "config_sha256": "c", **fields})


# --- keys ---

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
        "transformers_version": "5.1.0",
        "finetuning_task": "spam",
        "num_labels": 7,
    }
    assert config_sha256(BERT) == config_sha256(renamed) == config_sha256(other)
    assert records.canonical_config({"text": {"_name_or_path": "x", "n": 8}}) == {"text": {"n": 8}}
    for change in (
        {"hidden_size": 1024},
        {"id2label": {"0": "a", "1": "b", "2": "c"}},
        {"torch_dtype": "bfloat16"},
        {"architectures": ["BertModel"]},
        {"new_option": True},
    ):
        assert config_sha256(BERT) != config_sha256({**BERT, **change})


def key(model: Any = None, target: Target | None = None, **fields: Any) -> str:
    where, overrides = fields.pop("environment", DEFAULT), fields.pop("overrides", ())
    asked = records.Request(model=model or spec(), target=target or Target(), key="", **fields)
    return planning.request_key(asked, where, overrides)


def of_config(revision: str = "r1", **fields: Any) -> records.ModelSpec:
    return spec("org/model", build=configured(**fields), architecture=None, revision=revision)


def of_factory(factory: str = "m:f", path: str = "/ci", source: str = "s") -> records.ModelSpec:
    build = records.FactoryBuild(factory=factory, path=path, source_sha256=source)
    return spec("mine", build=build)


def test_what_cannot_change_a_result_is_not_in_the_key() -> None:
    described = spec(downloads=7, license="mit", gated=True, revision="abc", task="text")
    assert key() == key(described)
    # A configuration is its content, a factory its source.
    assert key(of_config(config_file="/a")) == key(of_config(config_file="/b", repo="org/other"))
    assert key(of_factory(path="/one")) == key(of_factory(path="/two"))


def test_everything_that_can_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(tmp_path / name) for name in ("a.toml", "b.toml")]
    for file in files:
        Path(file).write_text(file)
    specs = [
        spec("GPT2Model"),
        of_factory("BertModel"),
        of_factory(),
        of_factory(source="t"),
        # Without a source, only the folder distinguishes them.
        of_factory(path="/one", source=""),
        of_factory(path="/two", source=""),
        of_config(),
        of_config(class_name="BertModel"),
        of_config(repo="org/a", weights=True),
        of_config(repo="org/b", weights=True),
        of_config("r2", repo="org/a", weights=True),
        of_config(repo="org/a", trust_remote_code=True),
        of_config("r2", repo="org/a", trust_remote_code=True),
        of_config(adapter_file="/a", adapter_sha256="a"),
        of_config(adapter_file="/a", adapter_sha256="b"),
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
        environment(digest="", python="3.12.1"),
        environment(digest="", device="cuda"),
    ]
    keys = [
        key(),
        *map(key, specs),
        *(key(target=target) for target in targets),
        *(key(environment=where) for where in environments),
        key(tier=records.Tier.REAL),
        key(depth=records.Depth.REDUCED),
        key(shapes=True),
        *(key(inputs_file=file) for file in files),
        key(target=Target(name="xla"), inputs_file=files[0]),
        key(overrides=[{"classes": ["BertModel"], "config": {"a": 1}}]),
    ]
    monkeypatch.setattr(records, "HARNESS_VERSION", 99)
    keys.append(key())
    monkeypatch.undo()
    monkeypatch.setattr(planning, "worker_sha256", lambda: "edited")
    keys.append(key())
    assert len(set(keys)) == len(keys)
    with pytest.raises(ConfigError, match="cannot be read"):
        key(inputs_file=str(tmp_path / "none.toml"))


def test_an_edit_of_what_can_change_a_result_voids_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "__file__", str(tmp_path / "plan.py"))
    digest = planning.worker_sha256.__wrapped__
    for edited, different in (
        ("worker/targets/xla/module.py", 4),
        ("neuron/module.py", 4),
        ("extras/profiles/worker/module.py", 1),
        ("worker/model/__pycache__/module.pyc", 1),
    ):
        digests, file = {digest()}, tmp_path / edited
        file.parent.mkdir(parents=True)
        for text in ("new", "edited"):
            file.write_text(text)
            digests.add(digest())
        file.rename(file.with_stem("renamed"))
        assert len({*digests, digest()}) == different, edited


def test_only_overrides_that_may_apply_enter_a_key_and_no_prose(tmp_path: Path) -> None:
    line = '[[override]]\nreason = "why"\ndate = 2026-01-01\n'
    text = f'{line}classes = ["BertModel"]\n{line}model_types = ["clip_text_model"]\n'
    (tmp_path / "one.toml").write_text(text)
    overrides = read_overrides(tmp_path)
    for name, family, count in (("BertModel", "bert", 1), ("G", "gpt2", 0), ("C", "clip", 1)):
        assert len(planning.overrides_for(spec(name, family=family), overrides)) == count
    # A type that may be a model's own counts.
    for model_type, family, name in (
        ("xclip", "x_clip", "XCLIPModel"),
        ("coarse_acoustics", "bark", "BarkCoarseModel"),
        ("xlm-roberta", "our-team", "XLMRobertaModel"),
        ("anything", "unknown", "SomeModel"),
    ):
        override = {"model_types": [model_type]}
        assert planning.overrides_for(spec(name, family=family), [override]) == [override]
    (tmp_path / "one.toml").write_text(text.replace('"why"', '"better said"'))
    assert read_overrides(tmp_path) == overrides


# --- where a request runs ---

XLA = environment(name="xla", packages={"torch-xla": "2.9.0"})
NEURON = environment(name="neuron", packages={"neuronx-cc": "2", "torch-neuronx": "2.14.0"})
AGENT = environment(packages={"torch-neuronx": "2.9.0.2.15"})
ALL = [Target(name=name) for name in ("dynamo", "xla", "neuron")]
HERE = "dynamo:default xla:xla neuron:neuron"


def test_where_each_target_is_evaluated() -> None:
    for named, known, expected in (
        ("", (DEFAULT, XLA, NEURON), HERE),
        # Neither can run anywhere: at home, where what is missing is said.
        ("", (DEFAULT,), HERE),
        ("", (AGENT,), "dynamo:default xla:xla neuron:default"),
        ("default xla", (DEFAULT, XLA), HERE.replace(" xla", " dynamo:xla xla", 1)),
        ("default torch-2.9", (DEFAULT, OLDER), HERE.replace(" xla", " dynamo:torch-2.9 xla", 1)),
    ):
        placed = place(ALL, named.split(), known)
        assert [f"{target.name}:{target.environment}" for target in placed] == expected.split()


CPU_BUILD = environment(torch="2.15.0+cpu", cuda=None)
CUDA_BUILD = environment(name="cuda", torch="2.15.0+cu132", cuda="13.2")


@pytest.mark.parametrize("known", [(CPU_BUILD,), (CPU_BUILD, CUDA_BUILD)])
def test_training_on_a_declared_device_needs_a_cuda_build(known: Any) -> None:
    pairs = [(mode, device) for device in ("cpu", "cuda:A100") for mode in (Mode.EVAL, Mode.TRAIN)]
    cases = [Target(mode=mode, device=device) for mode, device in pairs]
    placed = place(cases, (), known)
    assert [target.environment for target in placed] == ["default", "default", "default", "cuda"]
    own = environment(cuda="13.2")
    assert {t.environment for t in place(cases, (), (own, CUDA_BUILD))} == {"default"}
    assert [t.environment for t in place(cases, ("default",), known)] == ["default"] * 4
    assert "compilewatch env create cuda" in planning.needs(placed[-1])
    (on_neuron,) = place([Target(mode=Mode.TRAIN, device="neuron")], (), known)
    assert on_neuron.environment == "default"


def test_a_forecast_declares_the_neuron_device_that_it_is_for() -> None:
    known = (DEFAULT, environment(name="lowering", packages={"torch-mlir": "20261001"}))

    def device_of(backend: str | None) -> Any:
        (target,) = place([Target(name="neuron", backend=backend)], (), known)
        asked = planning.single_request(spec(), target, Settings(), known, named=False)
        return asked.device and asked.device.name

    assert [device_of(backend) for backend in (None, "trn2", "trn3")] == ["trn2", "trn2", "trn3"]
    with pytest.raises(UsageError, match=r"no forecast for trn1: .*env create neuron-xla"):
        device_of("trn1")


def test_an_environment_that_is_named_exists_and_shares_no_label() -> None:
    with pytest.raises(UsageError, match=r"no environment 'tpu'; known: default; .*create tpu"):
        place(ALL, ("tpu",), (DEFAULT,))
    with pytest.raises(UsageError, match="default and vision cannot be named together"):
        place(ALL, ("default", "vision"), (DEFAULT, VISION))
    (placed,) = place([Target()], ("vision",), (DEFAULT, VISION))
    assert placed.environment == "vision"


TIMM = {"classes": ["XModel"], "packages": ["timm"]}


def test_a_model_is_placed_where_its_packages_are() -> None:
    for line, target, default, expected in (
        (TIMM, Target(), DEFAULT, "vision"),
        (TIMM, Target(device="cuda"), DEFAULT, "vision"),
        # The default environment has the package, or the release is another one.
        (TIMM, Target(), environment(packages={"timm": "1"}), "default"),
        ({**TIMM, "transformers": ">=99"}, Target(), DEFAULT, "default"),
        ({**TIMM, "classes": ["OtherModel"]}, Target(), DEFAULT, "default"),
        # Nothing has it: the model runs where it would, and says what is missing.
        ({**TIMM, "packages": ["natten"]}, Target(), DEFAULT, "default"),
        # A person or a target chose the environment.
        (TIMM, Target(environment="torch-2.9"), DEFAULT, "torch-2.9"),
    ):
        model = spec("XModel", skip_reason="needs timm")
        model, placed = place_model(model, target, [line], {"default": default})
        assert placed.environment == expected
        assert model.skip_reason == (None if expected == "vision" else "needs timm")
        # Every override may be one of an unknown class, so none says which packages it needs.
        for reason in ("gated: no token", None):
            model = spec("org/x", build=configured(), architecture=None, skip_reason=reason)
            assert place_model(model, target, [line], {"default": default}) == (model, target)


def test_a_model_of_a_library_is_placed_where_the_library_is() -> None:
    for library, known, expected in (
        ("timm", (VISION, LIBRARIES), "vision"),
        # An environment that exists comes before one that would have to be created.
        ("timm", (LIBRARIES,), "libraries"),
        ("timm", (), "vision"),
        ("diffusers", (VISION,), "libraries"),
    ):
        model = spec("m", build=records.LibraryBuild(library=library, name="m"))
        there = {where.name: where for where in (DEFAULT, *known)}
        assert place_model(model, Target(), [], there)[1].environment == expected


ADAPTED = spec(
    "org/lora",
    build=configured(class_name="BertModel", adapter_file="/a", packages=("peft",)),
    part=records.Part.WHOLE,
)


ELSEWHERE = Target(environment="torch-2.9")
PLACED = Target(environment="libraries")


@pytest.mark.parametrize(
    ("target", "known", "named", "placed"),
    [
        (Target(), (DEFAULT, PEFT), False, PLACED),
        (PLACED, (DEFAULT, PEFT), True, PLACED),
        # Where PEFT is not, only the base is evaluated.
        (Target(), (DEFAULT,), False, None),
        # It was created before PEFT was one of its packages.
        (Target(), (DEFAULT, LIBRARIES), False, None),
        # A person named another one.
        (Target(), (DEFAULT, PEFT), True, None),
        (ELSEWHERE, (OLDER, PEFT), True, None),
    ],
)
def test_an_adapter_is_evaluated_where_peft_is(
    target: Target, known: Any, named: bool, placed: Target | None
) -> None:
    there = {where.name: where for where in known}
    model = planning.without_adapter(ADAPTED, target, there, named=named)
    assert (model == ADAPTED) == (placed is not None)
    assert place_model(model, target, [], there) == (model, placed or target)
    if placed is None:
        assert isinstance(model.build, ConfigBuild)
        assert (model.build.adapter_file, model.part) == (None, records.Part.BASE)
        assert planning.missing_package(model, known[0]) is None


# --- expectations ---

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
FAILED: dict[str, Any] = {"status": Status.ERROR, "phase": records.Phase.CREATE}
NEWER = environment(transformers="6.0.0")


@pytest.fixture
def expectations(tmp_path: Path) -> planning.Expectations:
    (tmp_path / "expectations.toml").write_text(FILE)
    return load_expectations(tmp_path / "expectations.toml")


def test_a_result_that_meets_an_expectation_says_why(expectations: planning.Expectations) -> None:
    of_class = factories.result("org/x", build=configured(class_name="BertModel"), **FAILED)
    failing = factories.result(**FAILED)
    for result, where, reason in (
        (failing, DEFAULT, "needs a package"),
        (of_class, DEFAULT, "needs a package"),
        (factories.result("org/x", **FAILED), DEFAULT, None),
        (failing, environment(transformers="5.24.0.dev0"), "needs a package"),
        (failing, NEWER, None),
    ):
        judged = expectations.judge(result, where)
        assert judged.expectation == reason
        assert expectations.stale([judged], [where]) == []
    of_train = msgspec.structs.replace(expectations.expectation[0], target="dynamo/train")
    assert of_train.concerns(factories.request(target=Target(mode=Mode.TRAIN)), DEFAULT)
    assert not of_train.concerns(factories.request(), DEFAULT)


def test_an_expectation_that_no_longer_holds_is_reported(
    expectations: planning.Expectations,
) -> None:
    for result in (
        factories.result(breaks=(factories.graph_break(),)),
        factories.result(status=Status.ERROR, phase=records.Phase.COMPILE),
        factories.result(status=Status.TIMEOUT, phase=records.Phase.CREATE),
    ):
        assert expectations.judge(result, DEFAULT).expectation is None
        ((expected, what),) = expectations.stale([result], [DEFAULT])
        note = planning.stale_note(expected, what)
        assert "expected error in create (needs a package, 2026-01-02)" in note
        assert f"but the result is {result.status.value} in {result.phase.value}" in note
        assert expectations.stale([result], [NEWER]) == []


def test_what_was_not_run_is_not_stale_and_own_lines_come_before_the_shipped_ones(
    expectations: planning.Expectations,
) -> None:
    others = [factories.result(status=Status.SKIPPED), factories.result("GPT2Model")]
    assert expectations.stale(others, [DEFAULT]) == []
    assert expectations.expectation[1:] == load_expectations(None).expectation != ()


def test_a_malformed_file_is_one_line_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "expectations.toml"
    for old, new, message in (
        ("model =", "modle =", "modle"),
        ('"needs a package"', '" "', "needs a `reason`"),
        (">=5.20", "=>5.20", "not a version specifier"),
        ("schema_version = 1", "schema_version = 2", "schema_version 2"),
    ):
        path.write_text(FILE.replace(old, new))
        with pytest.raises(ConfigError, match=f"^{path}.*{message}.*$"):
            load_expectations(path)


# --- plans ---

SPECS = [spec(f"M{number}") for number in range(200)]
BOTH = targets_of(["dynamo"], [Mode.EVAL, Mode.TRAIN], dynamic=None)


def plan(specs: Any = SPECS, targets: Any = BOTH, **given: Any) -> records.Plan:
    settings = factories.settings(**given.pop("settings", {}))
    environments = given.pop("environments", [DEFAULT])
    return planning.plan(specs, targets, settings, environments, **given)


def names(planned: records.Plan) -> list[str]:
    return [request.model.name for request in planned.requests]


def test_every_model_and_target_is_requested_once_in_order() -> None:
    planned = plan(settings={"memory_limit_gib": 5, "depth": "reduced"})
    asked = [(r.model.name, r.target) for r in planned.requests]
    assert asked == [(s.name, t) for s in SPECS for t in BOTH]
    assert (planned.total, planned.duplicates) == (400, 0)
    assert {(r.memory_limit_bytes, r.depth) for r in planned.requests} == {(5 * 2**30, "reduced")}
    few = plan(SPECS[:3], shard=Shard(index=1, count=2))
    assert msgspec.json.decode(msgspec.json.encode(few), type=records.Plan) == few


def test_some_models_come_first_and_only_the_most_used_are_trained() -> None:
    planned = plan(SPECS[:4], settings={"first": ["M3", "Gone"], "train_top": 2})
    asked = [(r.model.name, r.target.mode) for r in planned.requests]
    both = [(name, mode) for name in ("M0", "M1") for mode in (Mode.EVAL, Mode.TRAIN)]
    assert asked == [("M3", Mode.EVAL), *both, ("M2", Mode.EVAL)]
    assert planned.digest == plan(SPECS[:4], settings={"train_top": 2}).digest


def test_a_models_own_inputs_are_part_of_the_request(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("")
    (request,) = plan([spec("M", inputs_file=str(own))], [Target()]).requests
    (plain,) = plan([spec("M")], [Target()]).requests
    assert request.inputs_file == str(own)
    assert request.key != plain.key


WRONG = "models.toml: model 'M': there is no folder /x"
LIBRARY = records.LibraryBuild(library="timm", name="m")
TWO = configured(packages=("timm", "peft"))


@pytest.mark.parametrize(
    ("fields", "target", "status", "detail"),
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
            {"build": LIBRARY},
            Target(),
            Status.SKIPPED,
            "needs the package timm, which the environment 'default' lacks: "
            "compilewatch env create NAME --torch 2.13.0 --with timm",
        ),
        (
            {"build": TWO},
            Target(),
            Status.SKIPPED,
            "needs the packages peft and timm, which the environment 'default' lacks: "
            "compilewatch env create NAME --torch 2.13.0 --with peft,timm",
        ),
    ],
)
def test_what_cannot_run_has_a_result_that_says_why_and_no_request(
    fields: dict[str, Any], target: Target, status: Status, detail: str
) -> None:
    planned = plan([spec("M", **fields), SPECS[0]], [target], named=True)
    result = planned.skipped[0]
    assert (result.status, result.phase, result.detail) == (status, records.Phase.SETUP, detail)
    assert not result.is_verdict
    code = result.error.code if result.error is not None else None
    assert code == ("configuration_error" if status is Status.ERROR else None)
    assert planned.total == 2
    assert names(planned) == ([] if status is Status.UNSUPPORTED else ["M0"])


def test_a_model_whose_packages_are_elsewhere_runs_there_or_says_what_to_type(
    tmp_path: Path,
) -> None:
    line = '[[override]]\nreason = "why"\ndate = 2026-11-23\nclasses = ["M1"]\npackages = ["timm"]'
    (tmp_path / "packages.toml").write_text(line)
    settings = {"overrides_dir": str(tmp_path)}
    for named, expected in ((False, ["default", "vision"]), (True, ["default", "default"])):
        both = {"environments": [DEFAULT, VISION], "named": named}
        planned = plan(SPECS[:2], [Target()], settings=settings, **both)
        assert [r.target.environment for r in planned.requests] == expected
    planned = plan(SPECS[:2], [Target()], settings=settings)
    assert names(planned) == ["M0"]
    (skipped,) = planned.skipped
    assert skipped.status is Status.UNSUPPORTED
    assert skipped.detail == (
        "needs the environment 'vision', which has timm, torchvision: "
        "compilewatch env create vision"
    )


def test_two_environments_are_two_requests_and_two_names_of_one_are_one() -> None:
    environments = [DEFAULT, environment(name="older", torch="2.9.0"), environment(name="alias")]
    targets = [Target(environment=where.name) for where in environments]
    planned = plan(SPECS[:1], targets, environments=environments)
    assert planned.duplicates == 1
    assert len({r.key for r in planned.requests}) == 2


def test_shards_are_a_partition_of_one_plan_in_any_order() -> None:
    shards = [plan(shard=Shard(index=i, count=3)) for i in (1, 2, 3)]
    everyone = [name for shard in shards for name in names(shard)]
    assert sorted(everyone) == sorted(s.name for s in SPECS for _ in BOTH)
    backwards = plan(SPECS[::-1], shard=Shard(index=2, count=3))
    assert set(names(backwards)) == set(names(shards[1]))
    assert len({shard.digest for shard in (*shards, plan())}) == 1


def test_shards_are_even_and_change_little() -> None:
    models = [f"org{number % 7}/m{number}" for number in range(60)]
    for count in range(1, 12):
        shards = [Shard(index=number + 1, count=count) for number in range(count)]
        parts = [shard.holds(models) for shard in shards]
        assert sorted(name for part in parts for name in part) == sorted(models)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        after = [shard.holds([*models, "New"]) for shard in shards]
        assert sum(len(part - later) for part, later in zip(parts, after, strict=True)) <= 10
    # Another hash would move models between the shards of machines that are half upgraded.
    first = Shard(index=1, count=4).holds(s.name for s in SPECS)
    assert sorted(first)[:4] == ["M0", "M100", "M110", "M111"]


def test_what_is_no_shard_is_rejected() -> None:
    for text in ("0/3", "4/3", "0/0"):
        with pytest.raises(UsageError, match="shards are numbered"):
            planning.parse_shard(text)
    for text in ("", "1", "1/", "-1/3", "1.5/3"):
        with pytest.raises(UsageError, match="not of the form I/N"):
            planning.parse_shard(text)
    assert str(planning.parse_shard(" 2/5 ")) == "2/5"


def test_a_plan_that_cannot_be_meant_is_rejected() -> None:
    for specs, targets, message in (
        ([], BOTH, "no models"),
        (SPECS, [], "no targets"),
        (SPECS, [Target(name="dynamite")], "no target 'dynamite'; known: "),
        (SPECS, [Target(name="neuron", backend="trn9")], "has no backend"),
        ([SPECS[0], SPECS[0]], BOTH, "two models are called 'M0'"),
    ):
        with pytest.raises(UsageError, match=message):
            plan(specs, targets)


def test_targets_have_the_options_that_are_theirs_and_are_named_once() -> None:
    given = ["dynamo", "dynamo", "export", "export:non_strict"]
    for said, field in (("on", True), ("off", False), ("default", None)):
        dynamo, export, other = targets_of(given, [Mode.EVAL, Mode.EVAL], None, said)
        assert (dynamo.nested_graph_breaks, export.nested_graph_breaks) == (field, None)
        assert (export.backend, other.name, other.backend) == (None, "export", "non_strict")


def test_the_device_neuron_is_the_own_one_of_the_target_neuron() -> None:
    targets = targets_of(["dynamo", "neuron"], [Mode.EVAL], None, devices=["cpu", "neuron"])
    assert [(t.name, t.device) for t in targets] == [
        *(("dynamo", "cpu"), ("dynamo", "neuron")),
        ("neuron", "cpu"),
    ]


def test_neuron_has_a_longer_deadline_for_compiling() -> None:
    targets = targets_of(("dynamo", "neuron"), (Mode.EVAL,), None)
    settings = {"deadlines_compile_seconds": 60.0}
    usual, neuron = (r.deadlines for r in plan(SPECS[:1], targets, settings=settings).requests)
    assert (usual.compile_seconds, usual.total_seconds) == (60, 1200)
    assert (neuron.compile_seconds, neuron.total_seconds) == (7200, 1200 + 7140)
    assert deadlines_of("neuron", neuron) == neuron


def test_an_environment_with_models_of_its_own_is_planned_for_those_it_has() -> None:
    old, new = (Target(environment=name) for name in ("old", "new"))
    both, added, other = spec("Both"), spec("Added"), spec("Both", checkpoint="of the old one")
    environments = [environment(name=name) for name in ("old", "new")]
    own = {"old": [other], "new": [both, added]}
    planned = plan([both, added], [old, new], environments=environments, own=own)
    asked = [(r.model, r.target) for r in planned.requests]
    assert asked == [(other, old), (both, new), (added, new)]
    assert len(list(planning.pairs([both, added], [old, new], {"new": [both]}))) == 3
