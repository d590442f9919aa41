"""A finder without processes: which changes remove which places, and what is verified."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from compilewatch.extras.fixes import records
from compilewatch.extras.fixes.fixing import Finder
from compilewatch.extras.fixes.search import Changes, Limits, nothing, verified
from compilewatch.records import Request, Result
from tests import factories


def change(
    name: str, kind: records.FixKind = records.FixKind.SETTING, **fields: Any
) -> records.FixChange:
    return records.FixChange(
        name=name, kind=kind, summary=f"{name} is set.", lines=("pass",), **fields
    )


SCALARS = change("capture_scalar_outputs=True")
SHAPES = change("capture_dynamic_output_shape_ops=True")


def broken(name: str, *places: str, **fields: Any) -> Result:
    return factories.result(name, breaks=tuple(map(factories.graph_break, places)), **fields)


@dataclass(kw_only=True)
class FakeFinder(Finder):
    """`breaks` by model, `removing` by place: the change that removes it; `unverified`: models."""

    breaks: Mapping[str, tuple[str, ...]]
    removing: Mapping[str, records.FixChange] = field(
        default_factory=lambda: {"item": SCALARS, "nonzero": SHAPES}
    )
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
    ) -> records.Fix:
        del rewrites
        name = request.model.name
        self.searched.append(name)
        self.limits.append(limits)
        report("as it is", 0)
        self.then(name)
        places = self.breaks[name]
        trial = records.FixTrial(changes=(), status="graph_break", detail="", breaks=1, seconds=1.0)
        fix = nothing(request, tuple(map(factories.graph_break, places)))
        changes = dict.fromkeys(self.removing[place] for place in places if place in self.removing)
        if changes and name not in self.unverified:
            left = tuple(factories.graph_break(p) for p in places if p not in self.removing)
            step = records.VerificationStep(name="equal", passed=True)
            outcome = records.Verification(steps=(step,), single_graph=not left)
            fix = verified(lambda _: ("# verification\n", outcome), fix, tuple(changes))
            fix = msgspec.structs.replace(fix, left=left)
        return msgspec.structs.replace(fix, trials=(trial,), limit=self.limit, seconds=2.0)

    def evaluate(self, request: Request, several: Sequence[Changes]) -> list[Result]:
        (changes,) = several
        name, names = request.model.name, {change.name for change in changes}
        self.evaluated.append((name, tuple(sorted(names))))
        known = {place: change.name for place, change in self.removing.items()}
        left = [place for place in self.breaks[name] if known.get(place) not in names]
        return [broken(name, *left) if left else factories.result(name)]

    def verify(self, request: Request, changes: Changes) -> tuple[str, records.Verification]:
        name = request.model.name
        self.verified.append(name)
        holds = name not in self.unverified
        detail = "" if holds else "differ"
        step = records.VerificationStep(name="results of Inductor", passed=holds, detail=detail)
        verification = records.Verification(steps=(step,), single_graph=holds, breaks=(1, 0))
        return f"# verification of {name}\n", verification


def finder(results: Sequence[Result], **fields: Any) -> FakeFinder:
    breaks = {r.request.model.name: tuple(b.function for b in r.breaks) for r in results}
    return FakeFinder(breaks=breaks, **fields)
