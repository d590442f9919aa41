"""The table of rules, the least intrusive first."""

from __future__ import annotations

from compilewatch.extras.fixes.rewriting.rules import attention, branches, checks, loops
from compilewatch.extras.fixes.rewriting.sites import RewriteRule

RULES: tuple[RewriteRule, ...] = (
    *checks.OF_CHECKS,
    *loops.OF_LOOPS,
    *loops.OF_COUNTING,
    *branches.OF_BRANCHES,
    *branches.OF_MASKS,
    *checks.OF_NUMBERS,
    *attention.RULES,
)
