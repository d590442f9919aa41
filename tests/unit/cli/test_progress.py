"""The lines of progress of a sweep."""

from __future__ import annotations

import pytest

from compilewatch.cli.progress import ProgressBar


def test_a_line_names_the_model_that_is_profiled(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBar()
    progress.on_plan(2, 2, ())
    assert progress.line() == "0:00  2 of 2"
    progress.on_step("BertModel (1 of 1)", 0.0)
    assert progress.line() == "0:00  2 of 2; now profiling BertModel (1 of 1)"
    assert "profiling BertModel (1 of 1)" in capsys.readouterr().err


def test_it_prints_nothing_where_only_json_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressBar(quiet=True)
    progress.on_plan(2, 2, ())
    progress.on_step("BertModel (1 of 1)", 0.0)
    assert capsys.readouterr().err == ""
