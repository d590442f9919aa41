"""The plug-in's options and settings, and the page about them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from compilewatch.extras.gate import plugin
from compilewatch.extras.gate.settings import RULES, SETTINGS

PAGE = (Path(__file__).parents[4] / "docs" / "gate.md").read_text()


def test_every_option_and_setting_is_documented_and_no_other() -> None:
    parser = pytest.Parser(_ispytest=True)
    plugin.pytest_addoption(parser)
    options = {name for each in parser._anonymous.options for name in each.names()}
    options |= {name for group in parser._groups for each in group.options for name in each.names()}
    assert set(re.findall(r"`(--compilewatch-[\w-]+)", PAGE)) == options
    rows = set(
        re.findall(r"^\| `(\w+)` \|", PAGE[: PAGE.index("The options of pytest")], re.MULTILINE)
    )
    assert rows == set(SETTINGS)


def test_the_marker_names_every_rule() -> None:
    """The rules are also the fixture's keywords, whose order `RULES` has."""
    from compilewatch.extras.gate.fixture import CompileCheck

    said = inspect.getsource(plugin.pytest_configure)
    assert all(f"{rule}=" in said for rule in RULES)
    keywords = inspect.signature(CompileCheck.__call__).parameters
    assert [name for name in keywords if name in RULES] == list(RULES)
