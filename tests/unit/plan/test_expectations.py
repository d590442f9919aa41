from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.errors import ConfigError
from compilewatch.plan import Expectations, load_expectations, stale_note
from compilewatch.records import ConfigBuild, Mode, Phase, Result, Status, Target
from tests import factories

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
