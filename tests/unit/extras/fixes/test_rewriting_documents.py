"""The documentation has each rule with its example."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilewatch.extras.fixes.rewriting.rules import RULES
from compilewatch.extras.fixes.rewriting.sites import RewriteRule

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_documented(rule: RewriteRule) -> None:
    text = "".join(page.read_text() for page in sorted(DOCS.glob("fixes*.md")))
    assert f"### {rule.name[0].upper()}{rule.name[1:]}\n" in text
    assert rule.before in text
    assert rule.after in text
