import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from compilewatch.records import (
    Earlier,
    Part,
    Phase,
    Result,
    Status,
    XlaDetail,
)
from compilewatch.sinks import prometheus
from tests import example_run, factories, services
from tests.reviewing import assert_as_reviewed


def samples(view: Any) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Metric name -> its (labels, value), read by the official client's parser."""
    by_labels: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(prometheus.exposition(view).decode()):
        for sample in family.samples:
            by_labels.setdefault(sample.name, []).append((sample.labels, sample.value))
    return by_labels


@pytest.mark.process
def test_promtool_finds_nothing_to_complain_about() -> None:
    promtool = services.program("promtool", package="prometheus")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=prometheus.exposition(example_run.view(*example_run.row())),
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_metrics_are_as_reviewed() -> None:
    """Of a run with everything; `metrics.prom` is what a reviewer reads."""
    text = prometheus.exposition(example_run.view(*example_run.row()))
    assert_as_reviewed(text, Path(__file__).with_name("metrics.prom"))


EVAL = {"source": "library", "target": "dynamo", "mode": "eval"}


def test_a_reason_says_which_models_its_fix_alone_leaves_without_breaks() -> None:
    one = factories.graph_break()
    exposed = samples(
        factories.view(
            factories.result("A", breaks=(one,), source="hub", downloads=7),
            factories.result("B", breaks=(one, factories.graph_break("b", "GB0059")), source="hub"),
        )
    )
    models, downloads = (
        {labels["reason"]: count for labels, count in exposed[f"compilewatch_reason_fixed_{what}"]}
        for what in ("models", "downloads")
    )
    assert models == {"GB0170 Data-dependent branching": 1, "GB0059 Type GB0059": 0}
    assert downloads == {"GB0170 Data-dependent branching": 7}


def test_the_counter_has_no_created_sample_and_labels_hold_no_free_text() -> None:
    text = prometheus.exposition(example_run.view()).decode()
    types = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert types.pop("compile_breaks_total") == "counter"
    assert set(types.values()) == {"gauge"}
    assert not [w for w in ("_created", "Could not guard", "alert(1)") if w in text]
    assert 'reason="unbacked_symint"' in text


def test_every_metric_of_the_table_is_exposed_with_its_labels() -> None:
    exposed = samples(example_run.view(*example_run.row()))
    # The example run has requests left without an answer, so it has no success to date.
    finished = samples(factories.view(factories.result()))
    exposed["compilewatch_last_success_timestamp_seconds"] = finished[
        "compilewatch_last_success_timestamp_seconds"
    ]
    # All its models are of the library.
    hub = samples(factories.view(factories.result("org/a", source="hub", checkpoint="org/a")))
    exposed["compilewatch_repositories"] = hub["compilewatch_repositories"]
    table = [d for d in prometheus.DEFINITIONS if d.group in (prometheus.RUN, prometheus.TARGET)]
    for definition in table:
        assert definition.name in exposed, definition.name
        assert set(exposed[definition.name][0][0]) == set(definition.labels), definition.name
    assert set(exposed) == {definition.name for definition in table}


def test_forecasts_alone_have_no_share_and_no_verdicts() -> None:
    view = factories.view(*example_run.forecasts(), baseline=factories.run("20260101-0-0"))
    metrics = samples(view)
    statuses = {labels["status"]: count for labels, count in metrics["compilewatch_results"]}
    assert statuses == {"forecast_pass": 1, "forecast_fail": 1, "crashed": 1}
    ((_, worse),) = metrics["compilewatch_regressed_models"]
    assert worse == 0
    names = ("verdicts", "coverage_ratio", "untestable_ratio", "first_failing_layer")
    assert not {f"compilewatch_{name}" for name in names} & set(metrics)


def test_what_was_not_measured_is_absent_and_a_measured_zero_is_there() -> None:
    skipped = samples(factories.view(factories.result(status=Status.SKIPPED)))
    ((labels, count),) = skipped["compilewatch_results"]
    assert (labels["status"], count) == ("skipped", 1)
    lost = factories.result(status=Status.ERROR, details=XlaDetail())
    for view in (factories.view(factories.result(status=Status.CRASHED)), factories.view(lost)):
        assert not {
            *("compilewatch_unattributed_graph_breaks", "compilewatch_peak_memory_bytes"),
            *("compilewatch_fallbacks", "compilewatch_changes", "compilewatch_repositories"),
        } & set(samples(view))
    passed = factories.view(
        factories.result(unattributed=0), baseline=factories.run("20260101-0-0")
    )
    measured = samples(passed)
    assert measured["compilewatch_unattributed_graph_breaks"][0][1] == 0
    kinds = {labels["kind"]: count for labels, count in measured["compilewatch_changes"]}
    assert kinds == {"regression": 0, "fixed": 0}


def test_models_that_are_still_worse_are_named_and_counted() -> None:
    models, since = "regressed_models", "regressed_since_timestamp_seconds"
    broken = factories.result("A", breaks=(factories.graph_break(),))
    points = [("20260101-030405-0001", Status.PASS), ("20260101-040405-0001", Status.GRAPH_BREAK)]
    history = {("A", "dynamo"): tuple(Earlier(run, status, Phase.DONE) for run, status in points)}
    exposed = samples(factories.view(broken, factories.result("B"), history=history))
    assert exposed[f"compilewatch_{models}"] == [(EVAL, 1)]
    who = {**EVAL, "model": "A", "family": "unknown", "status": "graph_break"}
    began = datetime(2026, 1, 1, 4, 4, 5, tzinfo=UTC).timestamp()
    assert exposed[f"compilewatch_{since}"] == [(who, began)]
    fixed = samples(factories.view(factories.result("A"), history=history))
    assert fixed[f"compilewatch_{models}"] == [(EVAL, 0)]
    assert f"compilewatch_{since}" not in fixed
    assert f"compilewatch_{models}" not in samples(factories.view(broken))


def test_a_run_with_requests_left_has_ended_without_success() -> None:
    def times(view: Any) -> list[float | None]:
        exposed = samples(view)
        names = (
            f"compilewatch_last_{what}_timestamp_seconds" for what in ("completion", "success")
        )
        return [exposed[name][0][1] if name in exposed else None for name in names]

    ended = 1767323105
    assert times(factories.view(factories.result())) == [ended, ended]
    assert times(factories.view(factories.result(), planned=2)) == [ended, None]
    interrupted = factories.view(factories.result(), state="interrupted", finished_at=None)
    assert times(interrupted) == [None, None]


def test_repositories_are_counted_by_what_is_evaluated_of_them() -> None:
    def part(name: str, kind: Part | None, **fields: Any) -> Result:
        repository = name.partition("#")[0]
        return factories.result(name, source="hub", checkpoint=repository, part=kind, **fields)

    exposed = samples(
        factories.view(
            part("org/a", Part.WHOLE),
            part("org/b", Part.WHOLE, status=Status.TIMEOUT),
            *(part("org/pipe#unet", Part.COMPONENT), part("org/pipe#vae", Part.COMPONENT)),
            part("org/code", None, status=Status.SKIPPED),
        )
    )["compilewatch_repositories"]
    assert {(one["part"], one["covered"]): value for one, value in exposed} == {
        ("whole", "yes"): 1,
        ("whole", "no"): 1,
        ("component", "yes"): 1,
        ("component", "no"): 0,
        ("", "yes"): 0,
        ("", "no"): 1,
    }
