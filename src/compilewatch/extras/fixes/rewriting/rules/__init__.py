"""The table of rules, the least intrusive first."""

from __future__ import annotations

from compilewatch.extras.fixes.rewriting.rule import RewriteRule
from compilewatch.extras.fixes.rewriting.rules import (
    attention,
    branches,
    checks,
    conditions,
    counting,
    loops,
    masks,
    numbers,
)

RULES: tuple[RewriteRule, ...] = tuple(
    rule
    for module in (conditions, checks, loops, counting, branches, masks, numbers, attention)
    for rule in module.RULES
)
