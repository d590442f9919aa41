"""Prepared replies for the papers that ship with compilewatch, over the wire format of Bedrock.

The real client of boto3 talks to a server of this process. Nothing that these replies lead to says
anything about a model: calls, versions of code and results are marked as scripted.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec

from compilewatch.errors import SourceError
from compilewatch.extras.papers import Availability, Prompt, Reply
from compilewatch.extras.papers.providers.bedrock import BedrockProvider
from compilewatch.extras.papers.text import estimate_tokens
from compilewatch.files import safe_name

_CONVERSE = re.compile(r"/model/(.+)/converse")
_MODEL = re.compile(r"/foundation-models/(.+)")


@dataclass(frozen=True, kw_only=True)
class ErrorResponse:
    """An error response: its HTTP status and the name that AWS puts into `x-amzn-ErrorType`."""

    status: int
    code: str
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """The connection ends without a response, after `seconds`."""

    seconds: float = 0.0


Response = Reply | ErrorResponse | Dropped


class ConverseServer:
    """Serves `respond`, which gets the decoded body of each request and the model's id."""

    def __init__(
        self,
        respond: Callable[[str, dict[str, Any]], Response],
        models: Callable[[str], dict[str, Any] | None] = lambda _: None,
    ) -> None:
        outer = self
        self.requests: list[dict[str, Any]] = []
        self._respond, self._models = respond, models

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer._converse(self)

            def do_GET(self) -> None:
                outer._describe(self)

            def log_message(self, format: str, *args: object) -> None:
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # By default, `close` would wait for up to half a second.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _converse(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length", 0))
        body = msgspec.json.decode(handler.rfile.read(length) or b"{}")
        pattern_match = _CONVERSE.fullmatch(handler.path)
        if pattern_match is None:
            _send(handler, 404, {"message": "not found"}, "UnknownOperationException")
            return
        self.requests.append(body)
        response = self._respond(unquote(pattern_match[1]), body)
        if isinstance(response, Dropped):
            threading.Event().wait(response.seconds)
            handler.close_connection = True
        elif isinstance(response, ErrorResponse):
            _send(handler, response.status, {"message": response.message}, response.code)
        else:
            _send(handler, 200, _body_of(response))

    def _describe(self, handler: BaseHTTPRequestHandler) -> None:
        passage = _MODEL.fullmatch(handler.path)
        details = self._models(unquote(passage[1])) if passage else None
        if details is None:
            error = {"message": "The provided model identifier is invalid."}
            _send(handler, 404, error, "ResourceNotFoundException")
            return
        _send(handler, 200, {"modelDetails": details})


def _body_of(reply: Reply) -> dict[str, Any]:
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": reply.text}]}},
        "stopReason": reply.stop_reason,
        "usage": {
            "inputTokens": reply.input_tokens,
            "outputTokens": reply.output_tokens,
            "totalTokens": reply.input_tokens + reply.output_tokens,
        },
        "metrics": {"latencyMs": 1},
    }


def _send(
    handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any], error: str = ""
) -> None:
    data = msgspec.json.encode(body)
    with contextlib.suppress(OSError):
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(data)))
        handler.send_header("x-amzn-RequestId", str(uuid.uuid4()))
        if error:
            handler.send_header("x-amzn-ErrorType", error)
        handler.end_headers()
        handler.wfile.write(data)


MODEL = "scripted"


class ScriptedProvider:
    """Replies from `<folder>/<paper>/`: plan.json, code.N.py with code.N.json, review.N.json."""

    name = "scripted"
    scripted = True
    model = MODEL

    def __init__(self, folder: Path) -> None:
        """Raises SourceError if the folder does not exist."""
        if not folder.is_dir():
            raise SourceError(
                f"the prepared replies {folder} do not exist: use a checkout of compilewatch, or "
                "--provider bedrock"
            )
        self._folder = folder
        self._server = ConverseServer(self._respond)
        self._client = BedrockProvider(
            MODEL,
            region="us-east-1",
            endpoint_url=self._server.url,
            credentials=("scripted", "scripted"),
            read_timeout_seconds=30.0,
        )

    def converse(self, prompt: Prompt) -> Reply:
        return self._client.converse(prompt)

    def available(self) -> tuple[Availability, ...]:
        return (Availability(model=MODEL, name="prepared replies", status="ACTIVE"),)

    def close(self) -> None:
        self._client.close()
        self._server.close()

    def _respond(self, model: str, body: dict[str, Any]) -> Response:
        del model
        labels = body.get("requestMetadata", {})
        folder = self._folder / safe_name(labels.get("paper", ""))
        text = _reply(folder, labels.get("role", ""), int(labels.get("number", "0")))
        if text is None:
            error = f"no prepared reply for {labels}"
            return ErrorResponse(status=404, code="ResourceNotFoundException", message=error)
        prompt = "".join(
            part["text"] for message in body["messages"] for part in message["content"]
        )
        return Reply(
            text=text,
            stop_reason="end_turn",
            input_tokens=estimate_tokens(prompt),
            output_tokens=estimate_tokens(text),
        )


def _reply(folder: Path, role: str, number: int) -> str | None:
    """The text of a prepared reply. A later version without a file of its own gets the last."""
    name = {"plan": "plan", "generate": "code", "review": "review"}.get(role)
    if name is None:
        return None
    for n in range(number, -1, -1):
        path = folder / ("plan.json" if role == "plan" else f"{name}.{n}.json")
        if not path.is_file():
            continue
        reply = msgspec.json.decode(path.read_bytes())
        if role == "generate":
            reply["source"] = path.with_suffix(".py").read_text(encoding="utf-8")
        return msgspec.json.encode(reply).decode()
    return None
