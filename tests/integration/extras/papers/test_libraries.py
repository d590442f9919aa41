"""The libraries of papers, and `compilewatch papers` with wrong input.

OpenSearch is the real client and an HTTP server. What is wrong is one line that says what to do.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from compilewatch.cli import group
from compilewatch.config import PapersSettings
from compilewatch.errors import CompilewatchError, SourceError, UsageError
from compilewatch.extras.papers.libraries import PaperLibrary, PaperQuery, open_library
from tests.aws import no_configuration
from tests.papers import INPUTS, some_papers
from tests.serving import JsonHandler, serving

INDEX = "research-papers-v2"
DAYS = {"gated-residual.tex": 0.1, "low-rank-mixing.md": 3, "cosine-attention.html": 30}
ALL = PaperQuery()
MULTI = {"multi_match": {"query": "temperature", "fields": ["title", "abstract"]}}


# --- a folder ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped papers, ingested today, 3 and 30 days ago."""
    papers_folder = tmp_path / "papers"
    shutil.copytree(INPUTS / "library", papers_folder)
    for name, days in DAYS.items():
        at = time.time() - days * 86_400
        os.utime(papers_folder / name, (at, at))
    return papers_folder


@pytest.fixture
def library(folder: Path) -> PaperLibrary:
    return open_library(PapersSettings(folder=str(folder)))


def ids(
    library: PaperLibrary, query: PaperQuery, most: int = 9, *, random: bool = False
) -> list[str]:
    return [paper.id for paper in library.find(query, most, random=random)]


def test_a_paper_of_a_folder_is_found_with_all_that_is_known_of_it(library: PaperLibrary) -> None:
    (paper,) = library.find(PaperQuery(paper="low-rank-mixing"), 1)
    assert paper.title == "Token Mixing through a Bottleneck of Low Rank"
    assert paper.authors == ("The compilewatch authors",)
    assert (paper.date, paper.library) == ("2026-11-02", "folder")
    (other,) = library.find(PaperQuery(paper="gated-residual"), 1)
    assert library.fetch(other) == (INPUTS / "library" / "gated-residual.tex").read_bytes()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (PaperQuery(paper="unknown"), []),
        (PaperQuery(minutes=7 * 24 * 60), ["gated-residual", "low-rank-mixing"]),
        (PaperQuery(minutes=12 * 60), ["gated-residual"]),
        (PaperQuery(words="temperature"), ["cosine-attention"]),
        (PaperQuery(words="bottleneck gates"), ["gated-residual", "low-rank-mixing"]),
        (PaperQuery(words="bottlenecks mixing"), ["low-rank-mixing"]),
        (ALL, ["gated-residual", "low-rank-mixing", "cosine-attention"]),
    ],
)
def test_papers_of_a_folder_are_found_by_id_by_time_and_by_words(
    library: PaperLibrary, query: PaperQuery, expected: list[str]
) -> None:
    found_ids = ids(library, query)
    assert (sorted(found_ids) if query.words else found_ids) == expected
    assert sorted(ids(library, query, random=True)) == sorted(expected)
    assert len(ids(library, query, 2)) == min(2, len(expected))


def test_what_is_rare_and_said_often_comes_first(folder: Path, library: PaperLibrary) -> None:
    (folder / "zebras.md").write_text("# Zebras\n\n" + "Zebras have gates. " * 20)
    assert ids(library, PaperQuery(words="zebra gates"))[0] == "zebras"


# --- OpenSearch ---

DOCUMENT = {
    "title": "Gates",
    "abstract": "A gate.",
    "authors": ["A", "B"],
    "date": "2026-11-02",
    "ingested_at": "2026-11-03T00:00:00+00:00",
    "s3_bucket": "papers",
    "s3_key": "gates.tex",
}


