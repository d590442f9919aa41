from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from compilewatch.analysis.leverage import By, leverage, verified_fixes
from compilewatch.cli import tables as render
from compilewatch.cli.tables import fixes_table, stored_fix_text
from compilewatch.records import (
    Attempt,
    AttemptCode,
    FullgraphVerdict,
    ModelFix,
    Part,
    Phase,
    Quantization,
    Status,
    Target,
    Tier,
)
from compilewatch.report import terminal as panel
from compilewatch.report import wording
from compilewatch.report.terminal import SourceLine
from tests import example_run, factories


def piped(renderable: Any) -> str:
    stream = io.StringIO()
    panel.console(stream).print(renderable)
    return stream.getvalue()


def narrow(renderable: Any) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=80).print(renderable)
    return stream.getvalue().splitlines()


def many_families(count: int) -> Any:
    return [
        factories.result(f"Model{i}", family=f"family{i}", downloads=1000 - i) for i in range(count)
    ]


def test_the_summary_counts_verdicts_by_family_and_in_all() -> None:
    text = piped(render.summary_table(example_run.view()))
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    header = "Family pass breaks mismatch error no verdict not run"
    assert header in " ".join(text.split())
    assert rows["bert"] == ["·", "2", "·", "·", "·", "·"]
    assert rows["gpt"] == ["·", "·", "1", "·", "4", "·"]
    assert rows["all"] == ["7", "3", "2", "1", "1", "5", "2"]


def test_small_families_are_added_up() -> None:
    twice = factories.result("Again", family="family0", downloads=1000)
    text = piped(render.summary_table(factories.view(*many_families(18), twice)))
    assert "3 other families 3" in " ".join(text.split())
    assert "family14 " in text
    assert "family15 " not in text
    # With one model in each family the table would say what the headline says.
    assert "Family" not in piped(render.summary_table(factories.view(*many_families(18))))


def test_reasons_are_ranked_by_models_and_shown_once() -> None:
    a, b = factories.graph_break(), factories.graph_break(gb_id="GB0001")
    results = [
        factories.result("One", breaks=(a,), source="hub", downloads=1),
        factories.result("Two", breaks=(a,), source="hub", downloads=2),
        factories.result("Three", breaks=(b,), source="hub", downloads=50),
    ]
    text = piped(render.summary_table(factories.view(*results)))
    assert text.index("GB0170") < text.index("GB0001")
    assert text.count("Reasons of graph breaks") == 1
    assert "downloads affected" not in text


def test_the_end_of_a_sweep_names_what_does_not_pass_with_its_line() -> None:
    a = factories.graph_break(gb_id="GB0170", gb_type="Data-dependent branching")
    failed = factories.result(
        "Failed", status=Status.ERROR, phase=Phase.CREATE, detail="no weights at /data/x"
    )
    results = [
        factories.result("Passing", downloads=9000),
        factories.result("Known", breaks=(a,), downloads=8000, expectation="reviewed"),
        factories.result("Broken", breaks=(a,), downloads=500),
        failed,
    ]
    text = piped(render.summary_table(factories.view(*results)))
    lines = text[text.index("Does not pass") :].splitlines()
    assert [line.split()[0] for line in lines[2:5]] == ["Broken", "Failed", "Known"]
    place = f"{a.file.rpartition('/')[2]}:{a.line} in {a.function}"
    assert place in lines[2]
    assert "Data-dependent branching" in lines[2]
    assert "no weights at /data/x" in lines[3]
    assert "For details, run: compilewatch explain Broken" in text


def test_the_list_of_what_does_not_pass_is_short() -> None:
    broken = [factories.result(f"B{n}", breaks=(factories.graph_break(),)) for n in range(13)]
    text = piped(render.summary_table(factories.view(*broken)))
    assert "3 more in the report" in text
    assert "Does not pass" not in piped(render.summary_table(factories.view(factories.result())))


def test_the_summary_names_the_baseline_and_puts_regressions_first() -> None:
    text = piped(render.summary_table(example_run.view()))
    counted = "compared with 20260101-030405-0001: 1 regression, 1 fixed, 1 new, 1 gone"
    assert counted in text
    assert "the runs differ in torch 2.12.0 -> 2.13.0" in text
    assert text.index("Regressions ") < text.index("Fixed ")
    assert "pass -> graph_break; revision aaaa -> bbbb" in text


