"""A finder without processes: which changes remove which places, and what is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from compilewatch.contract.targets import target_label
from compilewatch.extras.fixes.fixing import Finder, Limits
from compilewatch.extras.fixes.records import (
    Fix,
    FixChange,
    FixKind,
    FixStatus,
    FixTrial,
    Verification,
    VerificationStep,
)
from compilewatch.extras.fixes.search import Changes
from compilewatch.records import GraphBreak, Request, Result
from tests import factories


def change(name: str, kind: FixKind = FixKind.SETTING) -> FixChange:
    return FixChange(name=name, kind=kind, summary=f"{name} is set.", lines=("pass",))


def broken(name: str, *places: str, **fields: Any) -> Result:
    breaks = tuple(factories.graph_break(place) for place in places)
    return factories.result(name, breaks=breaks, **fields)


def fingerprint(place: str) -> str:
    return factories.graph_break(place).fingerprint


@dataclass(kw_only=True)
class FakeFinder(Finder):
    """`breaks` by model, `removing` by place: the change that removes it; `unverified`: models."""

    breaks: Mapping[str, tuple[str, ...]]
    removing: Mapping[str, FixChange]
    unverified: frozenset[str] = frozenset()
    limit: str = ""
    searched: list[str] = field(default_factory=list)
    evaluated: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    verified: list[str] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)
    then: Callable[[str], None] = lambda _: None

    def __call__(
        self,
        request: Request,
        limits: Limits,
        *,
        rewrites: bool = True,
        report: Callable[[str, int], None] = lambda *_: None,
    ) -> Fix:
        del rewrites
        name = request.model.name
        self.searched.append(name)
        self.limits.append(limits)
        report("as it is", 0)
        self.then(name)
        places = self.breaks[name]
        removing = [self.removing[place] for place in places if place in self.removing]
        changes = tuple({each.name: each for each in removing}.values())
        left = tuple(factories.graph_break(p) for p in places if p not in self.removing)
        fix = Fix(
            model=name,
            target=target_label(request.target),
            status=FixStatus.NOTHING,
            detail="nothing that was tried is verified",
            breaks=tuple(map(factories.graph_break, places)),
            left=tuple(map(factories.graph_break, places)),
            trials=(FixTrial(changes=(), status="graph_break", detail="", breaks=1, seconds=1.0),),
            limit=self.limit,
            seconds=2.0,
        )
        if not changes or name in self.unverified:
            return fix
        verification = Verification(
            steps=(VerificationStep(name="equal", passed=True),), single_graph=not left
        )
        return _with(fix, changes, left, verification)

    def evaluate(self, request: Request, changes: Changes) -> Result:
        name, names = request.model.name, {each.name for each in changes}
        self.evaluated.append((name, tuple(sorted(names))))
        known = {place: each.name for place, each in self.removing.items()}
        left = [place for place in self.breaks[name] if known.get(place) not in names]
        return broken(name, *left) if left else factories.result(name)

    def verify(self, request: Request, changes: Changes) -> tuple[str, Verification]:
        name = request.model.name
        self.verified.append(name)
        holds = name not in self.unverified
        step = VerificationStep(
            name="results of Inductor", passed=holds, detail="" if holds else "differ"
        )
        return f"# verification of {name}\n", Verification(
            steps=(step,), single_graph=holds, breaks=(1, 0)
        )


def _with(
    fix: Fix, changes: Changes, left: tuple[GraphBreak, ...], verification: Verification
) -> Fix:
    status = FixStatus.IMPROVES if left else FixStatus.VERIFIED
    return msgspec.structs.replace(
        fix,
        status=status,
        detail="fewer" if left else "one graph",
        left=left,
        changes=changes,
        code="code\n",
        script="# verification\n",
        verification=verification,
    )
