"""What was predicted from one run of what fixes give, held against a later run."""

from __future__ import annotations

from collections.abc import Iterable, Set

import msgspec

from compilewatch.analysis.leverage import (
    UNKNOWN_CAUSE,
    By,
    FixableCauses,
    breaks_of,
    cause_key,
    of_target,
)
from compilewatch.records import Result, Status

Places = dict[str, set[tuple[str, str]]]
"""The functions (file and name) where each cause strikes."""


class PredictionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Predictions held against a later run that evaluated the same models.

    Only models with a verdict in both runs count: `models`, of which `broken` had a graph break and
    `fixed` have none any more. Two predictions are checked:

    - Of the `causes`, `gone` strike no model of the later run, under this or another name. Models
      with these causes only are predicted to have no break: `right` do not have one, `wrong` do.
    - A model whose own causes are all gone from it (`rid`) should have no break. Those in
      `revealed` have one, at another cause, which the fixed ones had hidden. Models whose causes
      were not all known before do not count: only the first break was looked for, or has no reason.
    """

    by: By
    models: int
    broken: int
    fixed: tuple[str, ...]
    causes: int
    gone: int
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    rid: int
    revealed: tuple[str, ...]

    @property
    def precision(self) -> float | None:
        """The share of the first prediction that came true."""
        predicted = len(self.right) + len(self.wrong)
        return len(self.right) / predicted if predicted else None

    @property
    def rid_share(self) -> float | None:
        """The share of the second prediction that came true."""
        return 1 - len(self.revealed) / self.rid if self.rid else None


def check(
    before: Iterable[Result], after: Iterable[Result], by: By, *, target: str | None = None
) -> PredictionCheck:
    """Hold what is predicted from an earlier run against a later one.

    A result's counterpart is of the same model, target, mode, shapes and device, in any
    environment. The targets are those of `leverage`.
    """
    results = tuple(before)
    ranked = of_target([result for result in results if result.breaks], target)
    names = {result.request.target.name for result in ranked}
    olds = {
        _counterpart(result): result
        for result in results
        if result.is_verdict and result.request.target.name in names
    }
    pairs = [
        (olds[_counterpart(new)], new)
        for new in after
        if new.is_verdict and _counterpart(new) in olds
    ]
    olds_by_model = _by_model((old for old, _ in pairs), by)
    news_by_model = _by_model((new for _, new in pairs), by)
    before_all, after_all = _joined(olds_by_model.values()), _joined(news_by_model.values())
    gone = _gone(before_all, after_all)
    broken = {name for name, found in olds_by_model.items() if found}
    still = {new.request.model.name for _, new in pairs if new.status is not Status.PASS}
    predicted = set(without_breaks_once((old for old, _ in pairs), gone, by)) & broken
    causes = FixableCauses((old for old, _ in pairs), by)
    unknown = {name for name, keys in causes.of_model.items() if None in keys}
    rid = {
        name
        for name in broken - unknown
        if _gone(olds_by_model[name], news_by_model[name]) == olds_by_model[name].keys()
    }
    return PredictionCheck(
        by=by,
        models=len(olds_by_model),
        broken=len(broken),
        fixed=tuple(sorted(broken - still)),
        causes=len(before_all),
        gone=len(gone),
        right=tuple(sorted(predicted - still)),
        wrong=tuple(sorted(predicted & still)),
        rid=len(rid),
        revealed=tuple(sorted(rid & still)),
    )


def without_breaks_once(results: Iterable[Result], gone: Set[str], by: By) -> tuple[str, ...]:
    """The models without a graph break if these causes (keys of `FixableCause`) were gone."""
    causes = FixableCauses([result for result in results if result.breaks], by)
    return tuple(name for name, keys in causes.of_model.items() if keys <= gone)


def _gone(before: Places, after: Places) -> set[str]:
    """The causes that strike no more; one that PyTorch renamed still breaks the same function."""
    breaking = set[tuple[str, str]]().union(*after.values())
    return {key for key, places in before.items() if key not in after and not places & breaking}


def _by_model(results: Iterable[Result], by: By) -> dict[str, Places]:
    found: dict[str, Places] = {}
    for result in results:
        places = found.setdefault(result.request.model.name, {})
        for each in breaks_of(result):
            key = cause_key(each, by) or UNKNOWN_CAUSE
            places.setdefault(key, set()).add((each.file, each.function))
    return found


def _joined(every: Iterable[Places]) -> Places:
    found: Places = {}
    for places in every:
        for key, at in places.items():
            found.setdefault(key, set()).update(at)
    return found


def _counterpart(result: Result) -> tuple[str, str, str | None, str, bool, str]:
    target = result.request.target
    name = result.request.model.name
    return name, target.name, target.backend, target.mode.value, target.dynamic, target.device
