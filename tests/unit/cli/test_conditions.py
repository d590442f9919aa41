"""What gates a pipeline: the conditions of --fail-on, and the exit status of a shown run."""

from dataclasses import replace

import click
import pytest

from compilewatch.analysis.comparison import compare
from compilewatch.cli.conditions import Conditions, exit_status, exit_status_of, option
from compilewatch.records import Phase, Status
from tests import example_run
from tests.factories import graph_break, result, run, shapes, view

PASS, BROKEN = result("Passing"), result("Broken", breaks=(graph_break("a"),))
FAILED = result("Failed", status=Status.ERROR, phase=Phase.CREATE)
CRASHED = result("Crashed", status=Status.CRASHED, phase=Phase.EAGER)
KNOWN = result("Known", breaks=(graph_break("a"),), expectation="reviewed")
SKIPPED = result("Skipped", status=Status.SKIPPED, phase=Phase.SETUP)
FORECASTS = example_run.forecasts()


def conditions(text: str) -> Conditions:
    command = click.Command("x", params=[], callback=lambda fail_on: fail_on)
    found = option(command).main(["--fail-on", text], standalone_mode=False)
    assert isinstance(found, Conditions)
    return found


def test_a_condition_that_is_met_is_1() -> None:
    for text, results, status in (
        ("graph-break", (PASS, BROKEN), 1),
        ("graph-break", (PASS, FAILED), 0),
        ("error", (PASS, FAILED), 1),
        ("error", (PASS, CRASHED), 1),
        ("error", (PASS, BROKEN, SKIPPED), 0),
        ("no-verdict", (PASS, SKIPPED), 1),
        ("no-verdict", (PASS, CRASHED), 1),
        ("no-verdict", (PASS, BROKEN), 0),
        ("mismatch", (PASS, result("M", status=Status.MISMATCH, phase=Phase.COMPARE)), 1),
        ("coverage<99", (PASS, FAILED), 1),
        ("coverage<50", (PASS, FAILED), 0),
        ("coverage < 50.1 %, graph-break", (PASS, FAILED), 1),
        ("graph-break,error,no-verdict", (KNOWN,), 0),
        # What a forecast says, or that there is none, fails no build.
        ("error,no-verdict,coverage<100", (PASS, *FORECASTS), 0),
        ("error,no-verdict,coverage<100", FORECASTS, 0),
        ("", (BROKEN, FAILED), 0),
    ):
        assert exit_status(view(*results), conditions(text)) == status


def test_a_regression_is_a_condition_of_its_own() -> None:
    broke = compare(run("1"), [result("Broken")], run("2"), [BROKEN]).changes
    seen = replace(view(BROKEN), changes=broke)
    assert exit_status(seen, conditions("regression")) == 1
    assert exit_status(seen, Conditions()) == 0


def test_more_compilations_are_a_condition_of_their_own() -> None:
    few, many = result("Served", shapes=shapes(5, 3)), result("Served", shapes=shapes(6, 3))
    compared = compare(run("1"), [few], run("2"), [many])
    assert [change.reason for change in compared.changes] == ["compilations: as called 5 -> 6"]
    seen = replace(view(many), changes=compared.changes)
    assert exit_status(seen, conditions("compilations")) == 1
    assert exit_status(seen, conditions("regression,graph-break")) == 0


def test_missing_results_are_3_unless_a_condition_is_met() -> None:
    assert exit_status(view(PASS, planned=2), Conditions()) == 3
    assert exit_status(view(PASS, planned=2), conditions("no-verdict")) == 1
    assert exit_status(view(PASS, planned=2), conditions("coverage<99")) == 1
    lacking = view(PASS, missing_shards=("2/2",))
    assert exit_status(lacking, Conditions()) == 3


def test_a_run_in_which_nothing_ran_is_3_but_for_a_shard() -> None:
    assert exit_status(view(FAILED, SKIPPED), Conditions()) == 3
    assert exit_status(view(FAILED, PASS), Conditions()) == 0
    assert exit_status(view(SKIPPED, shard="1/2"), Conditions()) == 0
    assert [exit_status_of(r, Conditions()) for r in (PASS, BROKEN, FAILED)] == [0, 0, 3]
    assert exit_status_of(BROKEN, conditions("graph-break")) == 1


def test_an_unknown_condition_is_rejected_with_those_known() -> None:
    for text in ("regresion", "coverage<101", "coverage", "graph_break"):
        with pytest.raises(
            click.BadParameter, match=r"regression, compilations, graph-break, .*coverage<PERC"
        ):
            conditions(text)
