"""Reviewed overrides: a strict schema, and who each line is for."""

from pathlib import Path

import pytest

from compilewatch.errors import ConfigError
from compilewatch.records import Depth, Mode, Request, Target, Tier
from compilewatch.worker.model.overrides import matching, overrides_of
from tests import factories

HEAD = '[[override]]\nreason = "why"\ndate = 2026-11-21\n'


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    """A request in train mode with a project's own overrides."""
    target = Target(mode=Mode.TRAIN)
    return factories.request("XyzModel", target=target, overrides_dir=str(tmp_path))


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
def test_scopes_narrow_whom_a_line_is_for(
    tmp_path: Path, asked: Request, scope: str, applies: bool
) -> None:
    (tmp_path / "config.toml").write_text(HEAD + scope + "\n")
    assert bool(matching(asked, "XyzModel", "xyz", Tier.REAL, Depth.REDUCED)) is applies


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
def test_a_malformed_file_is_rejected_in_one_line(
    tmp_path: Path, asked: Request, text: str, named: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.toml") as caught:
        overrides_of(asked)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_are_joined_in_order_of_their_names_and_read_again_if_one_changed(
    tmp_path: Path, asked: Request
) -> None:
    shipped = overrides_of(factories.request())
    for name in ("b", "a"):
        (tmp_path / f"{name}.toml").write_text(HEAD.replace("why", name) + 'classes = ["X"]\n')
    first = overrides_of(asked)
    assert first[: len(shipped)] == shipped != ()
    assert [line.reason for line in first[len(shipped) :]] == ["a", "b"]
    assert overrides_of(asked) is first
    (tmp_path / "b.toml").write_text(HEAD.replace("why", "because") + 'classes = ["X"]\n')
    assert [line.reason for line in overrides_of(asked)[len(shipped) :]] == ["a", "because"]
    missing = factories.request("XyzModel", overrides_dir=str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="no such folder"):
        overrides_of(missing)
