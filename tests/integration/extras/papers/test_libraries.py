"""One suite for every library of papers; OpenSearch is the real client and an HTTP server."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compilewatch.errors import CompilewatchError, SourceError, UsageError
from compilewatch.extras.papers import LIBRARIES, PaperLibrary, PaperQuery
from compilewatch.extras.papers.libraries import open_library
from compilewatch.extras.papers.settings import PapersSettings
from tests.aws import no_configuration
from tests.integration.extras.papers import opensearch_server
from tests.papers import INPUTS

DAY = 86_400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The shipped papers, ingested today, 3 and 30 days ago."""
    papers_folder = tmp_path / "papers"
    shutil.copytree(INPUTS / "library", papers_folder)
    for name, days in (
        ("gated-residual.tex", 0.1),
        ("low-rank-mixing.md", 3),
        ("cosine-attention.html", 30),
    ):
        at = time.time() - days * DAY
        os.utime(papers_folder / name, (at, at))
    return papers_folder


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_configuration(tmp_path, monkeypatch)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")


@pytest.fixture(params=sorted(LIBRARIES))
def library(
    request: pytest.FixtureRequest, folder: Path, tmp_path: Path, credentials: None
) -> Iterator[PaperLibrary]:
    if request.param == "folder":
        yield open_library(PapersSettings(folder=str(folder)), cache=tmp_path / "cache")
        return
    with opensearch_server.served(*opensearch_server.documents_of(folder)) as (url, server):
        yield open_library(
            PapersSettings(opensearch_endpoint=url, s3_endpoint_url=url, region="us-west-2"),
            cache=tmp_path / "cache",
        )
        signed = [headers.get("Authorization", "") for _, headers, _ in server.requests]
        assert all("AWS4-HMAC-SHA256" in row and "/us-west-2/es/" in row for row in signed)


def ids(library: PaperLibrary, **query: object) -> list[str]:
    return [paper.id for paper in library.find(PaperQuery(**query))]  # type: ignore[arg-type]


def test_a_paper_is_found_by_its_id_with_all_that_is_known_of_it(library: PaperLibrary) -> None:
    (paper,) = library.find(PaperQuery(paper_id="low-rank-mixing"))
    assert paper.title == "Token Mixing through a Bottleneck of Low Rank"
    assert paper.authors == ("The compilewatch authors",)
    assert paper.date == "2026-11-02"
    assert "rank r" in paper.abstract
    assert paper.library == library.name


def test_an_unknown_id_finds_nothing(library: PaperLibrary) -> None:
    assert ids(library, paper_id="unknown") == []


def test_recent_papers_come_newest_first(library: PaperLibrary) -> None:
    assert ids(library, recent_days=7.0, max_papers=9) == ["gated-residual", "low-rank-mixing"]
    assert ids(library, recent_days=0.5, max_papers=9) == ["gated-residual"]


def test_words_are_searched_in_title_abstract_and_authors(library: PaperLibrary) -> None:
    assert ids(library, text="temperature", max_papers=9) == ["cosine-attention"]
    assert sorted(ids(library, text="bottleneck gates", max_papers=9)) == [
        "gated-residual",
        "low-rank-mixing",
    ]
    assert ids(library, text="compilewatch", max_papers=2) != []


def test_a_query_in_the_language_of_opensearch(library: PaperLibrary) -> None:
    assert ids(library, dsl={"match": {"title": "bottleneck"}}, max_papers=9) == ["low-rank-mixing"]
    multi = {"multi_match": {"query": "temperature", "fields": ["title", "abstract"]}}
    assert ids(library, dsl=multi, max_papers=9) == ["cosine-attention"]
    assert len(ids(library, dsl={"match_all": {}}, max_papers=9)) == 3


def test_a_query_that_is_not_known_is_rejected_in_one_line(library: PaperLibrary) -> None:
    with pytest.raises(UsageError) as error:
        library.find(PaperQuery(dsl={"nonsense": {}}))
    assert "\n" not in str(error.value)


def test_at_most_so_many_and_at_random(library: PaperLibrary) -> None:
    assert len(ids(library, random=True, max_papers=2)) == 2
    assert sorted(ids(library, random=True, max_papers=9)) == [
        "cosine-attention",
        "gated-residual",
        "low-rank-mixing",
    ]


def test_the_file_of_a_paper_is_fetched(library: PaperLibrary) -> None:
    (paper,) = library.find(PaperQuery(paper_id="gated-residual"))
    assert library.fetch(paper) == (INPUTS / "library" / "gated-residual.tex").read_bytes()


# --- what only one of them can get wrong ---


@pytest.mark.parametrize(
    ("documents", "index", "kind", "message"),
    [
        ({}, "another", UsageError, "no index another"),
        ({"1": {"name": "x"}}, opensearch_server.INDEX, UsageError, "without the field `title`"),
    ],
)
def test_an_index_that_does_not_fit(
    tmp_path: Path,
    credentials: None,
    documents: dict[str, dict[str, str]],
    index: str,
    kind: type[CompilewatchError],
    message: str,
) -> None:
    with opensearch_server.served(documents, {}) as (url, _):
        settings = PapersSettings(
            opensearch_endpoint=url, opensearch_index=index, region="us-east-1"
        )
        with pytest.raises(kind, match=message):
            open_library(settings, cache=tmp_path).find(PaperQuery(dsl={"match_all": {}}))


def test_an_endpoint_that_does_not_respond(tmp_path: Path, credentials: None) -> None:
    settings = PapersSettings(opensearch_endpoint="http://127.0.0.1:9", region="us-east-1")
    with pytest.raises(SourceError, match="does not respond"):
        open_library(settings, cache=tmp_path).find(PaperQuery(text="x"))


def test_opensearch_without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_configuration(tmp_path, monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    settings = PapersSettings(opensearch_endpoint="http://127.0.0.1:9", region="us-east-1")
    with pytest.raises(UsageError, match="no AWS credentials found"):
        open_library(settings, cache=tmp_path).find(PaperQuery(text="x"))


def test_a_folder_is_indexed_again_where_it_changed(folder: Path, tmp_path: Path) -> None:
    library = open_library(PapersSettings(folder=str(folder)), cache=tmp_path / "cache")
    assert ids(library, text="zebra", max_papers=9) == []
    (folder / "gated-residual.tex").write_text("\\documentclass{article} zebra " * 20)
    (folder / "low-rank-mixing.md").unlink()
    assert ids(library, text="zebra", max_papers=9) == ["gated-residual"]
    assert ids(library, text="bottleneck", max_papers=9) == []


def test_a_damaged_index_says_what_to_delete(folder: Path, tmp_path: Path) -> None:
    library = open_library(PapersSettings(folder=str(folder)), cache=tmp_path / "cache")
    ids(library, text="gates")
    (index,) = (tmp_path / "cache" / "papers").glob("*.sqlite")
    index.write_bytes(b"no database" * 1000)
    with pytest.raises(SourceError, match="delete it"):
        ids(library, text="gates")
