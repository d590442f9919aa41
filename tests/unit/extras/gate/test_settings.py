"""Which rule wins, and what a wrong one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.errors import ConfigError, UsageError
from compilewatch.extras.gate.settings import (
    baseline_path,
    project_root,
    project_settings,
    rules_of,
)


def test_a_keyword_wins_over_the_marker_and_that_over_the_settings(tmp_path: Path) -> None:
    settings = {"own": ["mypkg"], "recompilations": 3, "captured_share": 0.5}
    rules = rules_of(tmp_path, settings, {"recompilations": 2}, {"recompilations": None})
    assert (rules.own, rules.recompilations, rules.captured_share) == (("mypkg",), 2, 0.5)
    assert rules_of(tmp_path, settings, {}, {"recompilations": 0}).recompilations == 0


def test_wrong_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.compilewatch]\nrecompilation = 1\n")
    with pytest.raises(ConfigError, match="recompilations"):
        project_settings(tmp_path)
    with pytest.raises(UsageError, match="third_party is 'report' or 'fail', not 'ignore'"):
        rules_of(tmp_path, {"third_party": "ignore"})


@pytest.mark.parametrize(
    "setting",
    ["recompilations = true", 'captured_share = "0.9"', "fullgraph = 1", "own = 3", "models = 1"],
)
def test_a_setting_of_another_type_is_named(tmp_path: Path, setting: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.compilewatch]\n{setting}\n")
    with pytest.raises(ConfigError, match=setting.partition(" ")[0]):
        project_settings(tmp_path)


def test_the_root_is_the_nearest_project(tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").touch()
    (tmp_path / ".git").mkdir()
    assert project_root(inside) == tmp_path / "a"
    (tmp_path / "a" / "pyproject.toml").unlink()
    assert project_root(inside) == tmp_path


def test_the_baseline_is_relative_to_the_root(tmp_path: Path) -> None:
    assert baseline_path(tmp_path, {}, None) == tmp_path / "compilewatch.baseline.json"
    assert (
        baseline_path(tmp_path, {"baseline": "ci/known.json"}, None) == tmp_path / "ci/known.json"
    )
    assert baseline_path(tmp_path, {"baseline": "a.json"}, "b.json") == tmp_path / "b.json"
