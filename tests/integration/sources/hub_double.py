"""A small double of the Hub's API on 127.0.0.1, for the real huggingface_hub client.

It answers what `HfApi.list_models`, `HfApi.model_info` and `hf_hub_download` ask for, with the
headers that they read (https://huggingface.co/docs/hub/api; `ETag`, `X-Repo-Commit`,
`X-Error-Code`, `Link`), and can be told to fail.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit


@dataclass
class HubModel:
    """A repository. `config` None: no config.json; text is served as it is, even if malformed.

    `files` are its further files: the content of what is served, None for what nobody may fetch.
    `lists_files` False is a Hub that does not list them.
    """

    id: str
    config: dict[str, Any] | str | None = None
    downloads: int = 0
    likes: int = 0
    trending: int = 0
    pipeline_tag: str | None = None
    library: str | None = "transformers"
    license: str | None = None
    gated: bool = False
    deleted: bool = False
    files: dict[str, str | None] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    lists_files: bool = True

    @property
    def sha(self) -> str:
        return hashlib.sha1(f"{self.id}{self.text}{self.files}".encode()).hexdigest()

    @property
    def served(self) -> dict[str, str | None]:
        own = {"config.json": self.text} if self.text is not None else {}
        return {**own, **self.files}

    @property
    def text(self) -> str | None:
        return json.dumps(self.config) if isinstance(self.config, dict) else self.config

    def info(self) -> dict[str, Any]:
        known = self.config if isinstance(self.config, dict) else {}
        shown = ("architectures", "model_type", "auto_map")
        tags = [t for t in (self.library, known.get("model_type")) if t]
        siblings = [{"rfilename": name} for name in (".gitattributes", *self.served)]
        return {
            **({"siblings": siblings} if self.lists_files else {}),
            "_id": self.sha[:24],
            "id": self.id,
            "sha": self.sha,
            "downloads": self.downloads,
            "likes": self.likes,
            "trendingScore": self.trending,
            "gated": "auto" if self.gated else False,
            "private": False,
            "disabled": False,
            "pipeline_tag": self.pipeline_tag,
            "library_name": self.library,
            "tags": [*tags, *self.tags, *([f"license:{self.license}"] if self.license else [])],
            "config": {key: known[key] for key in shown if key in known},
        }


@dataclass
class Failure:
    """Requests whose path matches get `status` (0: no answer until the end), `times` times."""

    path: str
    status: int
    times: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)


class HubDouble:
    """The models it serves, its failures, and every request it got, as `METHOD path?query`."""

    def __init__(
        self, models: list[HubModel], page_size: int = 100, token: str = "hf_good"
    ) -> None:
        self.models = {model.id: model for model in models}
        self.page_size = page_size
        self.token = "hf_good"
        self.failures: list[Failure] = []
        self.requests: list[str] = []
        self.endpoint = ""
        self.ended = threading.Event()
        self._lock = threading.Lock()

    def fail(self, path: str, status: int, times: int = 1_000_000, **headers: str) -> None:
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self.failures.append(Failure(path, status, times, named))

    def note(self, request: str, path: str) -> Failure | None:
        with self._lock:
            self.requests.append(request)
            for failure in self.failures:
                if failure.times > 0 and re.search(failure.path, path):
                    failure.times -= 1
                    return failure
        return None

    def listing(self, query: dict[str, list[str]]) -> tuple[list[dict[str, Any]], str | None]:
        """One page and the query of the next, as the Hub's cursor paging does."""
        sort = query.get("sort", ["trendingScore"])[0]
        chosen = [m.info() for m in self.models.values()]
        for tag in query.get("filter", []):
            chosen = [info for info in chosen if tag in info["tags"]]
        if "pipeline_tag" in query:
            chosen = [i for i in chosen if i["pipeline_tag"] == query["pipeline_tag"][0]]
        chosen.sort(key=lambda info: -info[sort])
        start = int(query.get("cursor", ["0"])[0])
        size = min(self.page_size, int(query.get("limit", ["1000"])[0]))
        keep = {"_id", "id", *query.get("expand", [])}
        page = [{k: v for k, v in i.items() if k in keep} for i in chosen[start : start + size]]
        if start + size >= len(chosen):
            return page, None
        following = {k: v for k, v in query.items() if k != "cursor"}
        return page, urlencode({**following, "cursor": [str(start + size)]}, doseq=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubDouble

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        failure = self.hub.note(f"{self.command} {self.path}", url.path)
        if failure is not None:
            self._fail(failure)
        elif url.path == "/api/models":
            page, following = self.hub.listing(parse_qs(url.query))
            link = f'<{self.hub.endpoint}/api/models?{following}>; rel="next"' if following else ""
            self._answer(200, json.dumps(page), {"Link": link} if link else {})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/.+)?", url.path):
            self._info(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path):
            self._file(found[1], found[2], found[3])
        else:
            self._error(404, "NotFound")

    do_HEAD = do_GET  # noqa: N815

    def _info(self, name: str) -> None:
        model = self.hub.models.get(name)
        if model is None or model.deleted:
            self._error(401, "RepoNotFound")
        else:
            self._answer(200, json.dumps(model.info()))

    def _file(self, name: str, revision: str, filename: str) -> None:
        model = self.hub.models.get(name)
        allowed = self.headers.get("authorization") == f"Bearer {self.hub.token}"
        if model is None or model.deleted:
            self._error(401, "RepoNotFound")
        elif model.gated and not allowed:
            self._error(401, "GatedRepo")
        elif revision != model.sha:
            self._error(404, "RevisionNotFound")
        elif (text := model.served.get(filename)) is None:
            self._error(404, "EntryNotFound", {"X-Repo-Commit": model.sha})
        else:
            etag = hashlib.sha1(text.encode()).hexdigest()
            self._answer(200, text, {"ETag": f'"{etag}"', "X-Repo-Commit": model.sha})

    def _fail(self, failure: Failure) -> None:
        if failure.status == 0:
            self.hub.ended.wait()
            self.close_connection = True
        else:
            self._answer(failure.status, "{}", failure.headers)

    def _error(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        self._answer(status, json.dumps({"error": code}), {"X-Error-Code": code, **(headers or {})})

    def _answer(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        content = body.encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(hub: HubDouble) -> Iterator[HubDouble]:
    """Serve on a free port of the loopback interface; `endpoint` is set within."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.ended.set()
            server.shutdown()
            thread.join()