def test_without_a_baseline_no_change_is_spoken_of() -> None:
    text = piped(render.summary_table(factories.view(factories.result())))
    assert "regression" not in text
    assert piped(render.changes_table(factories.view())) == "no baseline to compare with\n"


def test_the_summary_says_what_has_no_result_and_no_verdict() -> None:
    text = piped(render.summary_table(example_run.view()))
    assert "3 of 17 requests compile without graph breaks (17.6 %); 2 with graph breaks;" in text
    assert "; 3 without a result\n" in text
    assert "coverage 41.2 %: 7 verdicts for 17 planned requests" in text
    assert "3 of 17 planned requests have no result: not run is not passed" in text
    assert "with 2 jobs" in text


def test_changes_shows_every_kind() -> None:
    text = piped(render.changes_table(example_run.view()))
    headings = ["Regressions", "Fixed", "New", "Removed", "Newly tested", "No longer tested"]
    places = [text.index(f"\n{heading} ") for heading in headings]
    assert places == sorted(places)
    assert "GoneModel" in text
    assert "baseline 20260101-030405-0001  library, finished" in text
    assert "run      20260102-030405-0001  library, " in text


def test_text_of_others_is_neither_markup_nor_commands_to_the_terminal() -> None:
    view = example_run.view()
    shown = [render.summary_table(view), *map(panel.model_panel, view.results)]
    text = "".join(map(piped, shown))
    assert "<script>alert(1)</script> & \"quoted\" 'single' red [bold]" in text
    assert "team/odd name [x] ü" in text
    assert "\x1b" not in text
    assert "\x00" not in text


def test_lines_of_a_pipe_have_no_trailing_spaces() -> None:
    table = panel.plain_table("Name", "Why")
    table.add_row("short", "a long reason")
    table.add_row("long name", "x")
    lines = piped(table).splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert [line.split() for line in lines[-2:]] == [
        ["short", "a", "long", "reason"],
        ["long", "name", "x"],
    ]


def test_piped_output_neither_cuts_nor_folds_a_name() -> None:
    name = "organisation/" + "a-very-long-name-" * 20
    result = factories.result(name, breaks=(example_run.BRANCH,))
    assert name in piped(panel.model_panel(result))
    change = msgspec.structs.replace(example_run.view().changes[0], model=name)
    view = factories.view(
        result,
        baseline=factories.run("20260101-000000-0001"),
        changes=(
            type(change)(
                **{f: getattr(change, f) for f in change.__struct_fields__} | {"model": name}
            ),
        ),
    )
    for table in (render.summary_table(view), render.changes_table(view)):
        assert name in piped(table)
        assert "…" not in piped(table)


def test_tables_fit_eighty_columns_with_every_outcome() -> None:
    view = example_run.view()
    for table in (
        render.summary_table(view),
        render.changes_table(view),
        render.runs_table([view.run], {}),
    ):
        assert max(map(len, narrow(table))) <= 80
    row = next(line for line in narrow(render.summary_table(view)) if line.startswith("Family"))
    assert "not run" in row


