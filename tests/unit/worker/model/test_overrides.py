"""Reviewed overrides: a strict schema, and who each line is for."""

from pathlib import Path

import pytest

from compilewatch import data
from compilewatch.errors import ConfigError
from compilewatch.records import Depth, Mode, Tier
from compilewatch.worker.model.overrides import Overrides, load_overrides, overrides_of
from tests import factories

HEAD = '[[override]]\nreason = "why"\ndate = 2026-11-21\n'


def _load(tmp_path: Path, text: str) -> Overrides:
    (tmp_path / "config.toml").write_text(text)
    return load_overrides(tmp_path)


@pytest.mark.parametrize(
    ("scope", "applies"),
    [
        ('model_types = ["xyz"]', True),
        ('model_types = ["abc"]', False),
        ('classes = ["XyzModel"]', True),
        ('classes = ["XyzForCausalLM"]', False),
        ('model_types = ["xyz"]\nclasses = ["XyzForCausalLM"]', False),
        ('model_types = ["xyz"]\ntiers = ["real"]', True),
        ('model_types = ["xyz"]\ntiers = ["fake"]', False),
        ('model_types = ["xyz"]\ndepths = ["reduced"]', True),
        ('model_types = ["xyz"]\ndepths = ["full"]', False),
        ('model_types = ["xyz"]\nmodes = ["train"]', True),
        ('model_types = ["xyz"]\nmodes = ["eval"]', False),
        ('model_types = ["xyz"]\ntransformers = ">=4,<99"', True),
        ('model_types = ["xyz"]\ntransformers = "<4"', False),
    ],
)
def test_scopes_narrow_whom_a_line_is_for(tmp_path: Path, scope: str, applies: bool) -> None:
    overrides = _load(tmp_path, HEAD + scope + "\n")
    scope_asked = ("XyzModel", "xyz", Tier.REAL, Depth.REDUCED, Mode.TRAIN)
    assert bool(overrides.matching(*scope_asked)) is applies


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (HEAD + 'model_types = ["xyz"]\nlayers = 3\n', "`layers`"),
        ('[[override]]\nmodel_types = ["xyz"]\nreason = "why"\n', "`date`"),
        ('[[override]]\nmodel_types = ["xyz"]\ndate = 2026-11-21\nreason = " "\n', "`reason`"),
        (HEAD, "`model_types` or `classes`"),
        (HEAD + 'model_types = ["xyz"]\ntransformers = "five"\n', "`transformers`"),
        (HEAD + 'model_types = ["xyz"]\ntiers = ["half"]\n', "tiers"),
        ("[[override]\n", "line 1"),
        (HEAD + 'model_types = ["xyz"]\npackages = ["timm"]\n', "`packages` need `classes`"),
        (HEAD + 'classes = ["Xyz"]\nmodule = "xyz"\n', "`module` needs `packages`"),
    ],
)
def test_a_malformed_file_is_rejected_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, text)
    message = str(caught.value)
    assert "config.toml" in message
    assert named in message
    assert "\n" not in message


def test_files_are_joined_in_order_of_their_names_and_read_again_if_one_changed(
    tmp_path: Path,
) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(HEAD.replace("why", name) + 'classes = ["X"]\n')
    first = load_overrides(tmp_path)
    assert [line.reason for line in first.override] == ["a", "b"]
    assert load_overrides(tmp_path) is first
    (tmp_path / "b.toml").write_text(HEAD.replace("why", "because") + 'classes = ["X"]\n')
    assert [line.reason for line in load_overrides(tmp_path).override] == ["a", "because"]


def test_a_request_uses_the_shipped_ones_and_then_those_of_its_project(tmp_path: Path) -> None:
    assert load_overrides().override == ()
    with pytest.raises(ConfigError, match="no such folder"):
        load_overrides(tmp_path / "missing")
    shipped = overrides_of(factories.request("XyzModel")).override
    assert shipped == load_overrides(data.OVERRIDES).override != ()
    (own,) = _load(tmp_path, HEAD + 'classes = ["XyzModel"]\n').override
    asked = factories.request("XyzModel", overrides_dir=str(tmp_path))
    assert overrides_of(asked).override == (*shipped, own)
