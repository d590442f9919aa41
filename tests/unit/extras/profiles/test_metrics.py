"""Metrics of a run's profiles: what they say, and how many there can be."""

from __future__ import annotations

import msgspec
import pytest

from compilewatch.extras.profiles import metrics
from compilewatch.extras.profiles.analysis import compare_profiles
from compilewatch.extras.profiles.metrics import DEFINITIONS
from compilewatch.extras.profiles.of_run import RunProfiles
from compilewatch.extras.profiles.records import ProfileComparison
from compilewatch.sinks import prometheus
from tests import profiled
from tests.run_folder import VIEW

BUDGET = 1_391
"""Series that are left of 100,000 at 1,000 models (docs/benchmarks.md)."""


def with_profiles(count: int, changes: tuple[ProfileComparison, ...] = ()) -> RunProfiles:
    made, _ = profiled.profile()
    profiles = tuple(
        msgspec.structs.replace(made, model=f"Model{n}", family="bert", downloads=1000 - n)
        for n in range(count)
    )
    return RunProfiles(profiles=profiles, changes=changes)


def by_name(part: RunProfiles) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    found: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for name, labels, value in metrics.samples(part):
        found.setdefault(name, []).append((labels, value))
    return found


def test_a_run_without_profiles_has_no_such_metrics() -> None:
    assert list(metrics.samples(with_profiles(0))) == []


def test_few_models_have_every_batch_size() -> None:
    found = by_name(with_profiles(1))
    batches = {labels[3] for labels, _ in found["compilewatch_latency_seconds"]}
    assert batches == {"1", "4", "8"}
    costs = dict(found["compilewatch_break_cost_ratio"])
    assert costs["Model0", "bert", "inductor"] == pytest.approx(0.125)
    ranked = dict(found["compilewatch_break_cost_downloads"])
    assert ranked["Model0", "bert", "inductor"] == pytest.approx(125)
    assert dict(found["compilewatch_profiles"]) == {
        ("eager", "stable"): 1,
        ("inductor", "stable"): 1,
    }


def test_the_series_of_a_thousand_models_fit_the_budget() -> None:
    before, samples = profiled.profile()
    slower, others = profiled.profile(1.3, seed=1)
    change = compare_profiles(before, samples, slower, others)
    view = with_profiles(
        1000,
        tuple(msgspec.structs.replace(change, model=f"Model{n}") for n in range(1000)),
    )
    found = list(metrics.samples(view))
    assert len(found) <= BUDGET
    assert len({(name, labels) for name, labels, _ in found}) == len(found)
    counted = dict(by_name(view)["compilewatch_profile_changes"])
    assert counted["inductor", "slower"] == 3000
    assert counted["eager", "slower"] == 0  # an alert must see the value fall to zero


def test_every_metric_of_profiles_is_exposed_with_its_labels() -> None:
    view = profiled.with_everything(VIEW)
    found = {name: labels for name, labels, _ in prometheus.groups(view)[(VIEW.run.source,)]}
    text = prometheus.exposition(view).decode()
    for definition in DEFINITIONS:
        assert len(found[definition.name]) == len(definition.labels), definition.name
        assert f"\n{definition.name}{{" in text, definition.name
