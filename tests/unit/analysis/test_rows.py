from __future__ import annotations

from typing import Any

import pytest

from compilewatch.analysis import summary
from compilewatch.analysis.summary import EAGER, LAYERS, EvaluationMode
from compilewatch.records import (
    ExportDetail,
    ExportVariant,
    FullgraphVerdict,
    Mode,
    Phase,
    Status,
    Target,
    Tier,
)
from tests import factories

HOME = {"xla": "xla", "neuron": "neuron"}


def on(name: str, status: Status = Status.PASS, model: str = "BertModel", **fields: Any) -> Any:
    target = Target(name=name, environment=HOME.get(name, "default"))
    return factories.result(model, status, **{"target": target, **fields})


def only_row(*results: Any) -> Any:
    (row,) = summary.matrix_rows(results)
    return row


def variant(code: str | None = None) -> ExportVariant:
    return ExportVariant(exported=code is None, duration_seconds=1.0, code=code)


def exported(non_strict: str | None = None, strict: str | None = None, **fields: Any) -> Any:
    detail = ExportDetail(non_strict=variant(non_strict), strict=variant(strict))
    status = Status.PASS if non_strict is None else Status.ERROR
    return on("export", status, details=detail, **fields)


def test_layers_stand_in_the_order_in_which_a_model_passes_them() -> None:
    asked = [on(name) for name in ("neuron", "xla", "export", "dynamo", "inductor")]
    row = only_row(*asked)
    assert [cell.layer for cell in row.cells] == list(LAYERS)
    assert row.first_failing is None


def test_the_first_layer_that_fails_is_named_and_what_did_not_run_has_not_failed() -> None:
    row = only_row(
        on("dynamo"),
        on("export", Status.UNSUPPORTED),
        on("inductor", Status.MISMATCH, phase=Phase.COMPARE),
        on("xla", Status.ERROR),
    )
    first = row.first_failing
    assert first is not None
    assert first.layer == "inductor"
    assert first.result is not None
    assert first.result.status is Status.MISMATCH


@pytest.mark.parametrize("status", [Status.ERROR, Status.TIMEOUT, Status.OOM, Status.CRASHED])
def test_what_ends_before_the_compiler_in_any_target_fails_in_eager(status: Any) -> None:
    row = only_row(on("dynamo"), on("xla", status, phase=Phase.EAGER))
    first = row.first_failing
    assert first is not None
    assert (first.layer, first.result and first.result.request.target.name) == (EAGER, "xla")
    assert not row.cell("xla").failed


def test_where_nothing_ran_eager_neither_passed_nor_failed() -> None:
    row = only_row(on("dynamo", Status.SKIPPED), on("neuron", Status.UNSUPPORTED))
    assert row.cell(EAGER) is None
    assert row.first_failing is None


def test_modes_shapes_and_environments_are_rows_of_their_own() -> None:
    matrix = summary.matrix_rows(
        [
            on("dynamo"),
            on("xla"),
            on("dynamo", target=Target(mode=Mode.TRAIN, dynamic=True)),
            on("dynamo", target=Target(environment="torch-2.9")),
        ]
    )
    assert [row.way.label for row in matrix] == ["eval", "train/dynamic", "eval@torch-2.9"]
    assert [cell.layer for cell in matrix[0].cells] == [EAGER, "dynamo", "xla"]


def test_where_compile_and_export_disagree_is_said_both_ways() -> None:
    refused = FullgraphVerdict(accepted=False, code="GB0170")
    whole = on("dynamo", fullgraph=FullgraphVerdict(accepted=True))
    assert only_row(whole, exported("data_dependent_guard", "x")).disagreements == (
        "fullgraph=True accepts it, torch.export rejects it: data_dependent_guard",
    )
    assert only_row(on("dynamo", fullgraph=refused), exported()).disagreements == (
        "torch.export exports it, fullgraph=True rejects it: GB0170",
    )
    assert only_row(whole, exported()).disagreements == ()


def test_strict_and_non_strict_export_may_disagree() -> None:
    assert only_row(exported(strict="GB0001")).disagreements == (
        "torch.export exports it, strict=True rejects it: GB0001",
    )
    assert only_row(exported("constant", None)).disagreements == (
        "torch.export rejects it, strict=True exports it: constant",
    )


def test_a_disagreement_says_where_the_two_were_evaluated_differently() -> None:
    whole = on("dynamo", fullgraph=FullgraphVerdict(accepted=True))
    (line,) = only_row(whole, exported("other", "x", tier=Tier.REAL)).disagreements
    assert line.endswith(
        "(evaluated differently: fake tensors, full depth and real tensors, full depth)"
    )


def test_first_failures_are_counted_with_zero_for_layers_that_never_are_first() -> None:
    failures = summary.matrix_rows(
        [on("dynamo"), on("export", Status.ERROR), on("dynamo", model="B"), on("export", model="B")]
    )
    way = EvaluationMode(mode_label="eval", environment=None)
    assert summary.first_failures(failures) == {
        (way, EAGER): 0,
        (way, "dynamo"): 0,
        (way, "export"): 1,
    }


def test_reasons_are_ranked_for_each_target_with_breaks_and_codes_apart() -> None:
    view = factories.view(
        on("xla", Status.UNSUPPORTED),
        on("export", Status.ERROR, error=factories.error("constant")),
        on("export", Status.ERROR, model="B", error=factories.error("constant")),
        on("export", Status.TIMEOUT, model="C"),
        on("dynamo", breaks=(factories.graph_break(), factories.graph_break("other"))),
    )
    reasons = summary.reasons_by_target(view)
    assert list(reasons) == ["dynamo", "export", "xla"]
    assert [(r.label, r.phase, r.models) for r in reasons["dynamo"]] == [
        ("GB0170 Data-dependent branching", None, 1)
    ]
    assert [(r.label, r.phase, r.models) for r in reasons["export"]] == [
        ("constant", Phase.COMPILE, 2),
        ("timeout", Phase.COMPILE, 1),
    ]
    assert reasons["xla"] == ()
