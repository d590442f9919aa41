from __future__ import annotations

import random
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compilewatch.contract.targets import deadlines_of, target_label, target_label_value
from compilewatch.errors import UsageError
from compilewatch.plan import (
    Expectation,
    Expectations,
    pairs,
    parse_shard,
    plan,
    targets_of,
)
from compilewatch.records import (
    ConfigBuild,
    Deadlines,
    Depth,
    LibraryBuild,
    Mode,
    ModelSpec,
    Options,
    Phase,
    Plan,
    Shard,
    Status,
    Target,
)
from tests import factories

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
