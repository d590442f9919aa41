from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from compilewatch.analysis.summary import phase_seconds
from compilewatch.records import FullgraphVerdict, Part, Quantization, Status, Target, VariantResult
from compilewatch.report import html
from compilewatch.report.html import RunReport
from compilewatch.report.sections import details
from tests import example_run, factories

VOID = {"meta", "link", "img", "br", "source", "input"}


class Page(HTMLParser):
    """A page's elements as (tag, attributes), its ids, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: Any, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: Any) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: Any) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    def links(self) -> list[str]:
        names = ("href", "src", "srcset")
        return [a[name] for _, a in self.elements for name in names if name in a]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example_run.write_report(example_run.view(), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def pages(report: Any) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in report.rglob("*.html")}


def rendered(*results: Any, **fields: Any) -> dict[str, Page]:
    files = html.render(factories.view(*results, **fields))
    return {path: Page(content.decode()) for path, content in files if path.endswith(".html")}


def test_there_is_a_page_for_each_model_and_each_reason(pages: Any, report: Any) -> None:
    names = {path.relative_to(report).as_posix() for path in pages}
    assert {"index.html", "changes.html", "reasons.html", "families.html"} < names
    models = {result.request.model.name for result in example_run.results()}
    assert len([name for name in names if name.startswith("models/")]) == len(models)
    assert {n for n in names if n.startswith("reasons/")} == {
        "reasons/GB0170.html",
        "reasons/unbacked_symint.html",
    }


def test_every_local_link_leads_to_a_file_and_every_anchor_to_an_id(pages: Any) -> None:
    for path, page in pages.items():
        for link in page.links():
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme == "https", link
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment:
                assert parts.fragment in pages[target].ids, f"{path.name}: {link}"


def test_pages_are_complete_and_ids_unique(pages: Any) -> None:
    for path, page in pages.items():
        assert not page.open, path.name
        assert len(set(page.ids)) == len(page.ids), path.name
        tags = [tag for tag, _ in page.elements]
        assert tags.count("h1") == tags.count("main") == 1, path.name
        assert tags[: tags.index("body")].count("title") == 1, path.name
        assert ("html", {"lang": "en"}) in page.elements


def test_nothing_on_a_page_needs_what_jenkins_forbids(pages: Any) -> None:
    for path, page in pages.items():
        for tag, attributes in page.elements:
            assert tag not in ("script", "style", "iframe", "object", "embed", "form"), path.name
            assert "style" not in attributes, f"{path.name}: <{tag} style>"
            assert not [name for name in attributes if name.startswith("on")], path.name
            if tag in ("img", "link", "source"):
                (local,) = [attributes[n] for n in ("src", "href", "srcset") if n in attributes]
                assert not urlsplit(local).scheme, local


def test_hostile_text_arrives_as_text(pages: Any, report: Any) -> None:
    page = pages[report / "models" / "team--odd-name--x---.html"]
    assert "<script>alert(1)</script> & \"quoted\" 'single' red [bold]" in page.text
    assert "\x1b" not in page.text
    assert "\x00" not in page.text


def test_every_table_cell_in_a_row_head_has_a_scope(pages: Any) -> None:
    for page in pages.values():
        for tag, attributes in page.elements:
            if tag == "th":
                assert attributes["scope"] in ("row", "col")


def test_the_overview_counts_what_was_not_run_apart_from_what_passed(
    pages: Any, report: Any
) -> None:
    text = pages[report / "index.html"].text
    assert "3 of 17 planned requests have no result. Not run is not passed." in text
    assert "Without graph breaks 17.6 % 3 of 17 planned requests" in text
    assert "Coverage 41.2 % 7 verdicts for 17 planned" in text
    assert "no verdict 5" in text
    assert "not run 2" in text


def test_regressions_come_before_fixed_and_both_before_the_models(pages: Any, report: Any) -> None:
    text = pages[report / "index.html"].text
    headings: tuple[str, ...] = (
        "Regressions 1",
        "Fixed 1",
        "Models that do not pass",
        "Compile error 1",
    )
    headings += ("Graph break 1", "Mismatch 1", "Reasons Graph breaks 2", "Models that pass")
    places = [text.index(heading) for heading in (*headings, "Environment torch")]
    assert places == sorted(places)


def test_without_a_baseline_nothing_is_called_a_regression() -> None:
    pages = rendered(factories.result())
    for name in ("index.html", "changes.html"):
        assert "nothing is called a regression or fixed" in pages[name].text
    assert "Regressions –" in pages["index.html"].text


def test_changes_shows_all_six_kinds_and_what_differed(pages: Any, report: Any) -> None:
    text = pages[report / "changes.html"].text
    for label in ("Regressions", "Fixed", "New", "Removed", "Newly tested", "No longer tested"):
        assert f"{label} 1" in text
    assert "torch 2.12.0 -> 2.13.0" in text
    assert "GoneModel" in text


def test_a_change_names_only_what_differs_besides_the_environments(pages: Any, report: Any) -> None:
    text = pages[report / "changes.html"].text
    assert "revision aaaa -> bbbb" in text
    assert text.count("torch 2.12.0 -> 2.13.0") == 1


def test_a_models_page_holds_the_complete_result(pages: Any, report: Any) -> None:
    page = pages[report / "models" / "BertModel.html"]
    for fact in (
        "dynamo/train",
        "fullgraph rejected graphs 8",
        "graph breaks 7 2 distinct",
        "Data-dependent branching GB0170",
        "transformers/models/bert/modeling_bert.py:412 in BertEncoder.forward",
        "hit 6 times",
        "Hit : how often Dynamo met the break while the example inputs ran once.",
        "fingerprint GB0170:BertEncoder.forward",
        "Use torch.cond to express dynamic control flow.",
        "reason of GB0170 in BertEncoder.forward",
        "if mask.sum() > 0:",
        "input_ids [2, 16] int64",
        "700 MiB",
        "compilewatch reproduce BertModel",
        "compilewatch sweep --source library --models BertModel --modes train --fresh",
    ):
        assert fact in page.text, fact
    links = page.links()
    assert "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0170.html" in links
    assert "../../artifacts/BertModel/dynamo/tlparse.zip" in links


def test_a_reused_result_links_the_artifacts_that_were_taken_over(pages: Any, report: Any) -> None:
    page = pages[report / "models" / "google--vit-base.html"]
    assert "../../artifacts/vit/torch_trace/trace.log.zst" in page.links()
    assert "compilewatch show google/vit-base --artifacts DIRECTORY" in page.text
    assert "cached, from run 20260101-030405-0001" in page.text
    assert "follows from one graph without breaks" in page.text
    assert "fake tensors: error in create, fake unsupported: it reads a value" in page.text


def test_a_result_shared_within_the_run_links_its_artifacts() -> None:
    shared = factories.result(reused_from="20260102-030405-0001", artifacts=("artifacts/x.html",))
    page = rendered(shared)["models/BertModel.html"]
    assert "../../artifacts/x.html" in page.links()
    assert "cached, from run" not in page.text


def test_an_error_shows_where_and_both_ends_of_its_traceback(pages: Any, report: Any) -> None:
    text = pages[report / "models" / "team--odd-name--x---.html"].text
    assert "transformers/models/bert/modeling_bert.py:100 in forward" in text
    assert re.search(r"first frames \[…\] last frames", text)


def test_what_fullgraph_rejects_without_a_break_is_said() -> None:
    refused = FullgraphVerdict(accepted=False, code="GB0001", reason="refused because of that")
    page = rendered(factories.result(fullgraph=refused))["models/BertModel.html"]
    assert "Why fullgraph rejects it refused because of that" in page.text


def test_a_reason_page_names_models_places_and_torchs_page(pages: Any, report: Any) -> None:
    page = pages[report / "reasons" / "GB0170.html"]
    assert "transformers/models/bert/modeling_bert.py:412 in BertEncoder.forward 1 12" in page.text
    assert "../models/BertModel.html" in page.links()
    assert "https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0170.html" in page.links()


def test_the_reasons_begin_with_what_to_fix_first() -> None:
    shared, other = factories.graph_break(), factories.graph_break("b", "GB0059")
    found = rendered(
        factories.result("A", breaks=(shared,), source="hub", downloads=5),
        factories.result("B", breaks=(shared, other), source="hub", downloads=7),
    )
    text = found["reasons.html"].text
    before, _, after = text.partition("What to fix first")
    assert "Graph breaks" not in before.partition("Why models do not pass")[2]
    assert "2 models have graph breaks on dynamo, 12 downloads a month." in after
    row = "transformers/models/bert/modeling_bert.py:12 in forward 1 5 1 2 A"
    assert f"GB0170 Data-dependent branching {row}" in after
    assert "in b +1 7 2 1 B" in after
    assert "What to fix first" in found["index.html"].text
    assert "reasons.html#first" in found["index.html"].links()
    assert "first" in found["reasons.html"].ids


def test_a_report_without_breaks_has_nothing_to_fix() -> None:
    found = rendered(factories.result("A"))
    assert "What to fix first" not in found["reasons.html"].text + found["index.html"].text


def test_a_models_page_shows_what_was_captured_before_its_breaks(pages: Any, report: Any) -> None:
    text = pages[report / "models" / "BertModel.html"].text
    assert "captured 99.2 % of 1,200 operators graph breaks 7 2 distinct phase reached" in text
    assert "operators run eagerly 10 frames compiled 8 frames skipped 1 recompilations 2" in text
    assert "aten.item.default 6 aten.sum.default 4" in text


def test_a_reason_of_ours_has_no_registry_link(pages: Any, report: Any) -> None:
    page = pages[report / "reasons" / "unbacked_symint.html"]
    assert not [link for link in page.links() if "graph-break-site" in link]


def test_errors_before_the_compiler_stand_apart_from_compile_errors(
    pages: Any, report: Any
) -> None:
    text = pages[report / "reasons.html"].text
    compile_errors, _, others = text.partition("No verdict")
    assert "it failed <script>alert(1)</script>" in compile_errors
    assert "team/odd name [x] ü type error compile 1" in compile_errors
    assert "it failed GptModel , TimmModel backend error create 2" in others


def test_a_model_stands_under_the_worst_of_its_results() -> None:
    train = Target(dynamic=True)
    results = (factories.result(), factories.result(target=train, status=Status.ERROR))
    text = rendered(*results)["index.html"].text
    assert "Compile error 1 The compiler raised an error." in text
    assert "Models that pass" not in text


def test_the_overview_says_why_beside_each_model_that_does_not_pass(
    pages: Any, report: Any
) -> None:
    text = pages[report / "index.html"].text
    assert "÷ graph break Data-dependent branching, unbacked symint 13 fake, full" in text
    assert "GptModel gpt dynamo ? error in create it failed" in text
    assert "? timeout in compile no end within 600 s" in text
    assert "– skipped gated: accept its licence" in text


def test_names_that_differ_only_in_case_or_slash_get_files_of_their_own(report: Any) -> None:
    names = sorted(path.name.casefold() for path in (report / "models").iterdir())
    assert len(set(names)) == len(names)
    twins = [name for name in names if name.startswith("model--a")]
    assert len(twins) == 2


def test_writing_again_changes_nothing() -> None:
    assert dict(html.render(example_run.view())) == dict(html.render(example_run.view()))


def test_the_overview_is_written_last() -> None:
    assert [path for path, _ in html.render(example_run.view())][-1] == "index.html"


def test_a_thousand_models_fit_an_overview_of_a_megabyte_and_a_half() -> None:
    many = [
        factories.result(
            f"organisation-{i}/some-model-with-a-long-name-{i}",
            target=Target(dynamic=dynamic),
            family=f"family-{i % 200}",
            breaks=(example_run.BRANCH,) if i % 4 == 0 else (),
        )
        for i in range(1000)
        for dynamic in (False, True)
    ]
    files = dict(html.render(factories.view(*many)))
    assert len(files["index.html"]) < 1_500_000
    assert sum(name.startswith("models/") for name in files) == 1000


def test_a_break_has_its_code_its_place_on_github_and_torchs_text_folded(
    pages: Any, report: Any
) -> None:
    page = pages[report / "models" / "BertModel.html"]
    assert "75 76 height = torch_int(size) 77 if size > 1: # <script>alert(1)" in page.text
    links = page.links()
    code = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert"
    assert f"{code}/modeling_bert.py#L412" in links
    assert "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/nn/modules/module.py#L1" in links
    folds = [attributes for tag, attributes in page.elements if tag == "details"]
    assert page.text.count("PyTorch message") == 3
    # Two stacks of two frames, the message of a break without an explanation, and what changed.
    assert len([fold for fold in folds if "open" in fold]) == 4


def test_graphs_are_drawn_in_order_with_the_breaks_between_them(pages: Any, report: Any) -> None:
    page = pages[report / "models" / "BertModel.html"]
    assert "graph 2: 210 operations" in page.text
    assert "graph break 1: transformers/models/bert/modeling_bert.py:412" in page.text
    assert "Cut by 1 modeling_bert.py:412 6 times, 2 modeling_bert.py:77 ." in page.text
    assert "on-dynamo-break-2" in page.ids
    assert "figure" not in {t for t, _ in pages[report / "models" / "DriftModel.html"].elements}


def test_a_model_has_a_mark_for_each_stored_run_and_says_since_when(
    pages: Any, report: Any
) -> None:
    page = pages[report / "models" / "BertModel.html"]
    assert "First broke in 20260102-030405-0001. Stored runs, oldest first: ✓ ÷ ? ÷" in page.text
    titles = [a["title"] for tag, a in page.elements if tag == "li" and "title" in a]
    assert titles[2:] == [
        "20260103-030405-0001: timeout in compile",
        "20260102-030405-0001: graph break",
    ]
    assert "Stored runs" not in pages[report / "models" / "DriftModel.html"].text


def test_the_trace_has_one_button_and_the_other_files_are_folded(pages: Any, report: Any) -> None:
    text = pages[report / "models" / "BertModel.html"].text
    assert "Download the compile trace (tlparse) Pages made by tlparse" in text
    assert "1 other file artifacts/BertModel" in text
    assert "compilewatch show BertModel --artifacts DIRECTORY" in text


def test_a_change_shows_the_code_before_and_after(pages: Any, report: Any) -> None:
    text = pages[report / "changes.html"].text
    before = "Before : Data-dependent branching modeling_bert.py:400 399 x = 1 400 if x.mean() > 0:"
    assert f"Code before and after {before} Now : Data-dependent" in text
    assert "no graph break here Now : unbacked symint modeling_bert.py:77 75 76 height" in text


def test_a_moved_break_is_shown_though_no_result_has_changed() -> None:
    sides = [
        factories.result(breaks=(factories.graph_break(source_start=12, source=(code,)),))
        for code in ("if x:", "if x > 0:")
    ]
    before = {("BertModel", Target()): sides[0]}
    found = rendered(sides[1], baseline=factories.run("20260101-030405-0001"), before=before)
    text = found["changes.html"].text
    assert "No result has changed. Moved 1 Graph breaks at other code" in text
    assert "BertModel dynamo Code before and after" in text
    assert "12 if x: Now : Data-dependent branching modeling_bert.py:12 12 if x > 0:" in text


def test_a_trend_needs_three_runs_and_a_family_chart_families_of_several(
    pages: Any, report: Any
) -> None:
    text = pages[report / "index.html"].text
    assert "Without graph breaks: last 3 runs" in text
    assert {path.name for path in (report / "charts").iterdir()} == {
        *("families.svg", "families-narrow.svg", "trend.svg", "trend-narrow.svg")
    }
    single = dict(html.render(factories.view(factories.result())))
    assert not [path for path in single if path.startswith("charts/")]
    assert "Families" not in Page(single["index.html"].decode()).text.partition("Overview")[2][99:]


def test_the_family_chart_begins_with_the_families_that_pass_least() -> None:
    names = [("good", ()), ("good", ()), ("bad", (example_run.BRANCH,)), ("odd", ())]
    results = [
        factories.result(f"M{number}", family=family, breaks=breaks, downloads=9 - number)
        for number, (family, breaks) in enumerate(names)
    ]
    report = RunReport(factories.view(*results))
    assert [name for name, _ in report.charted_families] == ["bad", "good", "odd"]


def test_time_is_summed_by_phase_in_their_order() -> None:
    cached = factories.result("B", reused_from="20260101-030405-0001")
    durations = {"compile": 2.0, "setup": 0.25}
    seconds = phase_seconds([factories.result(durations=durations), cached])
    assert list(seconds.items()) == [("setup", 0.25), ("compile", 2.0)]
    page = rendered(factories.result(), cached)["index.html"]
    assert "Time by phase create 0.50 s compile 1.5 s" in page.text


def test_many_failing_models_are_folded_behind_the_first() -> None:
    many = [factories.result(f"Model{i}", breaks=(example_run.BRANCH,)) for i in range(23)]
    page = rendered(*many)["index.html"]
    assert "Graph break 23" in page.text
    assert "3 more models" in page.text
    assert page.links().count("models/Model22.html") >= 1


WORDS = re.compile(r"\b(whole|asked|answer(s|ed)?|at home|refuse[sd]?|1 families)\b")


def test_the_pages_keep_to_the_vocabulary(row_pages: Any) -> None:
    for name, page in row_pages.items():
        own = page.text.replace("refused: GB0170", "")
        assert WORDS.search(own) is None, (name, WORDS.search(own))


def test_an_empty_run_has_a_report_too() -> None:
    pages = rendered(planned=5, state="interrupted", wall_seconds=None)
    text = pages["index.html"].text
    assert "5 of 5 planned requests have no result." in text
    assert "This run is interrupted." in text


@pytest.fixture(scope="module")
def row_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    folder = example_run.write_report(
        example_run.view(*example_run.row()), tmp_path_factory.mktemp("rows")
    )
    found = {path: Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    test_every_local_link_leads_to_a_file_and_every_anchor_to_an_id(found)
    test_pages_are_complete_and_ids_unique(found)
    test_nothing_on_a_page_needs_what_jenkins_forbids(found)
    return {path.relative_to(folder).as_posix(): page for path, page in found.items()}


def test_the_matrix_has_targets_in_layer_order_and_marks_the_first_that_fails(
    row_pages: Any,
) -> None:
    text = row_pages["index.html"].text
    assert "Model Fails first in dynamo dynamo/eval/dynamic dynamo/train export" in text
    row = text[text.index("RowModel dynamo") :]
    assert row.startswith("RowModel dynamo ÷ graph break fails first ✓ pass ✓ pass ÷ graph break")
    assert "models/RowModel.html#on-neuron" in row_pages["index.html"].links()


def test_a_layer_that_could_not_run_is_not_marked(row_pages: Any) -> None:
    text = row_pages["targets.html"].text
    assert "OddModel – – unsupported" in text


def test_the_page_of_targets_has_verdicts_first_failures_and_reasons(row_pages: Any) -> None:
    text = row_pages["targets.html"].text
    assert "neuron 1 · · 1 · ·" in text
    assert "dynamo eval 7" in text
    assert "NCC_EVRF009 in compile 1" in text
    assert "xla_fallback 1" in text
    assert "inductor 0 reasons No failures." in text


def test_the_page_of_a_model_has_its_row_disagreements_and_what_each_target_found(
    row_pages: Any,
) -> None:
    text = row_pages["models/RowModel.html"].text
    for fact in (
        "eager eval ✓ pass – dynamo eval ÷ graph break fails first done Data-dependent branching",
        "eval: torch.export exports it, fullgraph=True rejects it: GB0170 ",
        "eval: torch.export exports it, strict=True rejects it: GB0170",
        "non-strict exported, 321 ops, in 1.2 s",
        "strict rejected: GB0170, after 0.50 s",
        "What draft export found 1 Kind What Times Place guard added u0 > 1 1 m.py:9",
        "cold compile 21.5 s warm compile 4.2 s eager latency 8 ms compiled latency 4 ms",
        "speed 2.00 × eager",
        "operators outside XLA 3 calls compile time 3.5 s",
        "graphs recompiled for the same inputs 0",
        "HLO instructions 14",
        "Dynamo with openxla rejected: GB0170; graphs: 2; graph breaks: 1",
        "Expected to fail on Neuron 1 Expected from the documents named here; not a verdict",
        "sort 2 not lowered 2.32.0 source",
        "failure device memory code NCC_EVRF009",
        "suggested fix Use a smaller batch.",
        "compile time 1 min 35 s",
        "aten::sort 2 neuron_cc",
        "compilewatch explain RowModel --target inductor",
    ):
        assert fact in text, fact


def test_what_was_not_measured_is_not_shown_as_zero(row_pages: Any) -> None:
    text = row_pages["models/CompiledModel.html"].text
    assert "NEFF 25 MiB" in text
    for unmeasured in (
        "latency",
        "NeuronCores on this machine",
        "Results by target",
        "operators supported",
    ):
        assert unmeasured not in text


def test_a_run_with_one_target_has_no_matrix() -> None:
    found = rendered(factories.result())
    assert "targets.html" not in found
    assert "Models by target" not in found["index.html"].text


def test_a_long_matrix_is_on_its_own_page() -> None:
    many = [
        factories.result(f"Model{i}", target=Target(name=name))
        for i in range(40)
        for name in ("dynamo", "export")
    ]
    found = rendered(*many)
    assert "All 40 models, results" in found["index.html"].text
    assert "models/Model39.html" in found["targets.html"].links()


def test_a_model_of_the_hub_says_which_part_of_its_repository_it_is() -> None:
    base = factories.result(
        "org/lora",
        source="hub",
        checkpoint="org/lora",
        part=Part.BASE,
        quantization=Quantization.BITSANDBYTES_4BIT,
    )
    unet = factories.result(
        "org/pipe#unet", source="hub", checkpoint="org/pipe", part=Part.COMPONENT, component="unet"
    )
    pages = rendered(base, unet)
    index = pages["index.html"].text
    needed = "which needs peft: compilewatch env create libraries"
    assert f"base model without the adapter, {needed}" in index
    assert "bitsandbytes-4bit, evaluated unquantised" in index
    assert "repositories: 2 of 2 with a verdict on each evaluated part" in index
    models = " ".join(page.text for path, page in pages.items() if path.startswith("models/"))
    assert "component unet" in models
    assert "repositories:" not in rendered(factories.result())["index.html"].text


def test_variants_are_a_table_with_the_worst_marked_and_failures_named() -> None:
    broken = factories.graph_break()
    accepted = FullgraphVerdict(accepted=True)
    variants = (
        VariantResult(
            name="text+image", status=Status.GRAPH_BREAK, graphs=2, graph_breaks=1, breaks=(broken,)
        ),
        VariantResult(
            name="text", status=Status.PASS, graphs=1, graph_breaks=0, fullgraph=accepted
        ),
        VariantResult(name="text+audio", status=Status.UNSUPPORTED, detail="ValueError: no audio"),
    )
    result = factories.result(breaks=(broken,), variant="text+image", variants=variants)
    (section,) = details(result)
    (listing,) = section.listings
    assert [row[:2] for row in listing.rows] == [
        ("text+image *", "graph break"),
        ("text", "pass"),
        ("text+audio", "not evaluated"),
    ]
    assert listing.rows[1][4] == "accepted"
    assert listing.rows[2][5] == "ValueError: no audio"


def test_one_variant_needs_no_table() -> None:
    assert details(factories.result()) == ()
