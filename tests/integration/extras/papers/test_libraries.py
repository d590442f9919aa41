"""One suite for every library of papers; OpenSearch is the real client and an HTTP server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from compilewatch.config import PapersSettings
from compilewatch.errors import SourceError, UsageError
from compilewatch.extras.papers import LIBRARIES, PaperLibrary, PaperQuery
from compilewatch.extras.papers.libraries import describe, open_library
from tests.aws import no_configuration
from tests.papers import INPUTS
from tests.serving import serving

DAY = 86_400
INDEX = "research-papers-v2"
KINDS = ("ids", "range", "match", "multi_match", "match_all", "function_score")


def matching(query: dict[str, Any], documents: dict[str, Any]) -> Iterator[str]:
    """The ids of the documents that a query of OpenSearch's language selects."""
    ((kind, value),) = query.items()
    if kind == "function_score":
        yield from matching(value["query"], documents)
        return
    for key, one in documents.items():
        if kind == "match_all" or (kind == "ids" and key in value["values"]):
            yield key
        elif kind == "range":
            minutes = int(value["ingested_at"]["gte"].removeprefix("now-").removesuffix("m"))
            since = datetime.now(UTC) - timedelta(minutes=minutes)
            if datetime.fromisoformat(one["ingested_at"]) >= since:
                yield key
        elif kind in ("match", "multi_match"):
            words = value["query"] if kind == "multi_match" else next(iter(value.values()))
            text = " ".join(str(one[field]) for field in value.get("fields") or value).lower()
            if any(word in text for word in words.lower().split()):
                yield key


@contextlib.contextmanager
def served(documents: dict[str, Any], folder: Path) -> Iterator[tuple[str, list[str]]]:
    """OpenSearch's search and S3's GetObject: the address, and how requests were signed."""
    signed: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            signed.append(self.headers.get("Authorization", ""))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            kind = next(iter(body["query"]))
            if urlsplit(self.path).path != f"/{INDEX}/_search":
                self.reply(404, {"error": {"type": "index_not_found_exception"}, "status": 404})
            elif kind not in KINDS:
                why = {"type": "parsing_exception", "reason": f"unknown query [{kind}]"}
                self.reply(400, {"error": {"root_cause": [why], **why}, "status": 400})
            else:
                keys = list(matching(body["query"], documents))
                if "sort" in body:
                    keys.sort(key=lambda key: str(documents[key]["ingested_at"]), reverse=True)
                hits = [{"_id": key, "_source": documents[key]} for key in keys[: body["size"]]]
                self.reply(200, {"hits": {"hits": hits}})

        def do_GET(self) -> None:
            self.reply(200, (folder / Path(urlsplit(self.path).path).name).read_bytes())

        def reply(self, status: int, body: Any) -> None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    with serving(Handler) as url:
        yield url, signed


def document(path: Path) -> dict[str, Any]:
    """The paper of a file as a document of the index."""
    about = {name: describe(path)[name] for name in ("title", "abstract", "date", "authors")}
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    location = {"s3_bucket": "papers", "s3_key": path.name}
    authors = about["authors"].split("; ")
    return {**about, "authors": authors, "ingested_at": when.isoformat(), **location}


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
    documents = {path.stem: document(path) for path in sorted(folder.iterdir())}
    with served(documents, folder) as (url, signed):
        yield open_library(
            PapersSettings(opensearch_endpoint=url, s3_endpoint_url=url, region="us-west-2"),
            cache=tmp_path / "cache",
        )
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
    (other,) = library.find(PaperQuery(paper_id="gated-residual"))
    assert library.fetch(other) == (INPUTS / "library" / "gated-residual.tex").read_bytes()


def test_papers_are_found_by_time_by_words_and_in_the_language_of_opensearch(
    library: PaperLibrary,
) -> None:
    def found(**query: object) -> list[str]:
        return ids(library, max_papers=9, **query)

    assert found(paper_id="unknown") == []
    assert found(recent_days=7.0) == ["gated-residual", "low-rank-mixing"]
    assert found(recent_days=0.5) == ["gated-residual"]
    assert found(text="temperature") == ["cosine-attention"]
    assert sorted(found(text="bottleneck gates")) == ["gated-residual", "low-rank-mixing"]
    assert found(text="compilewatch") != []
    assert found(dsl={"match": {"title": "bottleneck"}}) == ["low-rank-mixing"]
    multi = {"multi_match": {"query": "temperature", "fields": ["title", "abstract"]}}
    assert found(dsl=multi) == ["cosine-attention"]
    assert len(found(dsl={"match_all": {}})) == len(found(random=True)) == 3
    assert len(ids(library, random=True, max_papers=2)) == 2


def test_a_query_that_is_not_known_is_rejected_in_one_line(library: PaperLibrary) -> None:
    with pytest.raises(UsageError) as error:
        library.find(PaperQuery(dsl={"nonsense": {}}))
    assert "\n" not in str(error.value)


# --- what only one of them can get wrong ---


class Page(BaseHTTPRequestHandler):
    """A web server at the address of OpenSearch."""

    def do_POST(self) -> None:
        self.send_error(501)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.mark.parametrize(
    ("service", "index", "kind", "message"),
    [
        (None, "another", UsageError, "no index another"),
        ({"1": {"name": "x"}}, INDEX, UsageError, "without the field `title`"),
        ("a page", INDEX, SourceError, "correct OPENSEARCH_ENDPOINT"),
        ("nobody", INDEX, SourceError, "does not respond"),
    ],
)
def test_an_endpoint_that_does_not_fit_is_said_in_one_line(
    tmp_path: Path, credentials: None, service: Any, index: str, kind: type[Exception], message: str
) -> None:
    with contextlib.ExitStack() as stack:
        url = "http://127.0.0.1:9"
        if service == "a page":
            url = stack.enter_context(serving(Page))
        elif service != "nobody":
            url, _ = stack.enter_context(served(service or {}, tmp_path))
        settings = PapersSettings(
            opensearch_endpoint=url, opensearch_index=index, region="us-east-1"
        )
        with pytest.raises(kind, match=message) as error:
            open_library(settings, cache=tmp_path).find(PaperQuery(dsl={"match_all": {}}))
    assert "<" not in str(error.value)
    assert "\n" not in str(error.value)


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
