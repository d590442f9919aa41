"""The table of rules, the least intrusive first."""

from __future__ import annotations

from compilewatch.extras.fixes.rewriting.rule import Rule
from compilewatch.extras.fixes.rewriting.rules import attention

RULES: tuple[Rule, ...] = (*attention.RULES,)
