from __future__ import annotations

from typing import Any

import pytest

from compilewatch import records
from compilewatch.analysis.summary import (
    by_family,
    coverage,
    downloads_of,
    errors,
    overhead,
    passed_share,
    repositories,
    reused_share,
    slowest,
    status_counts,
    summarise,
    top_reasons,
    untestable_share,
)
from tests.factories import graph_break, result, spec, view

BRANCH = graph_break("a")
OTHER = graph_break("b", "GB0059")


def test_headline_figures_separate_not_run_from_not_passed() -> None:
    seen = view(
        result("A"),
        result("B", breaks=(BRANCH,)),
        result("C", status=records.Status.ERROR, phase=records.Phase.COMPILE),
        result("D", status=records.Status.TIMEOUT),
        result("E", status=records.Status.SKIPPED),
        planned=7,
    )
    summary = summarise(seen)
    assert (summary.planned, summary.passed, summary.verdicts) == (7, 1, 3)
    assert (summary.skipped, summary.missing, summary.models) == (1, 2, 5)
    assert (summary.fullgraph_accepted, summary.fullgraph_judged) == (1, 2)
    assert summary.coverage == coverage(seen) == 3 / 7
    assert summary.untestable_share == untestable_share(seen) == 1 - 3 / 7
    assert passed_share(seen) == 1 / 7
    assert list(summary.statuses) == [
        records.Status.PASS,
        records.Status.GRAPH_BREAK,
        records.Status.ERROR,
        records.Status.TIMEOUT,
        records.Status.SKIPPED,
    ]


def test_nothing_is_no_share() -> None:
    seen = view()
    assert (coverage(seen), untestable_share(seen), reused_share(seen), overhead(seen)) == (
        None,
        None,
        None,
        None,
    )
    assert coverage(view(result(status=records.Status.SKIPPED))) == 0
    assert top_reasons(seen.results) == ()
    assert by_family(seen) == {}


def test_a_result_shared_within_a_run_is_not_reused() -> None:
    own = "20260102-030405-0001"
    seen = view(
        result("A"),
        result("B", reused_from=own),
        result("C", reused_from="20251231-000000-0000"),
        result("D", reused_from="shard"),
        merged_from=("shard",),
    )
    assert reused_share(seen) == 1 / 4


def test_overhead_is_wall_times_jobs_over_time_inside() -> None:
    inside = {
        "setup": 9.0,
        "create": 2.0,
        "inputs": 1.0,
        "eager": 1.0,
        "compile": 4.0,
        "compare": 9.0,
    }
    first = records.Attempt(
        tier=records.Tier.FAKE,
        status=records.Status.ERROR,
        phase=records.Phase.COMPILE,
        code=records.AttemptCode.TRANSIENT,
        reason="x",
        durations={"create": 2.0},
    )
    seen = view(
        result("A", durations=inside, attempts=(first,)),
        result("B", durations=inside, reused_from="earlier"),
        wall_seconds=10.0,
        jobs=2,
    )
    assert overhead(seen) == 10.0 * 2 / (8.0 + 2.0)


def test_overhead_is_unknown_where_nothing_was_measured() -> None:
    assert overhead(view(result("A"), wall_seconds=None)) is None
    assert overhead(view(result("A", reused_from="earlier"), wall_seconds=5.0)) is None


def test_downloads_of_an_architecture_count_once_for_its_classes() -> None:
    library = [
        spec("BertModel", family="bert", downloads=100),
        spec("BertForCausalLM", family="bert", downloads=100),
        spec("GPT2Model", family="gpt2", downloads=10),
        spec("NewModel", family="new"),
    ]
    assert downloads_of(library) == 110


def test_downloads_of_models_on_the_hub_add_up() -> None:
    hub = [spec(f"org/{n}", source="hub", family="bert", downloads=100) for n in "ab"]
    assert downloads_of([*hub, hub[0]]) == 200


def test_no_figure_is_not_zero() -> None:
    assert downloads_of([spec(), spec("GPT2Model")]) is None
    assert downloads_of([spec(downloads=0)]) == 0


def test_families_come_by_their_downloads() -> None:
    seen = view(
        result("BertModel", family="bert", task="text", downloads=5),
        result(
            "BertModel",
            breaks=(BRANCH,),
            target=records.Target(mode=records.Mode.TRAIN),
            family="bert",
            task="text",
            downloads=5,
        ),
        result("ViTModel", family="vit", task="vision", downloads=50),
        result("NewModel", family="new", task="vision"),
    )
    families = by_family(seen)
    assert list(families) == ["vit", "bert", "new"]
    assert status_counts(families["bert"]) == {
        records.Status.PASS: 1,
        records.Status.GRAPH_BREAK: 1,
    }


