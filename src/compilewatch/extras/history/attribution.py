"""Who changed a result: torch, Transformers, the two together, or compilewatch itself.

Four results decide, of which a comparison has two: old torch with old Transformers, and new torch
with new Transformers. The other two corners of the square have one of each. Where results of the
comparison are of another version of compilewatch, its own two corners are evaluated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple

from compilewatch.analysis.judgement import judge
from compilewatch.records import Record, Result, Status, Target


class ChangeCause(StrEnum):
    """`harness` is compilewatch itself; `not_determined` is never a guess at one of the others."""

    TORCH = "torch"
    TRANSFORMERS = "transformers"
    INTERACTION = "interaction"
    HARNESS = "harness"
    NOT_DETERMINED = "not_determined"


class Versions(NamedTuple):
    """The releases of one corner."""

    torch: str
    transformers: str

    def __str__(self) -> str:
        return f"torch {self.torch} with transformers {self.transformers}"


class Attribution(Record, frozen=True, kw_only=True):
    """The cause of one change. `detail` is one sentence; `corners` are what was found, in words."""

    model: str
    target: Target
    before: Status | None
    after: Status | None
    cause: ChangeCause
    detail: str
    corners: dict[str, str]


Corners = Mapping[Versions, Result | None]
"""The results of today's compilewatch; None where there is none."""


def attribute(
    old: Versions, new: Versions, corners: Corners, *, by_place: bool = False
) -> tuple[ChangeCause, str]:
    """Return the cause of a change from `old` to `new`, and a sentence.

    `corners` has the results of the two ends and, if both packages differ, of the two mixtures.
    `by_place` compares graph breaks as the comparison did that found the change.
    """

    def same(one: Versions, other: Versions) -> bool:
        before, after = corners[one], corners[other]
        assert before is not None
        assert after is not None
        return judge(before, after, by_place=by_place) is None

    mixed = Versions(new.torch, old.transformers), Versions(old.torch, new.transformers)
    for corner in dict.fromkeys((old, *mixed, new)):
        found = corners.get(corner)
        if found is None or not found.is_verdict:
            why = "there is no result" if found is None else f"{found.status} in {found.phase}"
            return ChangeCause.NOT_DETERMINED, f"no verdict of {corner}: {why}"
    if same(old, new):
        return (
            ChangeCause.HARNESS,
            "with today's compilewatch the two versions have the same result",
        )
    if old.transformers == new.transformers:
        return ChangeCause.TORCH, "only torch differs"
    if old.torch == new.torch:
        return ChangeCause.TRANSFORMERS, "only Transformers differs"
    return _of_square(old, new, same)


def _of_square(
    old: Versions, new: Versions, same: Callable[[Versions, Versions], bool]
) -> tuple[ChangeCause, str]:
    torch_only = Versions(new.torch, old.transformers)
    transformers_only = Versions(old.torch, new.transformers)
    torch_changes = not same(old, torch_only)
    transformers_changes = not same(old, transformers_only)
    if not torch_changes and not transformers_changes:
        return (
            ChangeCause.INTERACTION,
            "neither of the two alone changes the result, only both together",
        )
    if torch_changes and transformers_changes:
        alike = same(torch_only, new) and same(transformers_only, new)
        how = "each of the two alone does it" if alike else "each of the two alone changes it"
        return ChangeCause.INTERACTION, how
    changed = torch_only if torch_changes else transformers_only
    name = "torch" if torch_changes else "Transformers"
    if not same(changed, new):
        return ChangeCause.INTERACTION, f"{name} alone changes the result, but to another one"
    return (
        ChangeCause.TORCH if torch_changes else ChangeCause.TRANSFORMERS
    ), f"{name} alone changes the result"
