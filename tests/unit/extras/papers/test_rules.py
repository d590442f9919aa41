"""Rules of the prompts: the shipped ones, and those that a project adds."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.errors import ConfigError
from compilewatch.extras.papers.calls import load_rules, price_of

RULE = '[[rule]]\nid = "{}"\ntext = "own"\nreason = "a test"\ndate = 2026-11-24\n'


def test_a_project_adds_rules_and_replaces_a_shipped_one(tmp_path: Path) -> None:
    shipped = load_rules(tmp_path / "none.toml")
    assert shipped.rule
    replaced = shipped.rule[-1].id
    path = tmp_path / "rules.toml"
    path.write_text(
        "schema_version = 1\nversion = 77\n" + RULE.format("new") + RULE.format(replaced)
    )

    rules = load_rules(path)

    assert [rule.id for rule in rules.rule] == [
        *("new", replaced),
        *(rule.id for rule in shipped.rule[:-1]),
    ]
    assert (rules.version, rules.rule[1].text) == (77, "own")
    assert rules.sha256 != shipped.sha256


def test_a_malformed_file_of_rules_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("version = 1")
    with pytest.raises(ConfigError, match=r"rules\.toml"):
        load_rules(path)


def test_a_fitting_row_of_a_project_applies_before_a_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        'schema_version = 1\n[[price]]\nmodel = "scripted"\ninput_usd = 1\noutput_usd = 2\n'
        'date = 2020-01-01\nsource = "a test"\n'
    )
    shipped = price_of(tmp_path / "none.toml", "scripted")
    own = price_of(path, "scripted")
    assert shipped is not None
    assert own is not None
    assert (shipped.input_usd, own.input_usd) == (0, 1)
    assert price_of(path, "no-such-model") is None
