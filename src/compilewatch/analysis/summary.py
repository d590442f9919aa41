"""Figures of one run, for tables, reports and metrics: pure functions of a `RunView`.

Models, requests and downloads are three different units. A *request* is a model on a target. A
model counts once whatever the number of targets. The figure of downloads of a library class is
its architecture's, so that it counts once for all classes of a family.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compilewatch.records import (
    ModelSpec,
    Part,
    Phase,
    Result,
    RunView,
    Status,
    reason_label,
    spent,
)

MEASURED = (Phase.CREATE, Phase.INPUTS, Phase.EAGER, Phase.COMPILE)
"""The phases that overhead is measured against: what a result cannot do without."""


@dataclass(frozen=True, kw_only=True)
class VerdictGroup:
    """Verdicts of a family. `downloads` is None where no model of it has a figure."""

    name: str
    models: int
    requests: int
    statuses: dict[Status, int]
    downloads: int | None


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One cause of graph breaks over all models.

    `label` is bounded; `example` is one full reason of torch's. `downloads` are of the models
    affected, None where none has a figure.
    """

    label: str
    gb_id: str | None
    gb_type: str | None
    example: str
    models: int
    families: int
    distinct: int
    occurrences: int
    downloads: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The headline figures. Shares are between 0 and 1, None where there is nothing to share.

    `planned` counts requests, whatever became of them: `missing` are those without a result, lost,
    damaged or not evaluated yet. `passed` is how many compile without graph breaks.
    """

    planned: int
    passed: int
    verdicts: int
    skipped: int
    missing: int
    reused: int
    models: int
    statuses: dict[Status, int]
    fullgraph_accepted: int
    fullgraph_judged: int
    expected: int
    coverage: float | None
    untestable_share: float | None
    reused_share: float | None
    overhead: float | None


@dataclass(frozen=True, kw_only=True)
class Repositories:
    """How many repositories of the Hub a run has results of.

    `covered` are those with a verdict on every part that was not skipped, and on one at least;
    `partly` are those of them with skipped parts. `by_part` has covered and all repositories by
    what is evaluated of them; None is the key of those of which nothing can be built.
    """

    total: int
    covered: int
    partly: int
    by_part: dict[Part | None, tuple[int, int]]


def repositories(view: RunView) -> Repositories | None:
    """Coverage by repository, whatever the number of its components; None without repositories."""
    results: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        if (repository := result.request.model.repository) is not None:
            results[repository].append(result)
    if not results:
        return None
    partly = 0
    total: Counter[Part | None] = Counter()
    covered: Counter[Part | None] = Counter()
    for members in results.values():
        evaluated = [result for result in members if result.status is not Status.SKIPPED]
        part = (evaluated[0].request.model.part or Part.WHOLE) if evaluated else None
        total[part] += 1
        if evaluated and all(result.is_verdict for result in evaluated):
            covered[part] += 1
            partly += len(evaluated) < len(members)
    return Repositories(
        total=total.total(),
        covered=covered.total(),
        partly=partly,
        by_part={part: (covered[part], total[part]) for part in (*Part, None) if total[part]},
    )


def summarise(view: RunView) -> Summary:
    """All headline figures of a run."""
    results = view.results
    judged = [r.fullgraph.accepted for r in results if r.fullgraph is not None]
    return Summary(
        planned=planned(view),
        passed=sum(r.status is Status.PASS for r in results),
        verdicts=sum(r.is_verdict for r in results),
        skipped=sum(r.status is Status.SKIPPED for r in results),
        missing=planned(view) - len(results),
        reused=sum(_is_reused(view, r) for r in results),
        models=len({r.request.model.name for r in results}),
        statuses=status_counts(results),
        fullgraph_accepted=sum(judged),
        fullgraph_judged=len(judged),
        expected=sum(r.expectation is not None for r in results),
        coverage=coverage(view),
        untestable_share=untestable_share(view),
        reused_share=reused_share(view),
        overhead=overhead(view),
    )


def planned(view: RunView) -> int:
    """Requests of the plan: the denominator of every share, so that nothing lost counts as fine.

    Never fewer than there are results: a merge of runs of one request may hold both results.
    """
    return max(view.run.planned, len(view.results))


def is_complete(view: RunView) -> bool:
    """Whether every request of the plan has a result, those of all shards included."""
    evaluated = len(view.results) >= view.run.planned
    return evaluated and not view.run.missing_shards


def passed_share(view: RunView) -> float | None:
    """Requests that compile without graph breaks, divided by those planned."""
    total = planned(view)
    return sum(r.status is Status.PASS for r in view.results) / total if total else None


def coverage(view: RunView) -> float | None:
    """Verdicts divided by planned requests."""
    total = planned(view)
    return sum(r.is_verdict for r in view.results) / total if total else None


def untestable_share(view: RunView) -> float | None:
    """Requests without a verdict (failed, skipped, missing), divided by those planned."""
    covered = coverage(view)
    return 1 - covered if covered is not None else None


def reused_share(view: RunView) -> float | None:
    """Results of earlier runs, divided by all results."""
    results = view.results
    return sum(_is_reused(view, r) for r in results) / len(results) if results else None


def overhead(view: RunView) -> float | None:
    """Wall-clock time times jobs, divided by the time inside children from create to compile.

    None where nothing ran in this run. First attempts that led to a second one count as time
    inside; reused and shared results cost nothing and do not count.
    """
    inside = sum(_inside(r) for r in view.results if r.reused_from is None)
    wall = view.run.wall_seconds
    return wall * view.run.jobs / inside if wall is not None and inside > 0 else None


def status_counts(results: Iterable[Result]) -> dict[Status, int]:
    """Requests by status, in the order of `Status`, without zeros."""
    counts = Counter(r.status for r in results)
    return {status: counts[status] for status in Status if counts[status]}


def by_family(view: RunView) -> tuple[VerdictGroup, ...]:
    """Verdicts by model family, most downloaded first."""
    members: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        members[result.request.model.family].append(result)
    groups = [
        VerdictGroup(
            name=family,
            models=len({r.request.model.name for r in group}),
            requests=len(group),
            statuses=status_counts(group),
            downloads=downloads_of(r.request.model for r in group),
        )
        for family, group in members.items()
    ]
    return tuple(sorted(groups, key=lambda g: (-(g.downloads or 0), -g.models, g.name)))


def top_reasons(view: RunView) -> tuple[Reason, ...]:
    """Causes of graph breaks, by the number of models; errors of the compiler are in `errors`."""
    by_label: defaultdict[str, list[Result]] = defaultdict(list)
    for result in view.results:
        for label in {reason_label(b) for b in result.breaks}:
            by_label[label].append(result)
    reasons = [_reason(label, results) for label, results in by_label.items()]
    return tuple(sorted(reasons, key=lambda r: (-r.models, -(r.downloads or 0), r.label)))


def errors(view: RunView) -> tuple[tuple[str, str, int], ...]:
    """(phase, error code, requests) of everything that ended without a verdict or in an error."""
    counts = Counter(
        (r.phase.value, r.error.code if r.error is not None else r.status.value)
        for r in view.results
        if r.status not in (Status.PASS, Status.GRAPH_BREAK, Status.SKIPPED)
    )
    return tuple((*key, n) for key, n in sorted(counts.items(), key=lambda kv: (-kv[1], kv[0])))


def slowest(view: RunView, count: int = 10) -> tuple[Result, ...]:
    """The results that took longest in this run, attempts included."""
    ran = [r for r in view.results if r.reused_from is None and r.durations]
    return tuple(sorted(ran, key=lambda r: (-spent(r), r.request.model.name))[:count])


def phase_seconds(view: RunView) -> dict[str, float]:
    """Seconds by phase, in their order, of all that ran in this run, attempts included."""
    total: Counter[str] = Counter()
    for result in view.results:
        if result.reused_from is None:
            for durations in (result.durations, *(a.durations for a in result.attempts)):
                total.update(durations)
    order = [phase.value for phase in Phase]
    return {phase: total[phase] for phase in sorted(total, key=order.index)}


def downloads_of(models: Iterable[ModelSpec]) -> int | None:
    """Summed downloads; a figure that models of a family or repository share counts once."""
    figures: dict[tuple[str, str], int] = {}
    for model in models:
        if model.downloads is None:
            continue
        shared = model.source == "library"
        key = ("family", model.family) if shared else ("model", model.repository or model.name)
        figures[key] = max(figures.get(key, 0), model.downloads)
    return sum(figures.values()) if figures else None


def _reason(label: str, results: Sequence[Result]) -> Reason:
    breaks = [b for r in results for b in r.breaks if reason_label(b) == label]
    models = [r.request.model for r in results]
    return Reason(
        label=label,
        gb_id=breaks[0].gb_id,
        gb_type=breaks[0].gb_type,
        example=breaks[0].reason,
        models=len({m.name for m in models}),
        families=len({m.family for m in models}),
        distinct=len({b.fingerprint for b in breaks}),
        occurrences=sum(b.occurrences for b in breaks),
        downloads=downloads_of(models),
    )


def _is_reused(view: RunView, result: Result) -> bool:
    """Whether an earlier run made it; a result shared within the run names the run itself."""
    own = (None, view.run.id, *view.run.merged_from)
    return result.reused_from not in own


def _inside(result: Result) -> float:
    every = [result.durations, *(attempt.durations for attempt in result.attempts)]
    return sum(seconds.get(phase.value, 0.0) for seconds in every for phase in MEASURED)
