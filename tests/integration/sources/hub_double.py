"""A small double of the Hub's API on 127.0.0.1, for the real huggingface_hub client.

It answers what `HfApi.list_models`, `HfApi.model_info` and `hf_hub_download` ask for, with the
headers that they read (https://huggingface.co/docs/hub/api), and can be told to fail.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

from tests.serving import serving

Answer = tuple[int, str, dict[str, str]]
"""Status, body and headers; status 0 is no answer until the end."""


@dataclass
class HubModel:
    """A repository. `config` None: no config.json; text is served as it is, even if malformed.

    `files` are its further files: the content of what is served, None for what nobody may fetch.
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

    @property
    def sha(self) -> str:
        return hashlib.sha1(f"{self.id}{self.text}{self.files}".encode()).hexdigest()

    @property
    def text(self) -> str | None:
        return json.dumps(self.config) if isinstance(self.config, dict) else self.config

    @property
    def served(self) -> dict[str, str | None]:
        return self.files if self.text is None else {"config.json": self.text, **self.files}

    def info(self) -> dict[str, Any]:
        config = self.config if isinstance(self.config, dict) else {}
        named = (self.library, config.get("model_type"), self.license and f"license:{self.license}")
        siblings = [{"rfilename": name} for name in (".gitattributes", *self.served)]
        return {
            **dict.fromkeys(("private", "disabled"), False),
            "siblings": siblings,
            "_id": self.sha[:24],
            "id": self.id,
            "sha": self.sha,
            "downloads": self.downloads,
            "likes": self.likes,
            "trendingScore": self.trending,
            "gated": "auto" if self.gated else False,
            "pipeline_tag": self.pipeline_tag,
            "library_name": self.library,
            "tags": [*filter(None, named), *self.tags],
            "config": config,
        }


class HubDouble:
    """The models it serves, its failures, and every request it got, as `METHOD path?query`."""

    def __init__(self, models: list[HubModel], page_size: int) -> None:
        self.models = {model.id: model for model in models}
        self.page_size = page_size
        self.requests: list[str] = []
        self.endpoint = ""
        self.ended = threading.Event()
        self._failures: list[tuple[str, Iterator[Answer]]] = []
        self._lock = threading.Lock()

    def fail(self, pattern: str, status: int, times: int = 1_000_000, **headers: str) -> None:
        """Answer requests of a path and query with a status (0: never), so many times."""
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        self._failures.append((pattern, iter([(status, "{}", named)] * times)))

    def answer(self, method: str, path: str, token: str | None) -> Answer:
        with self._lock:
            self.requests.append(f"{method} {path}")
            for pattern, answers in self._failures:
                if re.search(pattern, path) and (failure := next(answers, None)):
                    return failure
        url = urlsplit(path)
        return self._listing(url) if url.path == "/api/models" else self._of_model(url, token)

    def _listing(self, url: SplitResult) -> Answer:
        """One page and the address of the next, as the Hub's cursor paging does."""
        query = parse_qs(url.query)
        task = query.get("pipeline_tag", [None])[0]
        chosen = [model.info() for model in self.models.values()]
        chosen = [i for i in chosen if {*query.get("filter", [])} <= {*i["tags"]}]
        chosen = [i for i in chosen if task in (None, i["pipeline_tag"])]
        chosen.sort(key=lambda info: -info[query["sort"][0]])
        start = int(query.get("cursor", ["0"])[0])
        end = start + min(self.page_size, int(query.get("limit", ["1000"])[0]))
        keep = {"_id", "id", *query.get("expand", [])}
        page = [{k: v for k, v in info.items() if k in keep} for info in chosen[start:end]]
        following = urlencode({**query, "cursor": [str(end)]}, doseq=True)
        link = {"Link": f'<{self.endpoint}/api/models?{following}>; rel="next"'}
        return 200, json.dumps(page), link if end < len(chosen) else {}

    def _of_model(self, url: SplitResult, token: str | None) -> Answer:
        """What the Hub knows of a model, or one of its files."""
        form = r"(/api/models)?/([^/]+/[^/]+)(?:/(?:resolve|revision)/([^/]+)/?(.*))?"
        parts = re.fullmatch(form, url.path)
        assert parts is not None, url.path
        of_api, name, revision, file = parts.groups()
        model = self.models.get(name)
        if model is None or model.deleted:
            return 401, "{}", {"X-Error-Code": "RepoNotFound"}
        if of_api:
            return 200, json.dumps(model.info()), {}
        if model.gated and token != "Bearer hf_good":
            return 401, "{}", {"X-Error-Code": "GatedRepo"}
        if revision != model.sha:
            return 404, "{}", {"X-Error-Code": "RevisionNotFound"}
        commit = {"X-Repo-Commit": model.sha}
        if (text := model.served.get(file)) is None:
            return 404, "{}", {"X-Error-Code": "EntryNotFound", **commit}
        return 200, text, {"ETag": f'"{hashlib.sha1(text.encode()).hexdigest()}"', **commit}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubDouble

    def do_GET(self) -> None:
        token = self.headers.get("authorization")
        status, body, headers = self.hub.answer(self.command, self.path, token)
        if status == 0:
            self.hub.ended.wait()
            self.close_connection = True
            return
        content = body.encode()
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(hub: HubDouble) -> Iterator[HubDouble]:
    """Serve on the loopback interface; `endpoint` is set within."""
    with serving(type("Handler", (_Handler,), {"hub": hub})) as hub.endpoint:
        yield hub
        hub.ended.set()
