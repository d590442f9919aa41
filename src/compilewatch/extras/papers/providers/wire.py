"""A server on the loopback address that speaks the wire format of Bedrock's Converse API.

It lets the real client of boto3 be used without AWS: by the provider `scripted`, and by tests.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import msgspec

from compilewatch.extras.papers import Reply

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
        found = _CONVERSE.fullmatch(handler.path)
        if found is None:
            _send(handler, 404, {"message": "not found"}, "UnknownOperationException")
            return
        self.requests.append(body)
        said = self._respond(unquote(found[1]), body)
        if isinstance(said, Dropped):
            threading.Event().wait(said.seconds)
            handler.close_connection = True
        elif isinstance(said, ErrorResponse):
            _send(handler, said.status, {"message": said.message}, said.code)
        else:
            _send(handler, 200, _body_of(said))

    def _describe(self, handler: BaseHTTPRequestHandler) -> None:
        found = _MODEL.fullmatch(handler.path)
        details = self._models(unquote(found[1])) if found else None
        if details is None:
            said = {"message": "The provided model identifier is invalid."}
            _send(handler, 404, said, "ResourceNotFoundException")
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
