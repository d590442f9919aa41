"""Which rule wins, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.errors import ConfigError, UsageError
from compilewatch.extras.gate.settings import baseline_path, project_settings, rules_of


def test_a_keyword_wins_over_the_marker_and_that_over_the_settings(tmp_path: Path) -> None:
    settings = {"own": ["mypkg"], "recompilations": 3, "captured_share": 0.5}
    rules = rules_of(tmp_path, settings, {"recompilations": 2}, {"recompilations": None})
    assert (rules.own, rules.recompilations, rules.captured_share) == (("mypkg",), 2, 0.5)
    assert rules_of(tmp_path, settings, {}, {"recompilations": 0}).recompilations == 0


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.compilewatch]\nrecompilation = 1\n")
    with pytest.raises(ConfigError, match="recompilations"):
        project_settings(tmp_path)
    with pytest.raises(UsageError, match="third_party"):
        rules_of(tmp_path, {"third_party": "ignore"})


def test_the_baseline_is_relative_to_the_root(tmp_path: Path) -> None:
    assert baseline_path(tmp_path, {}, None) == tmp_path / "compilewatch.baseline.json"
    assert (
        baseline_path(tmp_path, {"baseline": "ci/known.json"}, None) == tmp_path / "ci/known.json"
    )
    assert baseline_path(tmp_path, {"baseline": "a.json"}, "b.json") == tmp_path / "b.json"
