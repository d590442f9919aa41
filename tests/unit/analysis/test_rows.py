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


def exported(non_strict: str | None = None, strict: str | None = None, **fields: Any) -> Any:
    made = [
        ExportVariant(exported=code is None, duration_seconds=1.0, code=code)
        for code in (non_strict, strict)
    ]
    detail = ExportDetail(non_strict=made[0], strict=made[1])
    status = Status.PASS if non_strict is None else Status.ERROR
    return on("export", status, details=detail, **fields)


def test_layers_stand_in_the_order_in_which_a_model_passes_them() -> None:
    row = only_row(*(on(name) for name in ("neuron", "xla", "export", "dynamo", "inductor")))
    assert [cell.layer for cell in row.cells] == list(LAYERS)
    assert row.first_failing is None


def test_the_first_layer_that_fails_is_named_and_what_did_not_run_has_not_failed() -> None:
    first = only_row(
        on("dynamo"),
        on("export", Status.UNSUPPORTED),
        on("inductor", Status.MISMATCH, phase=Phase.COMPARE),
        on("xla", Status.ERROR),
    ).first_failing
    assert (first.layer, first.result.status) == ("inductor", Status.MISMATCH)
    row = only_row(on("dynamo", Status.SKIPPED), on("neuron", Status.UNSUPPORTED))
    assert row.cell(EAGER) is None, "where nothing ran, eager neither passed nor failed"
    assert row.first_failing is None


@pytest.mark.parametrize("status", [Status.ERROR, Status.TIMEOUT, Status.OOM, Status.CRASHED])
def test_what_ends_before_the_compiler_in_any_target_fails_in_eager(status: Any) -> None:
    row = only_row(on("dynamo"), on("xla", status, phase=Phase.EAGER))
    first = row.first_failing
    assert (first.layer, first.result.request.target.name) == (EAGER, "xla")
    assert not row.cell("xla").failed


def test_modes_shapes_and_environments_are_rows_of_their_own() -> None:
    targets = [Target(mode=Mode.TRAIN, dynamic=True), Target(environment="torch-2.9")]
    rows = summary.matrix_rows(
        [on("dynamo"), on("xla"), *(on("dynamo", target=target) for target in targets)]
    )
    assert [row.way.label for row in rows] == ["eval", "train/dynamic", "eval@torch-2.9"]
    assert [cell.layer for cell in rows[0].cells] == [EAGER, "dynamo", "xla"]


WHOLE = on("dynamo", fullgraph=FullgraphVerdict(accepted=True))
REFUSED = on("dynamo", fullgraph=FullgraphVerdict(accepted=False, code="GB0170"))


@pytest.mark.parametrize(
    ("results", "lines"),
    [
        ([WHOLE, exported()], []),
        (
            [WHOLE, exported("data_dependent_guard", "x")],
            ["fullgraph=True accepts it, torch.export rejects it: data_dependent_guard"],
        ),
        (
            [REFUSED, exported()],
            ["torch.export exports it, fullgraph=True rejects it: GB0170"],
        ),
        (
            [exported(strict="GB0001")],
            ["torch.export exports it, strict=True rejects it: GB0001"],
        ),
        (
            [exported("constant", None)],
            ["torch.export rejects it, strict=True exports it: constant"],
        ),
        (
            [WHOLE, exported("other", "x", tier=Tier.REAL)],
            [
                "fullgraph=True accepts it, torch.export rejects it: other (evaluated differently: "
                "fake tensors, full depth and real tensors, full depth)"
            ],
        ),
    ],
)
def test_where_compile_and_both_kinds_of_export_disagree_is_said(
    results: list[Any], lines: list[str]
) -> None:
    assert list(only_row(*results).disagreements) == lines


def test_first_failures_are_counted_with_zero_for_layers_that_never_are_first() -> None:
    rows = summary.matrix_rows(
        [on("dynamo"), on("export", Status.ERROR), on("dynamo", model="B"), on("export", model="B")]
    )
    way = EvaluationMode(mode_label="eval", environment=None)
    counts = {(way, EAGER): 0, (way, "dynamo"): 0, (way, "export"): 1}
    assert summary.first_failures(rows) == counts


def test_reasons_are_ranked_for_each_target_with_breaks_and_codes_apart() -> None:
    constant = factories.error("constant")
    view = factories.view(
        on("xla", Status.UNSUPPORTED),
        *(on("export", Status.ERROR, model=name, error=constant) for name in "AB"),
        on("export", Status.TIMEOUT, model="C"),
        on("dynamo", breaks=(factories.graph_break(), factories.graph_break("other"))),
    )
    reasons = summary.reasons_by_target(view)
    assert {
        target: [(r.label, r.phase, r.models) for r in found] for target, found in reasons.items()
    } == {
        "dynamo": [("GB0170 Data-dependent branching", None, 1)],
        "export": [("constant", Phase.COMPILE, 2), ("timeout", Phase.COMPILE, 1)],
        "xla": [],
    }
    assert list(reasons) == ["dynamo", "export", "xla"]
