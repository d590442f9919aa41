"""The table of rules, the least intrusive first."""

from __future__ import annotations

from compilewatch.extras.fixes.rewriting.rule import Rule
from compilewatch.extras.fixes.rewriting.rules import attention, checks, loops, masks, numbers

RULES: tuple[Rule, ...] = tuple(
    rule for module in (checks, loops, masks, numbers, attention) for rule in module.RULES
)