@contextlib.contextmanager
def served(document: dict[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """OpenSearch's search and S3's GetObject: the address, and the bodies of the searches."""
    bodies: list[Any] = []

    class Handler(JsonHandler):
        def do_POST(self) -> None:  # noqa: N802
            signature = self.headers["Authorization"]
            assert "AWS4-HMAC-SHA256" in signature
            assert "/us-west-2/es/" in signature
            body = self.body()
            bodies.append(body)
            if urlsplit(self.path).path != f"/{INDEX}/_search":
                self.reply(404, {"error": {"type": "index_not_found_exception"}, "status": 404})
            elif "nonsense" in body["query"]:
                why = {"type": "parsing_exception", "reason": "unknown query"}
                self.reply(400, {"error": {"root_cause": [why], **why}, "status": 400})
            else:
                self.reply(200, {"hits": {"hits": [{"_id": "1", "_source": document}]}})

        def do_GET(self) -> None:  # noqa: N802
            self.reply(200, self.path)

    with serving(Handler) as url:
        yield url, bodies


def opensearch(url: str, **settings: str) -> PaperLibrary:
    place = {"opensearch_endpoint": url, "s3_endpoint_url": url, "region": "us-west-2"}
    return open_library(PapersSettings(**place, **settings))  # type: ignore[arg-type]


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")


@pytest.mark.usefixtures("credentials")
def test_opensearch_is_asked_in_its_language() -> None:
    fields = ["title", "abstract", "authors"]
    drawn: dict[str, Any] = {"function_score": {"query": {"match_all": {}}, "random_score": {}}}
    since = {"range": {"ingested_at": {"gte": "now-720m"}}}
    queries: list[dict[str, Any]] = [{"paper": "1"}, {"minutes": 720}, {"words": "x y"}]
    with served(DOCUMENT) as (url, bodies):
        library = opensearch(url)
        for query in (*queries, {"clause": MULTI}):
            library.find(PaperQuery(**query), 2)
        (paper,) = library.find(ALL, 2, random=True)
        assert library.fetch(paper) == b'"/papers/gates.tex"'
    words = {"multi_match": {"query": "x y", "fields": fields}}
    by_id = {"ids": {"values": ["1"]}}
    assert [body["query"] for body in bodies] == [by_id, since, words, MULTI, drawn]
    assert {body["size"] for body in bodies} == {2}
    assert bodies[1]["sort"] == [{"ingested_at": {"order": "desc"}}]
    assert (paper.id, paper.title, paper.authors) == ("1", "Gates", ("A", "B"))
    assert (paper.date, paper.library) == ("2026-11-02", "opensearch")


@pytest.mark.usefixtures("credentials")
@pytest.mark.parametrize(
    ("service", "index", "query", "message"),
    [
        (DOCUMENT, "another", ALL, "no index another"),
        (DOCUMENT, INDEX, PaperQuery(clause={"nonsense": {}}), "rejects the query: .*unknown"),
        ({"name": "x"}, INDEX, ALL, "without the field `title`"),
        ("a page", INDEX, ALL, "correct OPENSEARCH_ENDPOINT"),
        ("nobody", INDEX, ALL, "does not respond"),
    ],
)
def test_an_endpoint_that_does_not_fit_is_said_in_one_line(
    service: Any, index: str, query: PaperQuery, message: str
) -> None:
    with contextlib.ExitStack() as stack:
        url = "http://127.0.0.1:9"
        if service == "a page":  # an error of http.server
            url = stack.enter_context(serving(BaseHTTPRequestHandler))
        elif service != "nobody":
            url, _ = stack.enter_context(served(service))
        library = opensearch(url, opensearch_index=index)
        with pytest.raises((UsageError, SourceError), match=message) as error:
            library.find(query, 1)
    assert "<" not in str(error.value)
    assert "\n" not in str(error.value)


# --- wrong input ---

VARIABLES = (
    *("OPENSEARCH_ENDPOINT", "BEDROCK_MODEL_ID", "TRAINIUM_ENDPOINT"),
    *("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
)
RUN = ("run", "--paper-id", "gated-residual")
MODEL = {"BEDROCK_MODEL_ID": "some.model", "AWS_REGION": "us-east-1"}


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_configuration(tmp_path, monkeypatch)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COMPILEWATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COMPILEWATCH_OUTPUT_DIR", str(tmp_path / "outputs"))


@pytest.mark.parametrize(
    ("arguments", "variables", "message"),
    [
        (RUN, {}, "set BEDROCK_MODEL_ID"),
        (RUN, MODEL, "no AWS credentials found"),
        (("find",), {"OPENSEARCH_ENDPOINT": "http://127.0.0.1:9"}, "no AWS credentials found"),
        ((*RUN, "--max-usd", "1"), MODEL, "no price of some.model"),
        *(
            (("find", "--query", query), {}, "")
            for query in ('{"match": ', "[1]", '{"match_all": {}}', "  ", "?!")
        ),
        (("find", "--query", "x", "--paper-id", "y"), {}, "use one of"),
        (("run", "--provider", "scripted"), {}, "select papers with"),
        (("find", "--folder", "/does/not/exist"), {}, "does not exist"),
        (
            ("run", "--folder", ".", "--paper-id", "void", "--provider", "scripted"),
            {},
            "no selected paper can be read",
        ),
        (("check", "nothing"), {}, "no paper 'nothing'"),
        (("show", "nothing"), {}, "no paper 'nothing'"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: tuple[str, ...],
    variables: dict[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "void.pdf").write_bytes(b"")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = tuple(str(tmp_path) if part == "." else part for part in arguments)
    with pytest.raises(CompilewatchError) as error:
        group.main(["papers", *arguments], standalone_mode=False)
    assert error.value.exit_status == 2
    assert "\n" not in str(error.value)
    assert message in str(error.value)


def test_papers_are_selected_by_their_age_and_id(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_papers(tmp_path, 2)
    os.utime(tmp_path / "papers" / "paper-01.md", (0, 0))
    for selection in (("--recent-days", "0.5"), ("--paper-id", "paper-00")):
        where = ("--folder", str(tmp_path / "papers"), "--max-papers", "9", "--json")
        group.main(["papers", "find", *selection, *where], standalone_mode=False)
        assert [paper["id"] for paper in json.loads(capsys.readouterr().out)] == ["paper-00"]
