from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from compilewatch import __version__
from compilewatch.records import FullgraphVerdict, Status, Target, VariantResult
from compilewatch.report import html
from compilewatch.report.html import RunReport
from tests import example_run, factories
from tests.reviewing import assert_as_reviewed

VOID = {"meta", "link", "img", "br", "source", "input"}
BLOCKS = {"h1", "h2", "h3", "p", "tr", "li", "dt", "pre", "summary", "div", "section", "figure"}


class Page(HTMLParser):
    """A page's elements as (tag, attributes), its ids, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        lines = (" ".join(line.split()) for line in " ".join(self.words).split("\0"))
        self.lines = "\n".join(filter(None, lines))
        self.text = " ".join(self.lines.split())
        self.ids = [attributes["id"] for _, attributes in self.elements if "id" in attributes]
        names = ("href", "src", "srcset")
        self.links = [a[name] for _, a in self.elements for name in names if name in a]

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in BLOCKS:
            self.words.append("\0")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: Any, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: Any) -> None:
        assert self.open, tag
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: Any) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run in which everything occurs, on every target."""
    view = example_run.view(*example_run.row())
    return example_run.write_report(view, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def pages(folder: Path) -> dict[str, Page]:
    return {
        path.relative_to(folder).as_posix(): Page(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
    }


def rendered(*results: Any, **fields: Any) -> dict[str, Page]:
    files = html.render(factories.view(*results, **fields))
    return {path: Page(content.decode()) for path, content in files if path.endswith(".html")}


def test_there_is_a_page_for_each_model_and_each_reason(pages: dict[str, Page]) -> None:
    assert {"index.html", "changes.html", "reasons.html", "families.html"} < set(pages)
    results = (*example_run.results(), *example_run.row())
    models = {result.request.model.name for result in results}
    files = [name.casefold() for name in pages if name.startswith("models/")]
    assert len(set(files)) == len(models), "names that differ in case only have their own files"
    reasons = {name for name in pages if name.startswith("reasons/")}
    assert {"reasons/GB0170.html", "reasons/unbacked_symint.html"} < reasons
    files_twice = [list(html.render(example_run.view())) for _ in range(2)]
    assert files_twice[0] == files_twice[1], "writing again changes nothing"
    assert files_twice[0][-1][0] == "index.html", "the overview comes last"


def test_every_local_link_leads_to_a_file_and_every_anchor_to_an_id(
    folder: Path, pages: dict[str, Page]
) -> None:
    for name, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme:
                assert parts.scheme == "https", link
                continue
            path = (folder / name).parent / unquote(parts.path) if parts.path else folder / name
            assert path.is_file(), f"{name}: {link}"
            if parts.fragment:
                target = path.resolve().relative_to(folder.resolve()).as_posix()
                assert parts.fragment in pages[target].ids, f"{name}: {link}"


def test_pages_are_complete_and_need_nothing_that_jenkins_forbids(pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        assert not page.open, name
        assert len(set(page.ids)) == len(page.ids), name
        tags = [tag for tag, _ in page.elements]
        assert tags.count("h1") == tags.count("main") == 1, name
        assert tags[: tags.index("body")].count("title") == 1, name
        assert ("html", {"lang": "en"}) in page.elements
        assert not {"script", "style", "iframe", "object", "embed", "form"} & set(tags), name
        assert not {"\x1b", "\x00"} & set(page.text), name
        for tag, attributes in page.elements:
            assert not [a for a in attributes if a == "style" or a.startswith("on")], name
            assert tag != "th" or attributes["scope"] in ("row", "col")
            if tag in ("img", "link", "source"):
                (local,) = [attributes[n] for n in ("src", "href", "srcset") if n in attributes]
                assert not urlsplit(local).scheme, local


NAMES = (
    *("index.html", "changes.html", "reasons.html", "reasons/GB0170.html", "targets.html"),
    "shapes.html",
    *("models/BertModel.html", "models/RowModel.html", "models/CompiledModel.html"),
    *("models/google--vit-base.html", "models/DriftModel.html", "models/team--odd-name--x---.html"),
)


def test_pages_are_as_reviewed(pages: dict[str, Page]) -> None:
    """Their words, a line for each block, and where they link; SCREENS=write writes them anew."""
    written = []
    for name in NAMES:
        page = pages[name]
        words = page.lines.replace(f"compilewatch {__version__}", "compilewatch VERSION")
        links = dict.fromkeys(link for link in page.links if not link.startswith("#"))
        written.append("\n".join([f"{'=' * 20} {name}", words, *(f"-> {link}" for link in links)]))
    assert_as_reviewed("\n".join([*written, ""]), Path(__file__).with_name("pages.txt"))


def test_what_a_single_result_has_no_reason_to_show_is_left_out() -> None:
    single = rendered(factories.result())
    assert "targets.html" not in single
    index = single["index.html"].text
    for words in ("Models by target", "What to fix first", "repositories:", "Families"):
        assert words not in index.partition("Overview")[2][99:], words


SHARED = factories.result(reused_from="20260102-030405-0001", artifacts=("artifacts/x.html",))
REFUSED = FullgraphVerdict(accepted=False, code="GB0001", reason="refused because of that")
WORSE = factories.result(target=Target(dynamic=True), status=Status.ERROR)
CACHED = factories.result("B", reused_from="20260101-030405-0001")
TIMED = factories.result(durations={"compile": 2.0, "setup": 0.25})
MODEL = "models/BertModel.html"


@pytest.mark.parametrize(
    ("results", "page", "shown", "hidden"),
    [
        ([TIMED], "index.html", "nothing is called a regression or fixed", "Regressions 0"),
        ([SHARED], MODEL, "Download", "cached, from run"),
        ([factories.result(fullgraph=REFUSED)], MODEL, f"rejects it {REFUSED.reason}", "Cut by"),
        ([factories.result(), WORSE], "index.html", "Compile error 1", "Models that pass"),
        ([TIMED, CACHED], "index.html", "Time by phase setup 0.25 s compile 2.0 s", "1.5 s"),
    ],
)
def test_a_page_of_few_results(results: Any, page: str, shown: str, hidden: str) -> None:
    text = rendered(*results)[page].text
    assert shown in text
    assert hidden not in text


def test_many_models_are_folded_behind_the_first_and_an_overview_stays_small() -> None:
    many = [
        factories.result(
            f"organisation-{i}/some-model-with-a-long-name-{i}",
            target=Target(name=name),
            breaks=(example_run.BRANCH,) if i < 23 else (),
        )
        for i in range(60)
        for name in ("dynamo", "export")
    ]
    files = dict(html.render(factories.view(*many)))
    assert len(files["index.html"]) < 60 * 2_000
    index = Page(files["index.html"].decode())
    for words in ("Graph break 23", "3 more models", "All 60 models, results"):
        assert words in index.text
    last = "models/organisation-22--some-model-with-a-long-name-22.html"
    assert last in index.links
    assert last in Page(files["targets.html"].decode()).links


def test_an_empty_run_has_a_report_too() -> None:
    text = rendered(planned=5, state="interrupted", wall_seconds=None)["index.html"].text
    assert "5 of 5 planned requests have no result." in text
    assert "This run is interrupted." in text


def test_a_trend_needs_three_runs_and_a_family_chart_families_of_several(folder: Path) -> None:
    charts = {"families.svg", "families-narrow.svg", "trend.svg", "trend-narrow.svg"}
    assert {path.name for path in (folder / "charts").iterdir()} == charts
    single = html.render(factories.view(factories.result()))
    assert not [path for path, _ in single if path.startswith("charts/")]
    # The families that pass least come first.
    names = [("good", ()), ("good", ()), ("bad", (example_run.BRANCH,)), ("odd", ())]
    results = [
        factories.result(f"M{number}", family=family, breaks=breaks, downloads=9 - number)
        for number, (family, breaks) in enumerate(names)
    ]
    charted = RunReport(factories.view(*results)).charted_families
    assert [name for name, _ in charted] == ["bad", "good", "odd"]


def test_variants_are_a_table_with_the_worst_marked_and_failures_named() -> None:
    broken = factories.graph_break()
    worst: dict[str, Any] = {"graphs": 2, "graph_breaks": 1, "breaks": (broken,)}
    accepted: dict[str, Any] = {"graphs": 1, "fullgraph": FullgraphVerdict(accepted=True)}
    variants = (
        VariantResult(name="text+image", status=Status.GRAPH_BREAK, **worst),
        VariantResult(name="text", status=Status.PASS, **accepted),
        VariantResult(name="text+audio", status=Status.UNSUPPORTED, detail="no audio"),
    )
    text = rendered(factories.result(breaks=(broken,), variant="text+image", variants=variants))
    for row in (
        "text+image * graph break 2 1 Data-dependent branching",
        "text pass 1 – accepted",
        "text+audio not evaluated – – no audio",
    ):
        assert row in text[MODEL].text, row
