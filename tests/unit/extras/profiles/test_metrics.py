"""Metrics of a run's profiles: what they say, and how many there can be."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from compilewatch.extras.profiles import metrics
from compilewatch.extras.profiles.analysis import compare_profiles
from compilewatch.extras.profiles.of_run import RunProfiles
from compilewatch.extras.profiles.records import ProfileComparison
from compilewatch.sinks import prometheus
from compilewatch.sinks.pushgateway import JOB
from tests import profiled
from tests.run_folder import VIEW

BUDGET = 1_391
"""Series that are left of 100,000 at 1,000 models (docs/benchmarks.md)."""


def by_name(count: int, *changes: ProfileComparison) -> dict[str, dict[tuple[str, ...], float]]:
    made, _ = profiled.profile()
    profiles = tuple(
        msgspec.structs.replace(made, model=f"Model{n}", family="bert", downloads=1000 - n)
        for n in range(count)
    )
    found: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
    for name, labels, value in metrics.samples(RunProfiles(profiles=profiles, changes=changes)):
        assert labels not in found[name]
        found[name][labels] = value
    return found


def test_few_models_have_every_batch_size() -> None:
    assert by_name(0) == {}
    found = by_name(1)
    assert {labels[3] for labels in found["compilewatch_latency_seconds"]} == {"1", "4", "8"}
    own = ("Model0", "bert", "inductor")
    assert found["compilewatch_break_cost_ratio"][own] == pytest.approx(0.125)
    assert found["compilewatch_break_cost_downloads"][own] == pytest.approx(125)
    stable = {("eager", "stable"): 1, ("inductor", "stable"): 1}
    assert found["compilewatch_profiles"] == stable


def test_the_series_of_a_thousand_models_fit_the_budget() -> None:
    change = compare_profiles(profiled.profile(), profiled.profile(1.3, seed=1))
    changes = (msgspec.structs.replace(change, model=f"Model{n}") for n in range(1000))
    found = by_name(1000, *changes)
    assert sum(map(len, found.values())) <= BUDGET
    counted = found["compilewatch_profile_changes"]
    assert counted["inductor", "slower"] == 3000
    assert counted["eager", "slower"] == 0  # an alert must see the value fall to zero


def test_every_metric_of_profiles_is_exposed_with_its_labels() -> None:
    view = profiled.with_everything(VIEW)
    found = {name: labels for name, labels, _ in prometheus.groups(view)[(VIEW.run.source,)]}
    text = prometheus.exposition(view).decode()
    for definition in metrics.DEFINITIONS:
        assert len(found[definition.name]) == len(definition.labels), definition.name
        assert f"\n{definition.name}{{" in text, definition.name


def test_a_model_that_was_profiled_on_its_own_has_a_group_of_its_own() -> None:
    groups: dict[tuple[str, ...], bytes] = {}

    def replace(job: str, key: dict[str, str], metrics: CollectorRegistry) -> None:
        groups[(job, *key.values())] = generate_latest(metrics)

    gateway: Any = SimpleNamespace(replace=replace, address="http://here")
    made, _ = profiled.profile()
    for model in ("A", "B"):
        said = metrics.push_profile(gateway, msgspec.structs.replace(made, model=model))
        assert said.startswith("pushgateway: ")
    assert [key[1:] for key in groups] == [("profile", "A"), ("profile", "B")]
    series = b'compilewatch_latency_seconds{batch_size="8",family="unknown",model="B",'
    assert series in groups[JOB, "profile", "B"]
