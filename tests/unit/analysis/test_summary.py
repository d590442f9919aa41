"""The figures of a run, and the rows of models by target."""

from typing import Any

import pytest

from compilewatch.analysis import summary
from compilewatch.analysis.summary import EAGER, LAYERS
from compilewatch.records import (
    Attempt,
    AttemptCode,
    ExportDetail,
    ExportVariant,
    FullgraphVerdict,
    Mode,
    Part,
    Phase,
    Status,
    Target,
    Tier,
)
from tests import example_run
from tests.factories import error, graph_break, result, spec, view

BRANCH = graph_break("a")
OTHER = graph_break("b", "GB0059")
TRAIN = Target(mode=Mode.TRAIN)


def attempt(seconds: float) -> Attempt:
    ended: dict[str, Any] = {"status": Status.ERROR, "phase": Phase.COMPILE, "reason": "x"}
    code, durations = AttemptCode.TRANSIENT, {"create": seconds}
    return Attempt(tier=Tier.FAKE, code=code, durations=durations, **ended)


def test_headline_figures_separate_not_run_from_not_passed() -> None:
    seen = view(
        result("A"),
        result("B", breaks=(BRANCH,)),
        result("C", status=Status.ERROR, phase=Phase.COMPILE),
        result("D", status=Status.TIMEOUT),
        result("E", status=Status.SKIPPED),
        planned=7,
    )
    figures = summary.summarise(seen)
    assert (figures.planned, figures.passed, figures.verdicts) == (7, 1, 3)
    assert (figures.missing, figures.models) == (2, 5)
    assert figures.coverage == summary.coverage(seen) == 3 / 7
    assert figures.untestable_share == summary.untestable_share(seen) == 1 - 3 / 7
    assert summary.passed_share(seen) == 1 / 7
    assert figures.statuses == dict.fromkeys([r.status for r in seen.results], 1)


def test_nothing_is_no_share() -> None:
    seen = view()
    for share in (summary.coverage, summary.untestable_share, summary.reused_share):
        assert share(seen) is summary.overhead(seen) is None
    assert summary.coverage(view(result(status=Status.SKIPPED))) == 0
    assert (summary.top_reasons(seen.results), summary.by_family(seen)) == ((), {})


def test_forecasts_are_in_no_share_and_fail_on_no_target() -> None:
    forecasts = example_run.forecasts()
    seen = view(result("A"), result("B", breaks=(BRANCH,)), *forecasts, planned=6)
    figures = summary.summarise(seen)
    assert (figures.planned, figures.planned_verdicts, figures.missing) == (6, 3, 1)
    assert (figures.coverage, summary.passed_share(seen)) == (2 / 3, 1 / 3)
    alone = view(*forecasts, planned=4)
    for share in (summary.coverage, summary.untestable_share, summary.passed_share):
        assert share(alone) is None
    assert summary.errors(alone) == (("compile", "crashed", 1),)
    assert summary.first_failures(summary.matrix_rows(alone.results)) == {}
    reasons = summary.reasons_by_target(alone)["neuron@lowering"]
    assert [r.words for r in reasons] == ["crashed in compile", "no lowering: aten.histc.default"]


def test_a_result_shared_within_a_run_is_not_reused() -> None:
    own = "20260102-030405-0001"
    runs = {"A": None, "B": own, "C": "20251231-000000-0000", "D": "shard"}
    results = [result(name, reused_from=run) for name, run in runs.items()]
    assert summary.reused_share(view(*results, merged_from=("shard",))) == 1 / 4


def test_overhead_is_wall_times_jobs_over_time_inside() -> None:
    inside = {"setup": 9.0, "create": 2.0, "inputs": 1.0, "eager": 1.0, "compile": 4.0}
    first, reused = attempt(2.0), result("B", durations=inside, reused_from="earlier")
    one = result("A", durations={**inside, "compare": 9.0}, attempts=(first,))
    seen = view(one, reused, wall_seconds=10.0, jobs=2)
    assert summary.overhead(seen) == 10.0 * 2 / (8.0 + 2.0)
    assert summary.overhead(view(one, wall_seconds=None)) is None
    assert summary.overhead(view(reused, wall_seconds=5.0)) is None


def test_downloads_of_an_architecture_count_once_and_no_figure_is_not_zero() -> None:
    library = [
        spec("BertModel", family="bert", downloads=100),
        spec("BertForCausalLM", family="bert", downloads=100),
        spec("GPT2Model", family="gpt2", downloads=10),
        spec("NewModel", family="new"),
    ]
    hub = [spec(f"org/{n}", source="hub", family="bert", downloads=100) for n in "ab"]
    assert summary.downloads_of(library) == 110
    assert summary.downloads_of([*hub, hub[0]]) == 200
    assert summary.downloads_of([spec(), spec("GPT2Model")]) is None
    assert summary.downloads_of([spec(downloads=0)]) == 0


def test_reasons_are_ordered_by_models_or_by_downloads_affected() -> None:
    bert: dict[str, Any] = {"family": "bert", "downloads": 3}
    results = [
        result("BertModel", breaks=(BRANCH, graph_break("c", occurrences=4)), **bert),
        result("BertModel", breaks=(BRANCH,), target=TRAIN, **bert),
        result("BertForCausalLM", breaks=(BRANCH,), **bert),
        result("ViTModel", breaks=(OTHER,), family="vit", downloads=90),
        result("GoodModel", family="good", downloads=1000),
    ]
    first, second = summary.top_reasons(results)
    assert first.label == "GB0170 Data-dependent branching"
    assert (first.models, first.downloads, first.occurrences) == (2, 3, 7)
    places = [place.names for place in first.places]
    assert places == [("BertModel", "BertForCausalLM"), ("BertModel",)]
    assert (second.label, second.models, second.downloads) == ("GB0059 Type GB0059", 1, 90)