def test_colour_is_for_terminals_and_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    table = render.summary_table(example_run.view())
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, color_system="standard", width=80).print(table)
    assert "\x1b[3" in stream.getvalue()
    assert "\x1b" not in piped(table)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[3" not in piped(table)


def test_runs_are_listed_in_the_order_given() -> None:
    runs = [
        factories.run("20260102-030405-0001", shard="1/4"),
        factories.run("20260101-030405-0001", state="interrupted", wall_seconds=None),
    ]
    lines = piped(render.runs_table(runs, {runs[0].id: 1})).splitlines()
    assert lines[-2].split() == [
        "20260102-030405-0001",
        "library",
        "1/4",
        "finished",
        "1/1",
        "1",
        "min",
        "00",
        "s",
        "2.13.0",
        "5.23.0",
    ]
    assert "interrupted" in lines[-1]
    assert piped(render.runs_table([], {})) == "no runs stored yet\n"


def excerpt(file: str, line: int) -> tuple[SourceLine, ...]:
    code = {411: "    mask = self.mask", 412: "    if mask.sum() > 0:", 413: "        return"}
    return tuple(SourceLine(n, code[n]) for n in sorted(code)) if line == 412 else ()


def test_a_model_is_shown_with_each_break_and_its_line_marked() -> None:
    lines = piped(panel.model_panel(example_run.results()[0], excerpt)).splitlines()
    text = "\n".join(line.strip() for line in lines)
    assert lines[0].startswith("BertModel  dynamo  graph break")
    assert lines[1].startswith(
        "99.2 % captured (1,190 of 1,200 operators) · 7 graph breaks (2 distinct) · 8 graphs · fake"
    )
    assert "512 ops · 40 guards" in text
    assert re.search(r"aten\.item\.default +6", text)
    assert (
        "fullgraph=True rejected (compiled to check) · 110 M parameters · 700 MiB · 2.0 s" in text
    )
    assert "1. GB0170 Data-dependent branching  6 times" in text
    assert "transformers/models/bert/modeling_bert.py:412 in BertEncoder.forward" in text
    assert "411 |     mask = self.mask\n> 412 |     if mask.sum() > 0:\n413 |" in text
    assert "hint: Use `torch.cond` to express dynamic control flow." in text
    assert "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0170.html" in text
    assert "2. unbacked_symint  once" in text
    assert "input input_ids: [2, 16] int64" in text
    assert "compilewatch reproduce BertModel" in text


def test_the_stored_lines_come_before_those_of_the_installed_source() -> None:
    stored = factories.graph_break(line=412, source_start=412, source=("if x:", "    return"))
    text = piped(panel.model_panel(factories.result(breaks=(stored,)), excerpt))
    assert "> 412 | if x:\n" in text
    assert "413 |     return\n" in text
    assert "self.mask" not in text


def test_indented_text_wraps_within_eighty_columns_and_is_not_padded() -> None:
    shown = panel.model_panel(example_run.results()[0], excerpt)
    assert max(map(len, narrow(shown))) <= 80
    indented = [line for line in piped(shown).splitlines() if line.startswith("   ")]
    assert len(indented) > 5
    assert not [line for line in indented if line != line.rstrip()]


def test_artifacts_are_named_with_the_command_that_unpacks_them() -> None:
    text = piped(panel.model_panel(example_run.results()[0]))
    assert "artifact artifacts/BertModel/dynamo/tlparse.zip" in text
    assert "compilewatch show BertModel --artifacts DIRECTORY" in text


def test_the_stored_line_is_shown_where_the_installed_source_is_another_version() -> Any:
    def other_version(file: str, line: int) -> tuple[SourceLine, ...]:
        return (SourceLine(412, "something else entirely"),) if line == 412 else ()

    for lookup in (other_version, None):
        text = piped(panel.model_panel(example_run.results()[0], lookup))
        assert "> 412 | if mask.sum() > 0:" in text
        assert "something else" not in text


def test_what_torchs_reason_says_already_is_not_said_again() -> None:
    said = factories.graph_break(
        reason=f"Explanation. Hint: do that. See {wording.registry_page('GB0170')}",
        hints=("do that.", "do this."),
    )
    text = piped(panel.model_panel(factories.result(breaks=(said,))))
    assert text.count("do that.") == 1
    assert text.count("gb0170.html") == 1
    assert "hint: do this." in text


def test_an_error_shows_type_place_and_the_end_of_its_traceback() -> None:
    text = piped(panel.model_panel(example_run.results()[3]))
    assert "builtins.TypeError (type_error)" in text
    assert "transformers/models/bert/modeling_bert.py:100 in forward" in text
    assert "last frames" in text
    assert "first frames" not in text


def test_earlier_attempts_expectation_and_reuse_are_shown() -> None:
    text = piped(panel.model_panel(example_run.results()[2]))
    assert "real tensors · reduced depth" in text
    assert "reused from run 20260101-030405-0001" in text
    assert (
        "earlier attempt with fake tensors: error in create, fake unsupported: it reads a value"
        in text
    )
    expected = piped(panel.model_panel(example_run.results()[5]))
    assert "error in create" in expected
    assert "expected: needs timm" in expected


def test_a_rejection_of_fullgraph_without_a_break_says_why() -> None:
    refused = FullgraphVerdict(accepted=False, code="GB0001", reason="because of that")
    text = piped(panel.model_panel(factories.result(fullgraph=refused)))
    assert "fullgraph=True rejects it:\n   because of that" in text


@pytest.mark.parametrize("status", list(Status))
def test_every_status_can_be_shown(status: Any) -> None:
    result = factories.result(status=status, phase=Phase.SETUP, target=Target(dynamic=True))
    assert piped(panel.model_panel(result)).startswith("BertModel  dynamo/eval/dynamic")


def test_the_end_of_a_sweep_has_verdicts_first_failures_and_reasons_by_target() -> None:
    text = " ".join(piped(render.summary_table(factories.view(*example_run.row()))).split())
    assert "dynamo · 1 · export 1 · · inductor 1 · · xla · 1 · neuron 1 · 1" in text
    assert "eager eval 0 dynamo eval 1 export eval 0" in text
    assert "neuron NCC_EVRF009 in compile 1 7,000" in text


def test_with_one_target_nothing_is_said_by_target() -> None:
    assert "Target" not in piped(render.summary_table(factories.view(factories.result())))


def test_the_row_of_a_model_names_the_first_failing_layer_and_disagreements() -> None:
    lines = piped(panel.row_panel(example_run.row()[:5])).splitlines()
    layers = ["eager", "dynamo", "export", "inductor", "xla", "neuron"]
    assert [line.split()[0] for line in lines[2:8]] == layers
    assert "<- fails first" in lines[3]
    assert sum("<- fails first" in line for line in lines) == 1
    assert any("torch.export exports it, strict=True rejects it: GB0170" in line for line in lines)


def test_a_result_is_shown_with_what_its_target_found() -> None:
    text = "\n".join(piped(panel.model_panel(result)) for result in example_run.row())
    said = " ".join(text.split())
    assert "cold compile 21.5 s" in said
    assert "Expected from the documents named here; not a verdict" in said
    assert "sort 2 not lowered 2.32.0 https://awsdocs-neuron.readthedocs-hosted.com" in said
    assert "failure device memory code NCC_EVRF009" in said


def test_an_error_of_ours_is_one_sentence_unless_more_is_wanted() -> None:
    error = factories.error(type="InputsError", message="say what x is", head="Traceback\n  ours")
    result = factories.result("A", status=Status.ERROR, detail="say what x is", error=error)
    text = piped(panel.model_panel(result))
    assert text.count("say what x is") == 1
    assert "ours" not in text
    assert "InputsError" not in text
    assert "ours" in piped(panel.model_panel(result, verbose=True))


def test_the_stack_of_a_crash_is_shown_from_its_innermost_frame() -> None:
    frames = "\n".join(f'  File "f{n}.py", line 1 in f' for n in range(40))
    error = factories.error(
        type="crashed",
        message="SIGSEGV in eager",
        tail=f"noise\nFatal Python error: Segmentation fault\n\n{frames}",
        file="m_segv.py",
        line=1,
    )
    result = factories.result("A", status=Status.CRASHED, detail="SIGSEGV in eager", error=error)
    text = piped(panel.model_panel(result))
    assert "m_segv.py:1" in text
    assert "f0.py" in text
    assert "f39.py" not in text
    assert "noise" not in text


def test_a_title_leaves_out_what_is_unknown_and_names_keep_their_underscores() -> None:
    attempt = Attempt(
        tier=Tier.FAKE,
        status=Status.ERROR,
        phase=Phase.EAGER,
        code=AttemptCode.FAKE_UNSUPPORTED,
        reason="in eager, Error: aten._local_scalar_dense.default",
    )
    result = factories.result("A", family="unknown", task="unknown", attempts=(attempt,))
    text = piped(panel.model_panel(result))
    assert "unknown" not in text
    assert (
        "tensors: error in eager, fake unsupported: in eager, Error: aten._local_scalar_dense"
        in text
    )


def test_what_was_not_run_is_listed_with_what_to_type() -> None:
    why = "needs the environment 'neuron': compilewatch env create neuron"
    results = [
        factories.result(name, status=Status.UNSUPPORTED, phase=Phase.SETUP, detail=why)
        for name in ("A", "B")
    ]
    text = piped(render.summary_table(factories.view(*results)))
    assert text.count(why) == 1
    assert "2                 " + why in text
    assert "Errors" not in text


def test_a_run_of_the_hub_counts_repositories() -> None:
    parts = [
        factories.result(
            f"org/pipe#{name}", source="hub", checkpoint="org/pipe", part=Part.COMPONENT
        )
        for name in ("unet", "vae")
    ]
    text = piped(render.summary_table(factories.view(*parts)))
    assert "repositories: 1 of 1 with a verdict on each evaluated part (component 1 of 1)\n" in text
    assert "repositories" not in piped(render.summary_table(factories.view(factories.result())))


def test_a_panel_names_the_part_of_a_repository_and_its_quantisation() -> None:
    found = factories.result(
        "org/lora", source="hub", part=Part.BASE, quantization=Quantization.AWQ, family="acorn"
    )
    text = " ".join(piped(panel.model_panel(found)).split())
    base = "base model without the adapter, which needs peft: compilewatch env create libraries"
    assert f"(acorn, {base}, awq, evaluated unquantised)" in text


SHARED = factories.graph_break(
    "helper",
    file="transformers/utils/import_utils.py",
    line=7,
    source_start=7,
    source=("  check(x)",),
)
OTHER = factories.graph_break("other", "GB0059")
BROKEN = (
    *(factories.result(n, breaks=(SHARED,), source="hub", downloads=500_000) for n in "AB"),
    factories.result("C", breaks=(SHARED, OTHER), source="hub", downloads=1),
)


def test_a_step_says_what_to_fix_where_and_what_it_gives() -> None:
    lines = [line.split() for line in piped(fixes_table(leverage(BROKEN))).splitlines()]
    text = [" ".join(line) for line in lines]
    assert text[0] == "3 models have graph breaks on dynamo, 1 M downloads a month"
    assert "1. 2 1 M 2 3 GB0170 Data-dependent branching" in text
    assert "transformers/utils/import_utils.py:7 in helper" in text
    assert "> check(x)" in text
    assert "such as A" in text
    assert "2. +1 1 3 1 GB0059 Type GB0059" in text


def test_what_is_left_out_is_said() -> None:
    silent = factories.graph_break("?", None, code="unattributed")
    results = (*BROKEN, factories.result("D", breaks=(silent,)))
    text = piped(fixes_table(leverage(results, top=1)))
    assert "1 model cannot be ranked, because not all causes of their breaks are known." in text
    assert "1 model would need steps that are not listed." in text


def test_an_id_counts_its_other_places() -> None:
    both = (factories.result("A", breaks=(SHARED, factories.graph_break("second"))),)
    assert "and 1 other place" in piped(fixes_table(leverage(both, by=By.ID)))


def test_nothing_to_fix_is_a_sentence() -> None:
    text = piped(fixes_table(leverage([factories.result("A")])))
    assert text == "No model has a graph break: there is nothing to fix.\n"


def test_it_fits_eighty_columns() -> None:
    assert max(map(len, narrow(fixes_table(leverage(BROKEN))))) <= 80


FIXES = tuple(
    ModelFix(
        model=name,
        target=Target(),
        detail="one graph",
        verified=True,
        single_graph=True,
        changes=("capture_scalar_outputs=True",),
        removed=frozenset({SHARED.fingerprint}),
        code="import torch\n",
    )
    for name in "AB"
)


def test_verified_fixes_have_a_column_and_a_total() -> None:
    found = leverage(BROKEN)
    verified = verified_fixes(found, BROKEN, FIXES)
    text = " ".join(piped(fixes_table(found, verified)).split())
    assert "capture_scalar_outputs=True (2 of 3 models)" in text
    assert (
        "Verified: this change leaves 2 more models without graph breaks, 1 M downloads a month; "
        "each of them is verified by a script of its own."
    ) in text


def test_a_fix_of_another_model_says_where_it_is_from_and_that_it_is_not_verified_here() -> None:
    result = BROKEN[2]
    stored = replace(FIXES[0], run="20260102")
    text = piped(stored_fix_text(stored, result))
    assert "Stored fix: capture_scalar_outputs=True" in text
    assert "From run 20260102, where it is verified for A; it removes 1 of 2 graph breaks." in text
    assert "For C nothing is verified: compilewatch fix C" in text
    assert "import torch" in text


def test_a_fix_of_the_same_model_is_verified_for_it() -> None:
    stored = replace(FIXES[0], run="20260102")
    assert "nothing is verified" not in piped(stored_fix_text(stored, BROKEN[0]))