def test_reasons_are_ordered_by_models_or_by_downloads_affected() -> None:
    seen = view(
        result(
            "BertModel",
            breaks=(BRANCH, graph_break("c", occurrences=4)),
            family="bert",
            downloads=3,
        ),
        result(
            "BertModel",
            breaks=(BRANCH,),
            family="bert",
            downloads=3,
            target=records.Target(mode=records.Mode.TRAIN),
        ),
        result("BertForCausalLM", breaks=(BRANCH,), family="bert", downloads=3),
        result("ViTModel", breaks=(OTHER,), family="vit", downloads=90),
        result("GoodModel", family="good", downloads=1000),
    )
    first, second = top_reasons(seen.results)
    assert first.label == "GB0170 Data-dependent branching"
    assert (first.models, first.downloads, first.occurrences) == (2, 3, 7)
    assert [place.names for place in first.places] == [
        ("BertModel", "BertForCausalLM"),
        ("BertModel",),
    ]
    assert (second.label, second.models, second.downloads) == ("GB0059 Type GB0059", 1, 90)


def test_errors_are_counted_by_phase_and_code() -> None:
    seen = view(
        result("A", status=records.Status.ERROR, phase=records.Phase.CREATE),
        result("B", status=records.Status.ERROR, phase=records.Phase.CREATE),
        result("C", status=records.Status.TIMEOUT, phase=records.Phase.COMPILE),
        result("D", status=records.Status.SKIPPED),
        result("E", breaks=(BRANCH,)),
    )
    assert errors(seen) == (("create", "backend_error", 2), ("compile", "timeout", 1))


def test_the_slowest_are_those_that_ran_here() -> None:
    first = records.Attempt(
        tier=records.Tier.FAKE,
        status=records.Status.ERROR,
        phase=records.Phase.COMPILE,
        code=records.AttemptCode.TRANSIENT,
        reason="x",
        durations={"create": 9.0},
    )
    seen = view(
        result("A", durations={"compile": 5.0}),
        result("B", durations={"compile": 1.0}, attempts=(first,)),
        result("C", durations={"compile": 99.0}, reused_from="earlier"),
        result("D", status=records.Status.SKIPPED),
    )
    assert [r.request.model.name for r in slowest(seen.results)] == ["B", "A"]
    assert [r.request.model.name for r in slowest(seen.results, count=1)] == ["B"]


@pytest.mark.parametrize("status", list(records.Status))
def test_statuses_are_counted_without_zeros(status: records.Status) -> None:
    assert status_counts([result(status=status)] * 3) == {status: 3}


def part(repository: str, name: str = "", **fields: Any) -> records.Result:
    named = f"{repository}#{name}" if name else repository
    kind = records.Part.COMPONENT if name else records.Part.WHOLE
    return result(named, source="hub", checkpoint=repository, part=kind, downloads=5, **fields)


def test_repositories_are_counted_whatever_the_number_of_their_parts() -> None:
    seen = view(
        part("org/one"),
        # Of a pipeline, every part that is evaluated counts.
        *(part("org/pipe", "unet", breaks=(BRANCH,)), part("org/pipe", "vae")),
        *(part("org/failed", "unet"), part("org/failed", "vae", status=records.Status.TIMEOUT)),
        *(part("org/partly", "unet"), part("org/partly", "checker", status=records.Status.SKIPPED)),
        part("org/skipped", status=records.Status.SKIPPED),
        # A part whose environment does not exist was not left out on purpose.
        *(part("org/absent", "unet"), part("org/absent", "vae", status=records.Status.UNSUPPORTED)),
    )
    assert repositories(seen) == {
        records.Part.WHOLE: (1, 1, 0),
        records.Part.COMPONENT: (2, 4, 1),
        None: (0, 1, 0),
    }
    assert downloads_of(r.request.model for r in seen.results) == 6 * 5
    assert repositories(view(result("BertModel", checkpoint="org/bert"))) == {}
    # Without a part, it is a whole repository.
    whole = view(result("org/a", source="hub", checkpoint="org/a"))
    assert repositories(whole) == {records.Part.WHOLE: (1, 1, 0)}
