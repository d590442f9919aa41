"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compilewatch.extras.fixes.records import Edit
from compilewatch.extras.fixes.rewriting.sites import Site

Edits = tuple[Edit, ...]
"""What a rule changes at one site, in the order of the lines; empty if it does not apply."""


@dataclass(frozen=True, kw_only=True)
class RewriteRule:
    """A row of the table of rules.

    `when` is a pattern in the code and reason of a break, or in the message of an error of the
    compiler. `before` and `after` are bodies of a function, and `at` the line of `before`, from 1,
    that has the break. With `removes_check`, what was an error of the model is none any more; with
    `other_error` it is one of another type, so that it applies only where nothing catches errors.
    `holds_if` are conditions that no script can try.
    """

    name: str
    summary: str
    when: str
    apply: Callable[[Site], Edits]
    before: str
    after: str
    holds_if: tuple[str, ...]
    at: int = 1
    removes_check: bool = False
    other_error: bool = False


def all_of(*edits: Edit | None) -> Edits:
    """The edits, if all could be made."""
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()
