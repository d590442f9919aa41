"""An HTTP server with OpenSearch's search and S3's GetObject, for the papers of a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.serving import serving

INDEX = "research-papers-v2"


class Server:
    """Documents by id, each with the fields of the index; `requests` are (path, headers, body)."""

    def __init__(self, documents: dict[str, dict[str, Any]], files: dict[str, bytes]) -> None:
        self.documents, self.files = documents, files
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    def search(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        hits: list[dict[str, Any]] = [
            {"_id": key, "_source": one} for key, one in self._matching(body["query"])
        ]
        if "sort" in body:
            hits.sort(key=lambda hit: hit["_source"]["ingested_at"], reverse=True)
        return hits[: body.get("size", 10)]

    def _matching(self, query: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        ((kind, value),) = query.items()
        if kind == "function_score":
            yield from self._matching(value["query"])
            return
        for key, one in self.documents.items():
            if kind == "match_all" or (kind == "ids" and key in value["values"]):
                yield key, one
            elif kind == "range":
                minutes = int(re.fullmatch(r"now-(\d+)m", value["ingested_at"]["gte"])[1])  # type: ignore[index]
                since = datetime.now(UTC) - timedelta(minutes=minutes)
                if datetime.fromisoformat(one["ingested_at"]) >= since:
                    yield key, one
            elif kind in ("match", "multi_match"):
                fields = value.get("fields") or list(value)
                words = value["query"] if kind == "multi_match" else next(iter(value.values()))
                text = " ".join(str(one.get(field, "")) for field in fields).lower()
                if any(word in text for word in words.lower().split()):
                    yield key, one


@contextmanager
def served(
    documents: dict[str, dict[str, Any]], files: dict[str, bytes]
) -> Iterator[tuple[str, Server]]:
    """The address of the server, and the server."""
    state = Server(documents, files)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = urlsplit(self.path).path
            state.requests.append((path, dict(self.headers), body))
            if path != f"/{INDEX}/_search":
                self.reply(404, {"error": {"type": "index_not_found_exception"}, "status": 404})
                return
            kind = next(iter(body["query"]))
            if kind not in ("ids", "range", "match", "multi_match", "match_all", "function_score"):
                why = {"type": "parsing_exception", "reason": f"unknown query [{kind}]"}
                self.reply(400, {"error": {"root_cause": [why], **why}, "status": 400})
                return
            self.reply(200, {"hits": {"hits": state.search(body)}})

        def do_GET(self) -> None:
            data = state.files.get(unquote(urlsplit(self.path).path))
            if data is None:
                self.reply(404, {})
                return
            self.reply(200, data)

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
        yield url, state


def documents_of(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, bytes]]:
    """The papers of a folder as documents of the index, and their files on S3."""
    from compilewatch.extras.papers.libraries import describe

    documents, files = {}, {}
    for path in sorted(folder.iterdir()):
        about = describe(path)
        when = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        documents[path.stem] = {
            "title": about["title"],
            "abstract": about["abstract"],
            "authors": about["authors"].split("; "),
            "date": about["date"],
            "ingested_at": when.isoformat(),
            "s3_bucket": "papers",
            "s3_key": path.name,
        }
        files[f"/papers/{path.name}"] = path.read_bytes()
    return documents, files