def part(repository: str, name: str = "", **fields: Any) -> Any:
    named = f"{repository}#{name}" if name else repository
    kind = Part.COMPONENT if name else Part.WHOLE
    return result(named, source="hub", checkpoint=repository, part=kind, downloads=5, **fields)


def test_repositories_are_counted_whatever_the_number_of_their_parts() -> None:
    seen = view(
        part("org/one"),
        # Of a pipeline, every part that is evaluated counts.
        *(part("org/pipe", "unet", breaks=(BRANCH,)), part("org/pipe", "vae")),
        *(part("org/failed", "unet"), part("org/failed", "vae", status=Status.TIMEOUT)),
        *(part("org/partly", "unet"), part("org/partly", "checker", status=Status.SKIPPED)),
        part("org/skipped", status=Status.SKIPPED),
        # A part whose environment does not exist was not left out on purpose.
        *(part("org/absent", "unet"), part("org/absent", "vae", status=Status.UNSUPPORTED)),
    )
    counts = {Part.WHOLE: (1, 1, 0), Part.COMPONENT: (2, 4, 1), None: (0, 1, 0)}
    assert summary.repositories(seen) == counts
    assert summary.downloads_of(r.request.model for r in seen.results) == 6 * 5
    assert summary.repositories(view(result("BertModel", checkpoint="org/bert"))) == {}
    # Without a part, it is a whole repository.
    whole = view(result("org/a", source="hub", checkpoint="org/a"))
    assert summary.repositories(whole) == {Part.WHOLE: (1, 1, 0)}


# --- rows: a model on all targets ---

HOME = {"xla": "xla", "neuron": "neuron"}


def on(name: str, status: Status = Status.PASS, model: str = "BertModel", **fields: Any) -> Any:
    target = Target(name=name, environment=HOME.get(name, "default"))
    return result(model, status, **{"target": target, **fields})


def only_row(*results: Any) -> Any:
    (row,) = summary.matrix_rows(results)
    return row


def test_the_first_layer_that_fails_is_named_and_what_did_not_run_has_not_failed() -> None:
    row = only_row(*(on(name) for name in reversed(LAYERS[1:])))
    assert [cell.layer for cell in row.cells] == list(LAYERS)
    assert row.first_failing is None
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
def test_what_ends_before_the_compiler_in_any_target_fails_in_eager(status: Status) -> None:
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


def exported(non_strict: str | None = None, strict: str | None = None, **fields: Any) -> Any:
    made = [
        ExportVariant(exported=code is None, duration_seconds=1.0, code=code)
        for code in (non_strict, strict)
    ]
    status = Status.ERROR if non_strict else Status.PASS
    detail = ExportDetail(non_strict=made[0], strict=made[1])
    return on("export", status, details=detail, **fields)


ACCEPTED = on("dynamo", fullgraph=FullgraphVerdict(accepted=True))
REJECTED = on("dynamo", fullgraph=FullgraphVerdict(accepted=False, code="GB0170"))
SIDES = "evaluated differently: fake tensors, full depth and real tensors, full depth"


@pytest.mark.parametrize(
    ("results", "line"),
    [
        ([ACCEPTED, exported()], None),
        (
            [ACCEPTED, exported("dde", "x")],
            "fullgraph=True accepts it, torch.export rejects it: dde",
        ),
        ([REJECTED, exported()], "torch.export exports it, fullgraph=True rejects it: GB0170"),
        ([exported(strict="GB0001")], "torch.export exports it, strict=True rejects it: GB0001"),
        ([exported("const", None)], "torch.export rejects it, strict=True exports it: const"),
        (
            [ACCEPTED, exported("other", "x", tier=Tier.REAL)],
            f"fullgraph=True accepts it, torch.export rejects it: other ({SIDES})",
        ),
    ],
)
def test_where_compile_and_both_kinds_of_export_disagree_is_said(
    results: list[Any], line: str | None
) -> None:
    assert only_row(*results).disagreements == ((line,) if line else ())


def test_first_failures_are_counted_with_zero_for_layers_that_never_are_first() -> None:
    failed = on("export", Status.ERROR)
    others = [on("dynamo", model="B"), on("export", model="B")]
    counts = summary.first_failures(summary.matrix_rows([on("dynamo"), failed, *others]))
    found = {(way.label, layer): count for (way, layer), count in counts.items()}
    assert found == {("eval", EAGER): 0, ("eval", "dynamo"): 0, ("eval", "export"): 1}


def test_reasons_are_ranked_for_each_target_with_breaks_and_codes_apart() -> None:
    view_ = view(
        on("xla", Status.UNSUPPORTED),
        *(on("export", Status.ERROR, model=name, error=error("constant")) for name in "AB"),
        on("export", Status.TIMEOUT, model="C"),
        on("dynamo", breaks=(graph_break(), graph_break("other"))),
    )
    reasons = summary.reasons_by_target(view_)
    assert list(reasons) == ["dynamo", "export", "xla"]
    assert {target: [(r.words, r.models) for r in found] for target, found in reasons.items()} == {
        "dynamo": [("GB0170 Data-dependent branching", 1)],
        "export": [("constant in compile", 2), ("timeout in compile", 1)],
        "xla": [],
    }
