"""`leverage` on stored runs: what it prints, its JSON, and wrong names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from compilewatch.cli.stored_runs import leverage_command
from compilewatch.errors import UsageError
from tests import factories
from tests.integration.cli.test_show import add

SHARED = factories.graph_break()
OTHER = factories.graph_break("b", "GB0059")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[str, str]:
    before = (
        factories.result("A", breaks=(SHARED,)),
        factories.result("B", breaks=(SHARED, OTHER)),
    )
    after = (factories.result("A"), factories.result("B", breaks=(OTHER,)))
    return add(tmp_path, *before), add(tmp_path, *after)


def leverage(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(leverage_command, [*arguments, "--output", str(folder)])


def test_the_latest_run_is_ranked_and_another_one_by_name(
    tmp_path: Path, runs: tuple[str, str]
) -> None:
    before, latest = runs
    assert leverage(tmp_path).output.startswith(f"Run {latest}\n1 model has graph breaks on dynamo")
    said = leverage(tmp_path, before, "--by", "id", "--top", "1").output
    assert "2 models have graph breaks" in said
    assert "GB0170 Data-dependent branching" in said
    assert "1 model would need steps that are not listed." in said


def test_json_has_every_step(tmp_path: Path, runs: tuple[str, str]) -> None:
    found = json.loads(leverage(tmp_path, runs[0], "--json").output)
    assert [(fix["models"], fix["exact"], fix["affected"]) for fix in found["fixes"]] == [
        (["A"], True, 2),
        (["B"], False, 1),
    ]
    assert (found["by"], found["broken"], found["left"]) == ("line", 2, 0)


def test_wrong_names_are_one_line(tmp_path: Path, runs: tuple[str, str]) -> None:
    for arguments, message in (
        (("nope",), "no run 'nope'"),
        ((runs[0], "--target", "dynmo"), "did you mean 'dynamo'"),
    ):
        error = leverage(tmp_path, *arguments).exception
        assert isinstance(error, UsageError)
        assert message in str(error)
